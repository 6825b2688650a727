// From a word's attention map to a heat map over the photo: the same numbers as src/sightline/explain/heatmap.py.

import type { Frame, Grid } from "./types";

const SPREAD = 0.6; // the Gaussian's standard deviation, in grid cells
const FAINT = 0.3; // maps weaker than this share of their caption's strongest stay dim
const COLOUR = 2; // half the intensity is enough to show the photo's colours in full
const DARK = [9, 12, 28], WARM = [255, 190, 92];
const LONGEST = 720; // pixels of the canvas that is laid over the photo

const COLOUR_MAP = Array.from({ length: 256 }, (_, level) => { // the colour laid over a pixel of this intensity
  const intensity = level / 255, dark = 0.7 * (1 - intensity) ** 1.25, warm = 0.22 * intensity ** 1.5;
  const alpha = warm + dark * (1 - warm), share = warm / Math.max(alpha, 1e-9);
  return { alpha, colour: DARK.map((value, channel) => share * WARM[channel] + (1 - share) * value) };
});

/** The maps of one caption's words, so that once smoothed they are 0 at their mean and 1 at their peak. */
export function scaled(maps: Grid[]): Grid[] {
  const above = maps.map((map) => {
    const mean = map.flat().reduce((sum, value) => sum + value, 0) / (map.length * map[0].length);
    return map.map((row) => row.map((value) => Math.max(0, value - mean)));
  });
  const peaks = above.map((map) => {
    const [height, width] = [5 * map.length, 5 * map[0].length];
    let peak = 0;
    upsample(map, width, height, [0, 0, 1, 1], (_, value) => (peak = Math.max(peak, value)));
    return peak;
  });
  const faintest = FAINT * Math.max(...peaks);
  return above.map((map, at) => map.map((row) => row.map((value) => value / Math.max(peaks[at], faintest, 1e-12))));
}

/** A photo and two canvases over it, which take turns so that one heat map fades into the next. */
export class Overlay {
  private pixels: Uint8ClampedArray | null = null;
  private readonly canvases = [document.createElement("canvas"), document.createElement("canvas")];
  private upper = 0;

  constructor(private readonly root: HTMLElement, private readonly photo: HTMLImageElement) {
    for (const canvas of this.canvases) {
      canvas.setAttribute("aria-hidden", "true"); // the legend says the same in words
      root.append(canvas);
    }
    photo.addEventListener("load", () => this.reset());
    this.reset();
  }

  /** The photo darkened but for where `map` is high; without a map, the photo alone. */
  show(map: Grid | null, frame: Frame = [0, 0, 1, 1]): void {
    if (!map || !this.readPhoto()) {
      for (const canvas of this.canvases) canvas.classList.remove("visible");
      return;
    }
    const below = this.canvases[this.upper], canvas = this.canvases[(this.upper = 1 - this.upper)];
    this.draw(canvas, map, frame);
    this.root.append(canvas); // on top
    void canvas.offsetWidth; // so that it fades in from nothing
    canvas.classList.add("visible");
    setTimeout(() => { if (this.canvases[this.upper] === canvas) below.classList.remove("visible"); }, 260);
  }

  private reset(): void {
    this.pixels = null;
    this.show(null);
    if (this.photo.naturalWidth) this.root.style.setProperty("--ratio", String(this.photo.naturalWidth / this.photo.naturalHeight));
  }

  private readPhoto(): boolean {
    if (this.pixels) return true;
    const { naturalWidth: width, naturalHeight: height } = this.photo;
    if (!this.photo.complete || !width) return false;
    const scale = Math.min(1, LONGEST / Math.max(width, height));
    for (const canvas of this.canvases) {
      canvas.width = Math.max(1, Math.round(width * scale));
      canvas.height = Math.max(1, Math.round(height * scale));
    }
    const [{ width: across, height: down }] = this.canvases, context = contextOf(this.canvases[0]);
    context.fillStyle = "#fff";
    context.fillRect(0, 0, across, down);
    context.drawImage(this.photo, 0, 0, across, down);
    this.pixels = context.getImageData(0, 0, across, down).data;
    return true;
  }

  private draw(canvas: HTMLCanvasElement, map: Grid, frame: Frame): void {
    const { width, height } = canvas, pixels = this.pixels!, context = contextOf(canvas);
    const image = context.createImageData(width, height), output = image.data;
    upsample(map, width, height, frame, (index, value) => {
      const level = Math.max(0, Math.min(255, Math.round(255 * value))), at = 4 * index;
      const { alpha, colour } = COLOUR_MAP[level], saturation = Math.min(1, (COLOUR * level) / 255);
      const grey = 0.299 * pixels[at] + 0.587 * pixels[at + 1] + 0.114 * pixels[at + 2];
      for (let channel = 0; channel < 3; channel++) {
        const photo = grey + saturation * (pixels[at + channel] - grey);
        output[at + channel] = photo + alpha * (colour[channel] - photo);
      }
      output[at + 3] = 255;
    });
    context.putImageData(image, 0, 0);
  }
}

function contextOf(canvas: HTMLCanvasElement): CanvasRenderingContext2D {
  return canvas.getContext("2d", { willReadFrequently: true })!;
}

/** A map's smoothed value at every pixel, row by row; 0 outside the frame. */
function upsample(map: Grid, width: number, height: number, frame: Frame, use: (index: number, value: number) => void): void {
  const [left, top, right, bottom] = frame;
  const across = gaussianWeights(map[0].length, left, right, width), down = gaussianWeights(map.length, top, bottom, height);
  for (let y = 0, index = 0; y < height; y++) {
    const rowWeights = down[y];
    const line = rowWeights && map[0].map((_, x) => rowWeights.reduce((sum, weight, row) => sum + weight * map[row][x], 0));
    for (let x = 0; x < width; x++, index++) {
      let value = 0;
      const weights = across[x];
      if (line && weights) for (let i = 0; i < weights.length; i++) value += weights[i] * line[i];
      use(index, value);
    }
  }
}

/** The weight of each grid cell for each pixel, as a Gaussian of the distance; null outside the frame. */
function gaussianWeights(cells: number, start: number, end: number, pixels: number): (number[] | null)[] {
  return Array.from({ length: pixels }, (_, pixel) => {
    const share = ((pixel + 0.5) / pixels - start) / (end - start);
    if (share < 0 || share > 1) return null;
    const position = share * cells - 0.5;
    const weights = Array.from({ length: cells }, (_, cell) => Math.exp(-0.5 * ((position - cell) / SPREAD) ** 2));
    const sum = weights.reduce((total, value) => total + value, 0);
    return weights.map((value) => value / sum);
  });
}
