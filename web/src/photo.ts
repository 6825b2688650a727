// From a file to the pixels the encoder takes: decode, turn upright, blend onto white, resize, normalise.

import { boxOf, normalise, resample, type Preprocess, type Rows } from "./resample";
import type { Pixels } from "./types";

export const MAX_BYTES = 64 * 2 ** 20;
const MAX_PIXELS = 178_956_970; // the same limits as in Python
const SIGNATURES = /^(\xff\xd8\xff|\x89PNG|GIF8|BM|RIFF[^]{4}WEBP)/; // of the kinds that every browser reads
const OTHERS: [RegExp, string][] = [ // of kinds that Python reads, and few browsers
  [/^[^]{4}ftyp(hei[cxms]|hev[cx]|mif1|msf1)/, "HEIC"],
  [/^[^]{4}ftypavi[fs]/, "AVIF"],
  [/^(II\*\0|MM\0\*)/, "TIFF"],
  [/^(\0\0\0\x0cjP  |\xff\x4f\xff\x51)/, "JPEG 2000"],
  [/^P[1-6]\s/, "PPM"],
];

export interface PreparedPhoto {
  square: Uint8ClampedArray; // size × size × RGB: what the encoder takes
  pixels: Float32Array;
  frame: number[]; // the part of the photo that this square shows, as shares of its sides
}

export class PhotoError extends Error {}

export async function prepare(given: Blob | Pixels, how: Preprocess): Promise<PreparedPhoto> {
  if (!(given instanceof Blob)) return prepareRows(rowsOf(given), given.width, given.height, how);
  const photo = await decode(given);
  try {
    return prepareRows(strips(photo), photo.width, photo.height, how);
  } finally {
    photo.close();
  }
}

function prepareRows(rows: Rows, width: number, height: number, how: Preprocess): PreparedPhoto {
  if (width * height > MAX_PIXELS) throw new PhotoError(`this photo has ${width} × ${height} pixels: shrink it first`);
  const square = resample(rows, width, height, how), [left, top, right, bottom] = boxOf(width, height, how);
  return { square, pixels: normalise(square, how), frame: [left / width, top / height, right / width, bottom / height] };
}

async function decode(file: Blob): Promise<ImageBitmap> {
  if (typeof createImageBitmap !== "function") throw new PhotoError("photos are decoded by browsers only: pass { data, width, height } with RGBA pixels");
  if (!file.size) throw new PhotoError("this file is empty: choose another one");
  if (file.size > MAX_BYTES) throw new PhotoError("this photo is larger than 64 MB: shrink it first");
  try { // colours as stored, as Pillow takes them; turned upright as the camera noted
    return await createImageBitmap(file, { imageOrientation: "from-image", colorSpaceConversion: "none", premultiplyAlpha: "premultiply" });
  } catch {
    throw new PhotoError(await reasonOf(file));
  }
}

/** Why a file cannot be decoded, by its first bytes. */
async function reasonOf(file: Blob): Promise<string> {
  let start: string;
  try {
    start = String.fromCharCode(...new Uint8Array(await file.slice(0, 12).arrayBuffer()));
  } catch {
    return "this file cannot be read: it was moved or deleted since it was chosen";
  }
  if (SIGNATURES.test(start)) return "this photo is cut off or damaged: copy or download it again";
  const other = OTHERS.find(([signature]) => signature.test(start));
  if (other) return `this browser cannot read ${other[1]}: use \`sightline caption\` or \`sightline serve --server-page\`, or save it as JPEG`;
  return "this file is not an image: use JPEG, PNG, WebP, AVIF, GIF or BMP";
}

/** Decoded pixels, blended onto white where they are clear. */
function rowsOf({ data, width, height }: Pixels): Rows {
  if (!(width > 0 && height > 0) || data.length !== 4 * width * height) {
    throw new PhotoError(`${width} × ${height} pixels of RGBA are ${4 * width * height} bytes, these are ${data.length}`);
  }
  return (from, to) => {
    const rows = new Uint8ClampedArray(data.subarray(4 * width * from, 4 * width * to));
    for (let at = 3; at < rows.length; at += 4) {
      const alpha = rows[at] / 255;
      if (alpha < 1) for (let channel = at - 3; channel < at; channel++) rows[channel] = rows[channel] * alpha + 255 * (1 - alpha);
    }
    return rows;
  };
}

function strips(photo: ImageBitmap): Rows {
  let canvas: OffscreenCanvas | null = null;
  return (from, to) => {
    if (canvas?.height !== to - from) canvas = new OffscreenCanvas(photo.width, to - from);
    const context = canvas.getContext("2d", { willReadFrequently: true })!;
    context.fillStyle = "#fff";
    context.fillRect(0, 0, photo.width, to - from);
    context.drawImage(photo, 0, from, photo.width, to - from, 0, 0, photo.width, to - from);
    return context.getImageData(0, 0, photo.width, to - from).data;
  };
}
