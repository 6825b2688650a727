// The page's side of the worker: ask, and be told.

import type { About, FromWorker, Told, ToWorker, Wish, Word } from "./messages";

declare const __RUNTIME__: { glue: string; binary: string; bytes: number };

type Live = (words: Word[], frame: number[]) => void;

interface Asked {
  live?: Live;
  resolve: (value: any) => void;
  reject: (reason: Error) => void;
}

export class Engine {
  readonly ready: Promise<About>;
  private readonly worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
  private readonly asked = new Map<number, Asked>();
  private last = 0;

  constructor(progress: (done: number, whole: number) => void) {
    const here = document.baseURI;
    this.ready = new Promise((resolve, reject) => {
      this.worker.addEventListener("message", ({ data }: MessageEvent<FromWorker>) => {
        if (data.kind === "progress") progress(data.done, data.whole);
        else if (data.kind === "ready") resolve(data.about);
        else if (data.kind === "broken") reject(new Error(data.reason));
        else this.hear(data);
      });
      this.worker.addEventListener("error", (event) => {
        event.preventDefault();
        reject(new Error(event.message || "this browser is too old for this page"));
      });
    });
    this.ready.catch(() => {});
    this.post({
      kind: "load",
      places: {
        model: new URL("model/", here).href, glue: new URL(__RUNTIME__.glue, here).href,
        runtime: new URL(__RUNTIME__.binary, here).href, runtimeBytes: __RUNTIME__.bytes,
      },
    });
  }

  /** A caption of a photo; the one asked for before is given up. */
  caption(file: Blob, wish: Wish | null, live?: Live): Promise<Told> {
    this.giveUp();
    return this.ask((id) => ({ kind: "caption", id, file, wish }), live);
  }

  /** What the network sees: RGB, row by row. For measuring. */
  square(file: Blob): Promise<Uint8ClampedArray> {
    return this.ask((id) => ({ kind: "pixels", id, file }));
  }

  private giveUp(): void {
    for (const { reject } of this.asked.values()) reject(new Error("another photo came first"));
    this.asked.clear();
  }

  private ask<Answer>(message: (id: number) => ToWorker, live?: Live): Promise<Answer> {
    const id = ++this.last;
    return new Promise((resolve, reject) => {
      this.asked.set(id, { live, resolve, reject });
      this.post(message(id));
    });
  }

  private hear(message: Exclude<FromWorker, { kind: "progress" | "ready" | "broken" }>): void {
    const asked = this.asked.get(message.id);
    if (!asked) return;
    if (message.kind === "live") return asked.live?.(message.words, message.frame);
    this.asked.delete(message.id);
    if (message.kind === "told") asked.resolve(message.told);
    else if (message.kind === "square") asked.resolve(message.square);
    else asked.reject(new Error(message.reason));
  }

  private post(message: ToWorker): void {
    this.worker.postMessage(message);
  }
}
