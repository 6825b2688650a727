// The npm package: the page's engine for other programs, in browsers and in Node.

import { Captioner as Engine } from "./captioner";
import type { CaptionResult, DecodingOptions, Pixels } from "./types";

export type * from "./types";

declare const __RUNTIME__: { script: string; binary: string; bytes: number };

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
export async function load(options: LoadOptions = {}): Promise<Captioner> {
  const base = globalThis.document?.baseURI ?? globalThis.location?.href ?? import.meta.url;
  const folder = (given: string | URL | undefined, own: string) => new URL(String(given ?? new URL(own, import.meta.url)).replace(/\/?$/, "/"), base).href;
  const model = folder(options.model, "./model/"), runtime = folder(options.runtime, "./runtime/");
  const urls = { model, runtimeScript: runtime + __RUNTIME__.script, runtime: runtime + __RUNTIME__.binary, runtimeBytes: __RUNTIME__.bytes };
  const engine = await Engine.load(urls, options.onProgress ?? (() => {}), options.threads);
  let queue: Promise<unknown> = Promise.resolve();
  return {
    caption(photo, chosen) {
      const answer = queue.then(() => engine.caption(photo, chosen));
      queue = answer.catch(() => {});
      return answer;
    },
  };
}
