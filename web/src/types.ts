// What an engine takes and gives. pack.mjs copies this file as it is: it contains types only and imports nothing.

/** Rows of grid cells, top to bottom. */
export type Grid = number[][];
/** Left, top, right, bottom of what the encoder takes, as shares of the photo. */
export type Frame = number[];

/** A calibrated confidence as a word, as `Caption.level` in src/sightline/types.py; `unsure` is the model's own mark. */
export type Level = "sure" | "likely" | "doubtful" | "unsure";

/** Pixels that are already decoded and upright: RGBA, row by row, as in `ImageData`. */
export interface Pixels {
  data: Uint8ClampedArray | Uint8Array;
  width: number;
  height: number;
}

export interface Word {
  text: string;
  probability: number;
  /** Calibrated where the model is, else the probability. */
  confidence: number;
  /** As the model gave it. */
  attention: Grid | null;
  /** The same, scaled to be drawn. */
  heatmap: Grid | null;
  gate: number | null;
  alternatives: { text: string; probability: number }[];
}

export interface CaptionResult {
  text: string;
  sentence: string;
  words: Word[];
  confidence: number;
  calibrated: boolean;
  unsure: boolean;
  /** "" where the model is not calibrated. */
  level: Level | "";
  ood_score: number | null;
  certainty: string;
  finished: boolean;
  others: { text: string; confidence: number }[];
  frame: Frame;
  seconds: { photo: number; encoder: number; words: number };
}

export interface ModelInfo {
  /** The model's default. */
  beam: number;
  /** One sentence for the foot of the page. */
  description: string;
}

/** `temperature` 0 is beam search, above 0 sampling. */
export interface DecodingOptions {
  beam: number;
  temperature: number;
}
