// The npm package: the page's captioner for other programs, in browsers and in Node. Plain JavaScript, because pack.mjs
// copies it as it is and only replaces __RUNTIME__ by the names and the size of ONNX Runtime's files.

import { Captioner } from "./captioner.js";

const RUNTIME = __RUNTIME__;

export async function load(options = {}) {
  const base = globalThis.document?.baseURI ?? globalThis.location?.href ?? import.meta.url;
  const folder = (given, name) => new URL(String(given ?? new URL(name, import.meta.url)).replace(/\/?$/, "/"), base).href;
  const model = folder(options.model, "./model/"), runtime = folder(options.runtime, "./runtime/");
  const urls = { model, runtimeScript: runtime + RUNTIME.script, runtime: runtime + RUNTIME.binary, runtimeBytes: RUNTIME.bytes };
  const captioner = await Captioner.load(urls, options.onProgress ?? (() => {}), options.threads);
  let queue = Promise.resolve();
  return {
    caption(photo, chosen) {
      const answer = queue.then(() => captioner.caption(photo, chosen));
      queue = answer.catch(() => {});
      return answer;
    },
  };
}
