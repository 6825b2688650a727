// Everything that takes time, off the page's thread: load the model, caption one photo after the other.

import { Captioner } from "./captioner";
import type { FromWorker, ToWorker } from "./messages";
import type { ModelUrls } from "./model";
import type { DecodingOptions, Frame, Word } from "./types";

let loading: Promise<Captioner> | null = null;
const dropped = new Set<number>(); // requests whose answer is no longer wanted
let queue: Promise<void> = Promise.resolve();

class Dropped extends Error {}

self.addEventListener("message", ({ data }: MessageEvent<ToWorker>) => {
  if (data.kind === "load") loading = load(data.urls);
  if (data.kind === "caption") {
    queue = queue.then(() => answer(data.id, () => caption(data.id, data.file, data.options)));
  }
  if (data.kind === "drop") dropped.add(data.id);
  if (data.kind === "pixels") {
    queue = queue.then(() => answer(data.id, async () => {
      const { square } = await (await loading!).prepare(data.file);
      return { kind: "square", id: data.id, square };
    }));
  }
});

async function load(urls: ModelUrls): Promise<Captioner> {
  try {
    const captioner = await Captioner.load(urls, (done, total) => post({ kind: "progress", done, total }));
    post({ kind: "ready", info: captioner.info });
    return captioner;
  } catch (error) {
    post({ kind: "broken", reason: reasonOf(error) });
    throw error;
  }
}

async function answer(id: number, work: () => Promise<FromWorker>): Promise<void> {
  try {
    post(await work());
  } catch (error) {
    if (!(error instanceof Dropped)) post({ kind: "failed", id, reason: reasonOf(error) });
  } finally {
    dropped.delete(id);
  }
}

async function caption(id: number, file: Blob, chosen: DecodingOptions | null): Promise<FromWorker> {
  const checkWanted = async () => { // lets newer messages in
    await new Promise((done) => setTimeout(done));
    if (dropped.has(id)) throw new Dropped();
  };
  const onPartial = (words: Word[], frame: Frame) => post({ kind: "partial", id, words, frame });
  const result = await (await loading!).caption(file, chosen, { onPartial, checkWanted });
  return { kind: "result", id, result };
}

function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message || error.name : String(error);
}

function post(message: FromWorker): void {
  self.postMessage(message);
}
