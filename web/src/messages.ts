// The data that the page, its worker and the server exchange.

import type { Level } from "./confidence";
import type { Frame, Grid } from "./heatmap";
import type { ModelUrls } from "./model";

export interface Word {
  text: string;
  probability: number;
  confidence: number; // calibrated where the model is, else the probability
  attention: Grid | null; // as the model gave it
  heatmap: Grid | null; // the same, scaled to be drawn
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
  level: Level | ""; // "" where the model is not calibrated
  ood_score: number | null;
  certainty: string;
  finished: boolean;
  others: { text: string; confidence: number }[];
  frame: Frame;
  seconds: { photo: number; encoder: number; words: number };
}

export interface ModelInfo {
  beam: number; // the model's default
  description: string; // one sentence for the foot of the page
}

/** What the sliders choose; `temperature` 0 is beam search, above 0 sampling. */
export interface SliderOptions {
  beam: number;
  temperature: number;
}

export type ToWorker =
  | { kind: "load"; urls: ModelUrls }
  | { kind: "caption"; id: number; file: Blob; options: SliderOptions | null }
  | { kind: "drop"; id: number } // its answer is no longer wanted
  | { kind: "pixels"; id: number; file: Blob };

export type FromWorker =
  | { kind: "progress"; done: number; total: number }
  | { kind: "ready"; info: ModelInfo }
  | { kind: "broken"; reason: string }
  | { kind: "partial"; id: number; words: Word[]; frame: Frame }
  | { kind: "result"; id: number; result: CaptionResult }
  | { kind: "square"; id: number; square: Uint8ClampedArray }
  | { kind: "failed"; id: number; reason: string };
