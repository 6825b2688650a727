// What the page and its worker say to each other.

import type { Places } from "./model";
import type { Grid } from "./light";

export interface Word {
  text: string;
  probability: number;
  confidence: number; // calibrated where the model was, else the probability
  light: Grid | null; // where it looked, scaled to be drawn
  attention: Grid | null; // the same, as the model gave it
  gate: number | null;
  runners: { text: string; probability: number }[];
}

export interface Told {
  text: string;
  sentence: string;
  words: Word[];
  confidence: number;
  calibrated: boolean;
  unsure: boolean;
  ood_score: number | null;
  certainty: string;
  finished: boolean;
  others: { text: string; confidence: number }[];
  frame: number[];
  seconds: { photo: number; encoder: number; words: number };
}

export interface About {
  encoder: string;
  decoder: string;
  parameters: number;
  precision: string;
  weights: string;
  licence: string;
  beam: number;
  megabytes: number;
  threads: number;
  calibrated: boolean;
}

export interface Wish {
  beam: number;
  temperature: number; // 0: the best caption; above: one drawn
}

export type ToWorker =
  | { kind: "load"; places: Places }
  | { kind: "caption"; id: number; file: Blob; wish: Wish | null }
  | { kind: "pixels"; id: number; file: Blob };

export type FromWorker =
  | { kind: "progress"; done: number; whole: number }
  | { kind: "ready"; about: About }
  | { kind: "broken"; reason: string }
  | { kind: "live"; id: number; words: Word[]; frame: number[] }
  | { kind: "told"; id: number; told: Told }
  | { kind: "square"; id: number; square: Uint8ClampedArray }
  | { kind: "failed"; id: number; reason: string };
