// The camera as a small window of its own; where the browser gives none, a phone's own camera through a file input.

import { byId } from "./dom";

const finder = byId<HTMLDialogElement>("finder"), video = byId<HTMLVideoElement>("video"), trouble = byId("finder-trouble");
const shutter = byId<HTMLButtonElement>("shutter"), turn = byId<HTMLButtonElement>("turn");
let stream: MediaStream | null = null, facing: "environment" | "user" = "environment";

export const hasCamera = () => Boolean(navigator.mediaDevices?.getUserMedia);
export const isTouch = () => matchMedia("(pointer: coarse)").matches;

export function prepareCamera(use: (photo: Blob) => void): void {
  shutter.addEventListener("click", async () => {
    const canvas = new OffscreenCanvas(video.videoWidth, video.videoHeight);
    canvas.getContext("2d")!.drawImage(video, 0, 0);
    const photo = await canvas.convertToBlob({ type: "image/jpeg", quality: 0.95 });
    finder.close();
    use(photo);
  });
  turn.addEventListener("click", () => {
    facing = facing === "user" ? "environment" : "user";
    void open();
  });
  byId("finder-close").addEventListener("click", () => finder.close());
  finder.addEventListener("close", release);
}

export async function openCamera(): Promise<void> {
  finder.showModal();
  await open();
}

async function open(): Promise<void> {
  release();
  trouble.hidden = true;
  shutter.disabled = true;
  try {
    const found = await navigator.mediaDevices.getUserMedia({ video: { facingMode: facing, width: { ideal: 1280 } } });
    if (!finder.open) return found.getTracks().forEach((track) => track.stop());
    stream = found;
    video.srcObject = stream;
    await video.play();
    video.classList.toggle("mirror", stream.getVideoTracks()[0].getSettings().facingMode !== "environment");
    const cameras = (await navigator.mediaDevices.enumerateDevices()).filter(({ kind }) => kind === "videoinput");
    turn.hidden = cameras.length < 2;
    shutter.disabled = false;
    shutter.focus();
  } catch (error) {
    const name = error instanceof DOMException ? error.name : "";
    trouble.textContent = name === "NotAllowedError" ? "The browser was not allowed to use the camera."
      : name === "NotFoundError" ? "There is no camera on this device." : "The camera cannot be used right now.";
    trouble.hidden = false;
  }
}

function release(): void {
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
  video.srcObject = null;
}
