// The camera in a dialog; where the browser gives no access, the phone's camera app through a file input.

import { byId } from "./dom";

const dialog = byId<HTMLDialogElement>("camera-dialog"), video = byId<HTMLVideoElement>("video"), message = byId("camera-error");
const shutter = byId<HTMLButtonElement>("shutter"), turn = byId<HTMLButtonElement>("turn");
let stream: MediaStream | null = null, facing: "environment" | "user" = "environment";

export const hasCamera = () => Boolean(navigator.mediaDevices?.getUserMedia);
export const isTouch = () => matchMedia("(pointer: coarse)").matches;

export function prepareCamera(onPhoto: (photo: Blob) => void): void {
  shutter.addEventListener("click", async () => {
    const canvas = new OffscreenCanvas(video.videoWidth, video.videoHeight);
    canvas.getContext("2d")!.drawImage(video, 0, 0);
    const photo = await canvas.convertToBlob({ type: "image/jpeg", quality: 0.95 });
    dialog.close();
    onPhoto(photo);
  });
  turn.addEventListener("click", () => {
    facing = facing === "user" ? "environment" : "user";
    void open();
  });
  byId("camera-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", release);
}

export async function openCamera(): Promise<void> {
  dialog.showModal();
  await open();
}

async function open(): Promise<void> {
  release();
  message.hidden = true;
  shutter.disabled = true;
  try {
    const media = await navigator.mediaDevices.getUserMedia({ video: { facingMode: facing, width: { ideal: 1280 } } });
    if (!dialog.open) return media.getTracks().forEach((track) => track.stop());
    stream = media;
    video.srcObject = stream;
    await video.play();
    video.classList.toggle("mirror", stream.getVideoTracks()[0].getSettings().facingMode !== "environment");
    const cameras = (await navigator.mediaDevices.enumerateDevices()).filter(({ kind }) => kind === "videoinput");
    turn.hidden = cameras.length < 2;
    shutter.disabled = false;
    shutter.focus();
  } catch (error) {
    const name = error instanceof DOMException ? error.name : "";
    message.textContent = name === "NotAllowedError" ? "The browser was not allowed to use the camera."
      : name === "NotFoundError" ? "There is no camera on this device." : "The camera cannot be used right now.";
    message.hidden = false;
  }
}

function release(): void {
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
  video.srcObject = null;
}
