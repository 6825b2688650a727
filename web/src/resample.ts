// Pillow's resampling, to the bit: two passes, each with whole-number weights and rounded to 8 bits.
// docs/export.md has the arithmetic. A canvas scales differently, which now and then changes a word of the caption.

export type Box = [left: number, top: number, right: number, bottom: number];

export interface Preprocess {
  size: number;
  resize: number;
  mean: number[];
  std: number[];
  fit: "crop" | "squash";
  interpolation: "bilinear" | "bicubic";
}

/** Rows `from` to `to` of a picture, as RGBA, blended onto white. */
export type Rows = (from: number, to: number) => Uint8ClampedArray;

interface Weights {
  first: Int32Array; // of each output pixel: the first input it takes
  count: Int32Array;
  values: Int32Array[]; // fixed point, 22 fractional bits
}

const BITS = 22;
const STRIP = 256; // rows read at once: a photo of 48 megapixels is never decoded to RGB as a whole

/** The part of a photo that the encoder takes, in pixels. */
export function boxOf(width: number, height: number, how: Preprocess): Box {
  if (how.fit === "squash") return [0, 0, width, height];
  const scale = how.resize / Math.min(width, height);
  const [across, down] = [width, height].map((length) => {
    const resized = Math.max(how.resize, Math.trunc(length * scale));
    const start = roundHalfToEven((resized - how.size) / 2);
    return [(start * length) / resized, Math.min(length, ((start + how.size) * length) / resized)];
  });
  return [across[0], down[0], across[1], down[1]];
}

/** `size` × `size` × RGB, row by row. */
export function resample(rows: Rows, width: number, height: number, how: Preprocess): Uint8ClampedArray {
  const box = boxOf(width, height, how), { size } = how;
  const across = needsPass(width, box[0], box[2], size) ? weights(width, box[0], box[2], how) : null;
  const down = needsPass(height, box[1], box[3], size) ? weights(height, box[1], box[3], how) : null;
  // Pillow 13 takes the columns first where the height shrinks by more than twice as many pixels.
  if (across && down && height - size > 2 * Math.max(0, width - size)) {
    return rowsTo(columnsTo(rows, width, down, size), width, size, across, size);
  }
  const needed: [number, number] = down ? [down.first[0], lastOf(down)] : [0, height];
  const narrow = new Uint8ClampedArray(size * (needed[1] - needed[0]) * 3);
  for (let from = needed[0]; from < needed[1]; from += STRIP) {
    const to = Math.min(needed[1], from + STRIP), strip = withoutAlpha(rows(from, to));
    const done = across ? rowsTo(strip, width, to - from, across, size) : strip;
    narrow.set(done, (from - needed[0]) * size * 3);
  }
  if (!down) return narrow;
  const read: Rows = (from, to) => narrow.subarray((from - needed[0]) * size * 3, (to - needed[0]) * size * 3);
  return columnsTo(read, size, down, size, 3);
}

/** Channels first, red first, normalised as the network was trained. */
export function normalise(square: Uint8ClampedArray, how: Preprocess): Float32Array {
  const area = how.size * how.size, pixels = new Float32Array(3 * area);
  for (let channel = 0; channel < 3; channel++) {
    const mean = Math.fround(how.mean[channel]), std = Math.fround(how.std[channel]);
    for (let index = 0; index < area; index++) {
      const value = Math.fround(square[3 * index + channel] / 255);
      pixels[channel * area + index] = Math.fround(value - mean) / std;
    }
  }
  return pixels;
}

function needsPass(length: number, from: number, to: number, size: number): boolean {
  return !(from === 0 && to === length && size === length);
}

function weights(length: number, from: number, to: number, how: Preprocess): Weights {
  const kernel = how.interpolation === "bicubic" ? bicubic : bilinear;
  const scale = (to - from) / how.size, wide = Math.max(scale, 1);
  const support = (how.interpolation === "bicubic" ? 2 : 1) * wide;
  const first = new Int32Array(how.size), count = new Int32Array(how.size), values: Int32Array[] = [];
  for (let x = 0; x < how.size; x++) {
    const centre = from + (x + 0.5) * scale;
    first[x] = Math.max(0, Math.trunc(centre - support + 0.5));
    count[x] = Math.min(length, Math.trunc(centre + support + 0.5)) - first[x];
    const exact = Array.from({ length: count[x] }, (_, i) => kernel((i + first[x] - centre + 0.5) / wide));
    const sum = exact.reduce((total, value) => total + value, 0);
    values.push(Int32Array.from(exact, (value) => {
      const scaled = (sum ? value / sum : value) * 2 ** BITS;
      return Math.trunc(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    }));
  }
  return { first, count, values };
}

/** All rows (RGB) to a new width. */
function rowsTo(input: Uint8ClampedArray, width: number, height: number, by: Weights, size: number): Uint8ClampedArray {
  const output = new Uint8ClampedArray(size * height * 3);
  for (let y = 0, at = 0; y < height; y++) {
    for (let x = 0; x < size; x++, at += 3) {
      const values = by.values[x];
      let red = 1 << (BITS - 1), green = red, blue = red;
      for (let i = 0, from = 3 * (y * width + by.first[x]); i < values.length; i++, from += 3) {
        red += values[i] * input[from];
        green += values[i] * input[from + 1];
        blue += values[i] * input[from + 2];
      }
      output[at] = red >> BITS; // the array itself clamps
      output[at + 1] = green >> BITS;
      output[at + 2] = blue >> BITS;
    }
  }
  return output;
}

/** All columns to a new height; reads strip by strip and gives RGB. */
function columnsTo(rows: Rows, width: number, by: Weights, size: number, channels = 4): Uint8ClampedArray {
  const line = 3 * width, sums = new Int32Array(size * line).fill(1 << (BITS - 1)), last = lastOf(by);
  for (let from = by.first[0]; from < last; from += STRIP) {
    const to = Math.min(last, from + STRIP);
    const strip = channels === 4 ? withoutAlpha(rows(from, to)) : rows(from, to);
    for (let y = 0; y < size; y++) {
      const begin = Math.max(from, by.first[y]), end = Math.min(to, by.first[y] + by.count[y]);
      for (let row = begin; row < end; row++) {
        const weight = by.values[y][row - by.first[y]], start = (row - from) * line;
        for (let x = 0, at = y * line; x < line; x++, at++) sums[at] += weight * strip[start + x];
      }
    }
  }
  const output = new Uint8ClampedArray(size * line);
  for (let at = 0; at < output.length; at++) output[at] = sums[at] >> BITS;
  return output;
}

function lastOf(by: Weights): number {
  const end = by.first.length - 1;
  return by.first[end] + by.count[end];
}

function withoutAlpha(rgba: Uint8ClampedArray): Uint8ClampedArray {
  const rgb = new Uint8ClampedArray((rgba.length / 4) * 3);
  for (let from = 0, to = 0; from < rgba.length; from += 4, to += 3) {
    rgb[to] = rgba[from];
    rgb[to + 1] = rgba[from + 1];
    rgb[to + 2] = rgba[from + 2];
  }
  return rgb;
}

function bicubic(distance: number): number {
  const d = Math.abs(distance);
  if (d < 1) return (1.5 * d - 2.5) * d * d + 1;
  return d < 2 ? ((-0.5 * d + 2.5) * d - 4) * d + 2 : 0;
}

function bilinear(distance: number): number {
  return Math.max(0, 1 - Math.abs(distance));
}

function roundHalfToEven(value: number): number {
  const below = Math.floor(value), rest = value - below;
  return rest < 0.5 || (rest === 0.5 && below % 2 === 0) ? below : below + 1;
}
