// From a file to upright pixels on white, whatever the browser can decode.

import { boxOf, normalise, resample, type Preprocess, type Rows } from "./resample";

const MOST_BYTES = 64 * 2 ** 20, MOST_PIXELS = 178_956_970; // as Python's
const BEGINNINGS = /^(\xff\xd8\xff|\x89PNG|GIF8|BM|RIFF[^]{4}WEBP)/; // of the kinds that every browser reads

export interface Seen {
  square: Uint8ClampedArray; // size × size × RGB: what the network sees
  pixels: Float32Array;
  frame: number[]; // the part of the photo it sees, as shares of its sides
}

export class PhotoError extends Error {}

export async function see(file: Blob, how: Preprocess): Promise<Seen> {
  if (!file.size) throw new PhotoError("this file is empty: choose another one");
  if (file.size > MOST_BYTES) throw new PhotoError("this photo is larger than 64 MB: shrink it first");
  let photo: ImageBitmap;
  try { // colours as stored, as Pillow takes them; turned upright as the camera noted
    photo = await createImageBitmap(file, { imageOrientation: "from-image", colorSpaceConversion: "none", premultiplyAlpha: "premultiply" });
  } catch {
    if (await isKnown(file)) throw new PhotoError("this photo is cut off or damaged: copy or download it again");
    throw new PhotoError("this browser cannot read that photo: try a JPEG, PNG or WebP");
  }
  try {
    const { width, height } = photo;
    if (width * height > MOST_PIXELS) throw new PhotoError(`this photo has ${width} × ${height} pixels: shrink it first`);
    const square = resample(strips(photo), width, height, how), [left, top, right, bottom] = boxOf(width, height, how);
    return { square, pixels: normalise(square, how), frame: [left / width, top / height, right / width, bottom / height] };
  } finally {
    photo.close();
  }
}

/** Whether a file begins as a photo that any browser reads: then its kind is not what is wrong with it. */
async function isKnown(file: Blob): Promise<boolean> {
  try {
    return BEGINNINGS.test(String.fromCharCode(...new Uint8Array(await file.slice(0, 12).arrayBuffer())));
  } catch { // moved or deleted since it was chosen
    return false;
  }
}

function strips(photo: ImageBitmap): Rows {
  let canvas: OffscreenCanvas | null = null;
  return (from, to) => {
    if (canvas?.height !== to - from) canvas = new OffscreenCanvas(photo.width, to - from);
    const pen = canvas.getContext("2d", { willReadFrequently: true })!;
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, photo.width, to - from);
    pen.drawImage(photo, 0, from, photo.width, to - from, 0, 0, photo.width, to - from);
    return pen.getImageData(0, 0, photo.width, to - from).data;
  };
}
