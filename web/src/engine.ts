// The two engines that caption a photo for the page: a model in a worker of this browser, or the server.

import { levelOf } from "./confidence";
import type { FromWorker, ToWorker } from "./messages";
import { readable } from "./tokens";
import type { CaptionResult, DecodingOptions, Frame, ModelInfo, Word } from "./types";

declare const __RUNTIME__: { script: string; binary: string; bytes: number };

export type OnPartial = (words: Word[], frame: Frame) => void;
export type OnProgress = (done: number, total: number) => void;

export interface Engine {
  readonly ready: Promise<ModelInfo>;
  /** A caption of a photo. Once the signal is aborted, the promise is rejected with its reason. */
  caption(file: Blob, options: DecodingOptions | null, onPartial?: OnPartial, signal?: AbortSignal): Promise<CaptionResult>;
}

// -- in the browser --------------------------------------------------------------------------------------------------

interface Pending {
  onPartial?: OnPartial;
  resolve: (value: any) => void;
  reject: (reason: Error) => void;
}

export class BrowserEngine implements Engine {
  readonly ready: Promise<ModelInfo>;
  private readonly worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
  private readonly pending = new Map<number, Pending>();
  private lastId = 0;

  constructor(onProgress: OnProgress) {
    const base = document.baseURI;
    this.ready = new Promise((resolve, reject) => {
      this.worker.addEventListener("message", ({ data }: MessageEvent<FromWorker>) => {
        if (data.kind === "progress") onProgress(data.done, data.total);
        else if (data.kind === "ready") resolve(data.info);
        else if (data.kind === "broken") reject(new Error(data.reason));
        else this.receive(data);
      });
      this.worker.addEventListener("error", (event) => {
        event.preventDefault();
        reject(new Error(event.message || "this browser is too old for this page"));
      });
    });
    this.ready.catch(() => {});
    this.post({
      kind: "load",
      urls: {
        model: new URL("model/", base).href, runtimeScript: new URL(__RUNTIME__.script, base).href,
        runtime: new URL(__RUNTIME__.binary, base).href, runtimeBytes: __RUNTIME__.bytes,
      },
    });
  }

  caption(file: Blob, options: DecodingOptions | null, onPartial?: OnPartial, signal?: AbortSignal): Promise<CaptionResult> {
    return this.request((id) => ({ kind: "caption", id, file, options }), onPartial, signal);
  }

  /** The square that the encoder takes: RGB, row by row. For tests and benchmarks. */
  square(file: Blob): Promise<Uint8ClampedArray> {
    return this.request((id) => ({ kind: "pixels", id, file }));
  }

  private request<Value>(message: (id: number) => ToWorker, onPartial?: OnPartial, signal?: AbortSignal): Promise<Value> {
    const id = ++this.lastId;
    return new Promise((resolve, reject) => {
      signal?.addEventListener("abort", () => {
        if (!this.pending.delete(id)) return; // it has been answered
        this.post({ kind: "drop", id });
        reject(signal.reason);
      });
      this.pending.set(id, { onPartial, resolve, reject });
      this.post(message(id));
    });
  }

  private receive(message: Exclude<FromWorker, { kind: "progress" | "ready" | "broken" }>): void {
    const pending = this.pending.get(message.id);
    if (!pending) return;
    if (message.kind === "partial") return pending.onPartial?.(message.words, message.frame);
    this.pending.delete(message.id);
    if (message.kind === "result") pending.resolve(message.result);
    else if (message.kind === "square") pending.resolve(message.square);
    else pending.reject(new Error(message.reason));
  }

  private post(message: ToWorker): void {
    this.worker.postMessage(message);
  }
}

// -- on the server ---------------------------------------------------------------------------------------------------

const ATTEMPTS = 3;

interface Health {
  model: string;
  token_required: boolean;
  beam: number;
  limits: { max_bytes: number };
}

export class TokenError extends Error {}

/** POST /v1/explain of the server that this page came from. */
export class ServerEngine implements Engine {
  readonly ready: Promise<ModelInfo>;
  private maxBytes = Infinity;
  tokenRequired = false;

  constructor(private readonly token: () => string, private readonly onBusy: () => void) {
    this.ready = this.readHealth();
    this.ready.catch(() => {});
  }

  async caption(file: Blob, options: DecodingOptions | null, _?: OnPartial, signal?: AbortSignal): Promise<CaptionResult> {
    if (file.size > this.maxBytes) throw new Error(`this photo has ${megabytes(file.size)}; the server takes ${megabytes(this.maxBytes)}: shrink it first`);
    const form = new FormData();
    form.append("photos", file, file instanceof File ? file.name : "photo");
    for (const [name, value] of Object.entries(fieldsOf(options))) form.append(name, String(value));
    for (let attempt = 1; ; attempt++) {
      const response = await this.post(form, signal), content = await response.json();
      if (response.ok) return resultOf(content.explanations[0]);
      if (response.status === 401) throw new TokenError(this.token() ? "this is not the server’s token" : "the server needs a token first");
      if (response.status !== 429 || attempt === ATTEMPTS) throw new Error(withoutName(content.error, file));
      this.onBusy();
      await new Promise((done) => setTimeout(done, 1000 * Math.min(10, Number(response.headers.get("Retry-After")) || 1)));
    }
  }

  private async readHealth(): Promise<ModelInfo> {
    const health = (await (await fetch("healthz")).json()) as Health;
    this.maxBytes = health.limits.max_bytes - 4096; // the form around the photo needs a little
    this.tokenRequired = health.token_required;
    const description = `The photo is sent to this server, whose model is “${health.model}”, stays in its memory while it is captioned, and is not stored.`;
    return { beam: health.beam, description };
  }

  private async post(form: FormData, signal?: AbortSignal): Promise<Response> {
    const headers: Record<string, string> = this.token() ? { Authorization: `Bearer ${this.token()}` } : {};
    try {
      return await fetch("v1/explain", { method: "POST", body: form, headers, signal });
    } catch (error) {
      throw signal?.aborted ? signal.reason : new Error(error instanceof TypeError ? "the server cannot be reached: is it still running?" : String(error));
    }
  }
}

/** The page shows the file's name already. */
function withoutName(reason: string, file: Blob): string {
  return file instanceof File && reason.startsWith(`${file.name} `) ? `this file${reason.slice(file.name.length)}` : reason;
}

const megabytes = (bytes: number) => `${(bytes / 2 ** 20).toFixed(1)} MB`;

function fieldsOf(options: DecodingOptions | null): Record<string, unknown> {
  if (!options) return {};
  if (!options.temperature) return { beam: options.beam };
  return { sample: true, temperature: options.temperature, seed: Math.floor(2 ** 31 * Math.random()) };
}

/** The server's JSON as the page's own type. */
function resultOf(answer: any): CaptionResult {
  return {
    ...answer,
    text: answer.caption,
    level: answer.unsure ? "unsure" : answer.calibrated ? levelOf(answer.confidence) : "",
    ood_score: answer.ood_score ?? null,
    words: answer.words.map((word: any) => ({
      attention: null, ...word, heatmap: word.heat_map ?? null, gate: word.gate ?? null, confidence: word.confidence ?? word.probability,
      alternatives: word.alternatives.map((other: any) => ({ text: readable(other.text), probability: other.probability })),
    })),
    others: (answer.others ?? []).map((other: any) => ({ text: other.caption, confidence: other.confidence })),
    seconds: { photo: 0, encoder: 0, words: 0 },
  };
}
