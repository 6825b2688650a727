// From a map over the grid to light on the photo: the same numbers as src/sightline/explain/maps.py.

export type Grid = number[][]; // rows of the grid

const SPREAD = 0.6; // the Gaussian's standard deviation, in places of the grid
const FAINT = 0.3; // maps weaker than this share of their caption's strongest stay dim
const COLOUR = 2; // half the light is enough to see colours by
const NIGHT = [9, 12, 28], LAMP = [255, 190, 92];
const LONGEST = 720; // pixels of the canvas that is laid over the photo

const SCALE = Array.from({ length: 256 }, (_, level) => { // what is laid over a pixel that got this much light
  const light = level / 255, night = 0.7 * (1 - light) ** 1.25, lamp = 0.22 * light ** 1.5;
  const alpha = lamp + night * (1 - lamp), share = lamp / Math.max(alpha, 1e-9);
  return { alpha, colour: NIGHT.map((dark, channel) => share * LAMP[channel] + (1 - share) * dark) };
});

/** The maps of one caption's words, so that once smoothed they are 0 at their mean and 1 at their peak. */
export function scaled(maps: Grid[]): Grid[] {
  const above = maps.map((map) => {
    const mean = map.flat().reduce((sum, value) => sum + value, 0) / (map.length * map[0].length);
    return map.map((row) => row.map((value) => Math.max(0, value - mean)));
  });
  const peaks = above.map((map) => {
    const [height, width] = [5 * map.length, 5 * map[0].length];
    let most = 0;
    lightOf(map, width, height, [0, 0, 1, 1], (_, value) => (most = Math.max(most, value)));
    return most;
  });
  const faintest = FAINT * Math.max(...peaks);
  return above.map((map, at) => map.map((row) => row.map((value) => value / Math.max(peaks[at], faintest, 1e-12))));
}

/** A photo and two canvases over it, which take turns so that one light fades into the next. */
export class Stage {
  private pixels: Uint8ClampedArray | null = null;
  private readonly canvases = [document.createElement("canvas"), document.createElement("canvas")];
  private upper = 0;

  constructor(private readonly root: HTMLElement, private readonly photo: HTMLImageElement) {
    for (const canvas of this.canvases) {
      canvas.setAttribute("aria-hidden", "true"); // words say the same
      root.append(canvas);
    }
    photo.addEventListener("load", () => this.measure());
    this.measure();
  }

  /** The photo at night, with a warm lamp where the model looked; by day without a map. */
  show(map: Grid | null, seen: number[] = [0, 0, 1, 1]): void {
    if (!map || !this.ready()) {
      for (const canvas of this.canvases) canvas.classList.remove("lit");
      return;
    }
    const below = this.canvases[this.upper], canvas = this.canvases[(this.upper = 1 - this.upper)];
    this.shine(canvas, map, seen);
    this.root.append(canvas); // on top
    void canvas.offsetWidth; // so that it fades in from nothing
    canvas.classList.add("lit");
    setTimeout(() => { if (this.canvases[this.upper] === canvas) below.classList.remove("lit"); }, 260);
  }

  private measure(): void {
    this.pixels = null;
    this.show(null);
    if (this.photo.naturalWidth) this.root.style.setProperty("--ratio", String(this.photo.naturalWidth / this.photo.naturalHeight));
  }

  private ready(): boolean {
    if (this.pixels) return true;
    const { naturalWidth: width, naturalHeight: height } = this.photo;
    if (!this.photo.complete || !width) return false;
    const scale = Math.min(1, LONGEST / Math.max(width, height));
    for (const canvas of this.canvases) {
      canvas.width = Math.max(1, Math.round(width * scale));
      canvas.height = Math.max(1, Math.round(height * scale));
    }
    const [{ width: across, height: down }] = this.canvases, pen = pencil(this.canvases[0]);
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, across, down);
    pen.drawImage(this.photo, 0, 0, across, down);
    this.pixels = pen.getImageData(0, 0, across, down).data;
    return true;
  }

  private shine(canvas: HTMLCanvasElement, map: Grid, seen: number[]): void {
    const { width, height } = canvas, pixels = this.pixels!, pen = pencil(canvas);
    const picture = pen.createImageData(width, height), shown = picture.data;
    lightOf(map, width, height, seen, (place, value) => {
      const level = Math.max(0, Math.min(255, Math.round(255 * value))), at = 4 * place;
      const { alpha, colour } = SCALE[level], vivid = Math.min(1, (COLOUR * level) / 255);
      const grey = 0.299 * pixels[at] + 0.587 * pixels[at + 1] + 0.114 * pixels[at + 2];
      for (let channel = 0; channel < 3; channel++) {
        const own = grey + vivid * (pixels[at + channel] - grey);
        shown[at + channel] = own + alpha * (colour[channel] - own);
      }
      shown[at + 3] = 255;
    });
    pen.putImageData(picture, 0, 0);
  }
}

function pencil(canvas: HTMLCanvasElement): CanvasRenderingContext2D {
  return canvas.getContext("2d", { willReadFrequently: true })!;
}

/** A map's smoothed value at every pixel, row by row; 0 outside what the model saw. */
function lightOf(map: Grid, width: number, height: number, seen: number[], use: (place: number, value: number) => void): void {
  const [left, top, right, bottom] = seen;
  const across = spread(map[0].length, left, right, width), down = spread(map.length, top, bottom, height);
  for (let y = 0, place = 0; y < height; y++) {
    const weights = down[y];
    const line = weights && map[0].map((_, x) => weights.reduce((sum, weight, row) => sum + weight * map[row][x], 0));
    for (let x = 0; x < width; x++, place++) {
      let value = 0;
      const own = across[x];
      if (line && own) for (let i = 0; i < own.length; i++) value += own[i] * line[i];
      use(place, value);
    }
  }
}

/** How much each place of the grid counts for each pixel; null outside. */
function spread(places: number, start: number, end: number, pixels: number): (number[] | null)[] {
  return Array.from({ length: pixels }, (_, pixel) => {
    const share = ((pixel + 0.5) / pixels - start) / (end - start);
    if (share < 0 || share > 1) return null;
    const position = share * places - 0.5;
    const all = Array.from({ length: places }, (_, place) => Math.exp(-0.5 * ((position - place) / SPREAD) ** 2));
    const sum = all.reduce((total, value) => total + value, 0);
    return all.map((value) => value / sum);
  });
}
