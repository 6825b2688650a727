// The messages between the page and its worker.

import type { ModelUrls } from "./model";
import type { CaptionResult, Frame, ModelInfo, DecodingOptions, Word } from "./types";

export type ToWorker =
  | { kind: "load"; urls: ModelUrls }
  | { kind: "caption"; id: number; file: Blob; options: DecodingOptions | null }
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
