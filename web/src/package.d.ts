// What the npm package declares. Its code is package.js.

import type { CaptionResult, DecodingOptions, Pixels } from "./types";

export type * from "./types";

export interface LoadOptions {
  /** The folder of an exported model; the package's own model by default. */
  model?: string | URL;
  /** The folder with ONNX Runtime's two files; the package's own by default. */
  runtime?: string | URL;
  /** Threads that compute; by default one, or up to four where the page is cross-origin isolated. */
  threads?: number;
  onProgress?: (bytes: number, total: number) => void;
}

export interface Captioner {
  /** A caption of a photo: a file in the browser, decoded pixels anywhere. Options that are left out are the model's. */
  caption(photo: Blob | Pixels, options?: Partial<DecodingOptions>): Promise<CaptionResult>;
}

/** Loads a model, once; the captioner takes one photo after the other. */
export declare function load(options?: LoadOptions): Promise<Captioner>;
