// The exported model (docs/export.md): fetched once, cached for offline use, run by ONNX Runtime.

import * as ort from "onnxruntime-web/wasm";
import { Confidence, type ConfidenceFile } from "./confidence";
import type { Preprocess } from "./resample";
import type { Decoder, StepOutput } from "./search";
import type { Tokenizer } from "./tokens";

type Tensors = Record<string, [type: string, shape: (number | string)[]]>;

export interface Manifest {
  format: string;
  precision: string;
  encoder: string;
  decoder: string;
  parameters: number;
  weights: string; // SHA-256 of model.safetensors
  licence: string;
  preprocess: Preprocess;
  grid: [number, number];
  decoding: { beam: number; length_penalty: number; max_length: number; min_length: number; no_repeat_ngram: number; no_repeat_words?: boolean; allow_unknown: boolean };
  word_groups?: number[]; // with no_repeat_words
  graphs: Record<"encoder" | "start" | "step", { bytes: number; sha256: string; inputs: Tensors; outputs: Tensors; external_data?: string[] }>;
  tokenizer: Tokenizer;
}

export interface ModelUrls {
  model: string; // the folder of the exported model
  runtimeScript: string; // ONNX Runtime's script, from which it also starts its threads
  runtime: string; // its WebAssembly, gzipped
  runtimeBytes: number;
}

export type Progress = (done: number, total: number) => void;

const FORMAT = "sightline-onnx-1", CACHE = "sightline-model", WEIGHTS = "model.safetensors";

export class Model {
  private constructor(
    readonly manifest: Manifest,
    readonly confidence: Confidence | null,
    private readonly sessions: Record<"encoder" | "start" | "step", ort.InferenceSession>,
    readonly bytes: number, // of all files that were fetched for it
  ) {}

  static async load(urls: ModelUrls, progress: Progress, threads = defaultThreads()): Promise<Model> {
    const cache = await openCache();
    const manifestFile = await fetchJson(`${urls.model}sightline.json`, cache), manifest = manifestFile.content as Manifest;
    if (manifest.format !== FORMAT) throw new Error(`the model has the format “${manifest.format}”, this program reads “${FORMAT}”: export it again`);
    const calibration = fetchJson(`${urls.model}confidence.json`, cache).catch(() => null);
    const names = ["encoder", "start", "step"] as const, files = new ModelFiles(urls.model, cache, progress);
    const external = names.some((name) => manifest.graphs[name].external_data?.length);
    const [runtime, weights, ...graphs] = await Promise.all([
      files.fetchBytes(urls.runtime, urls.runtimeBytes).then(gunzip),
      external ? files.fetch(WEIGHTS, manifest.weights) : null,
      ...names.map((name) => files.fetch(`${name}.onnx`, manifest.graphs[name].sha256, manifest.graphs[name].bytes)),
    ]);
    files.deleteOld().catch(() => {});
    ort.env.wasm.wasmBinary = runtime;
    ort.env.wasm.wasmPaths = { mjs: urls.runtimeScript };
    ort.env.wasm.numThreads = threads;
    ort.env.logLevel = "error";
    const options: ort.InferenceSession.SessionOptions = { executionProviders: ["wasm"], logSeverityLevel: 3 };
    if (weights) options.externalData = [{ path: WEIGHTS, data: weights }];
    const sessions: Partial<Record<(typeof names)[number], ort.InferenceSession>> = {};
    for (const [index, name] of names.entries()) sessions[name] = await ort.InferenceSession.create(graphs[index], options);
    const confidenceFile = await calibration, confidence = confidenceFile && new Confidence(confidenceFile.content as ConfidenceFile);
    const bytes = [manifestFile, confidenceFile, weights, ...graphs].reduce((sum, file) => sum + (file?.length ?? 0), 0);
    return new Model(manifest, confidence, sessions as Required<typeof sessions>, bytes);
  }

  async encode(pixels: Float32Array): Promise<Record<string, ort.Tensor>> {
    const { size } = this.manifest.preprocess;
    return this.sessions.encoder.run({ pixels: new ort.Tensor("float32", pixels, [1, 3, size, size]) }, ["grid", "pooled"]);
  }

  async start(features: Record<string, ort.Tensor>): Promise<StepDecoder> {
    const inputs = Object.fromEntries(Object.keys(this.manifest.graphs.start.inputs).map((name) => [name, features[name]]));
    return new StepDecoder(this.sessions.step, this.manifest, await this.sessions.start.run(inputs));
  }
}

/** The `step` graph and the state of one photo's captions. */
class StepDecoder implements Decoder {
  readonly vocabulary: number;
  private readonly photo: Record<string, ort.Tensor> = {};
  private beam: Record<string, ort.Tensor> = {};
  private readonly wanted: string[];

  constructor(private readonly session: ort.InferenceSession, manifest: Manifest, state: Record<string, ort.Tensor>) {
    this.vocabulary = manifest.tokenizer.tokens.length;
    for (const [name, value] of Object.entries(state)) (name.startsWith("photo.") ? this.photo : this.beam)[name] = value;
    const outputs = Object.keys(manifest.graphs.step.outputs);
    this.wanted = outputs.filter((name) => name.startsWith("next.") || ["logits", "attention", "gate"].includes(name));
  }

  async step(tokens: number[]): Promise<StepOutput> {
    const token = new ort.Tensor("int64", BigInt64Array.from(tokens, BigInt), [tokens.length]);
    const found = await this.session.run({ token, ...this.photo, ...this.beam }, this.wanted);
    this.beam = Object.fromEntries(Object.keys(this.beam).map((name) => [name, found[name.replace("beam.", "next.")]]));
    const numbers = (name: string) => found[name]?.data as Float32Array | undefined;
    return { logits: numbers("logits")!, attention: numbers("attention"), gate: numbers("gate") };
  }

  reorder(rows: number[]): void {
    for (const [name, value] of Object.entries(this.beam)) {
      const data = value.data as Float32Array, size = data.length / value.dims[0];
      const moved = new Float32Array(rows.length * size);
      rows.forEach((row, index) => moved.set(data.subarray(row * size, (row + 1) * size), index * size));
      this.beam[name] = new ort.Tensor("float32", moved, [rows.length, ...value.dims.slice(1)]);
    }
  }
}

// -- files -----------------------------------------------------------------------------------------------------------

/** The cache for offline use; null where the browser has none (plain http from another machine). */
async function openCache(): Promise<Cache | null> {
  try {
    return await caches.open(CACHE);
  } catch {
    return null;
  }
}

/** One core is left to the page: threads that wait for each other on a busy machine are slower than one alone. */
function defaultThreads(): number {
  return globalThis.crossOriginIsolated ? Math.max(1, Math.min(4, (navigator.hardwareConcurrency || 1) - 1)) : 1;
}

/** In Node the files of a package have file: addresses, which fetch() refuses. */
async function get(address: string): Promise<Response> {
  if (!address.startsWith("file:")) return fetch(address, { cache: "no-cache" });
  const { readFile } = (globalThis as any).process.getBuiltinModule("node:fs/promises");
  const data: Uint8Array = await readFile(new URL(address));
  return new Response(data as BodyInit, { headers: { "Content-Length": String(data.length) } });
}

const nameOf = (address: string) => address.split("/").pop();

interface JsonFile {
  content: unknown;
  length: number; // in bytes
}

/** From the network if it answers, so that a new model is noticed; otherwise from the cache. */
async function fetchJson(address: string, cache: Cache | null): Promise<JsonFile> {
  try {
    const answer = await get(address);
    if (answer.ok) {
      await cache?.put(address, answer.clone()).catch(() => {});
      return await parse(answer);
    }
    if (answer.status === 404) await cache?.delete(address); // the server no longer has it
  } catch {
    /* offline */
  }
  const cached = await cache?.match(address);
  if (!cached) throw new Error(`${nameOf(address)} could not be fetched`);
  return parse(cached);
}

async function parse(answer: Response): Promise<JsonFile> {
  const data = await answer.arrayBuffer();
  return { content: JSON.parse(new TextDecoder().decode(data)), length: data.byteLength };
}

/** The files of one model: fetched once, checked by their hashes, and kept in the cache under them. */
class ModelFiles {
  private readonly wanted = new Set<string>();
  private done = 0;
  private total = 0;

  constructor(private readonly folder: string, private readonly cache: Cache | null, private readonly progress: Progress) {}

  async fetch(name: string, sha256: string, bytes?: number): Promise<Uint8Array> {
    const address = this.folder + name, key = `${address}?${sha256}`;
    this.wanted.add(key);
    const cached = await this.cache?.match(key);
    const data = cached ? new Uint8Array(await cached.arrayBuffer()) : await this.fetchBytes(address, bytes);
    if (cached) return data;
    if (!(await hasHash(data, sha256)) || data.length !== (bytes ?? data.length)) throw new Error(`${name} is not the file that sightline.json names: load the page again`);
    await this.cache?.put(key, new Response(data as BodyInit)).catch(() => {}); // no space left: not available offline
    return data;
  }

  /** `bytes` is its size, for the progress; otherwise the server says it. */
  async fetchBytes(address: string, bytes?: number): Promise<Uint8Array> {
    if (bytes) this.total += bytes;
    const answer = await get(address).catch(() => null);
    if (!answer?.ok || !answer.body) throw new Error(`${nameOf(address)} could not be fetched${answer ? ` (${answer.status})` : ""}`);
    if (!bytes) this.total += Number(answer.headers.get("Content-Length"));
    const parts: Uint8Array[] = [], reader = answer.body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      parts.push(part.value);
      this.progress((this.done += part.value.length), Math.max(this.done, this.total));
    }
    return concatenate(parts);
  }

  /** Delete the files of earlier models. */
  async deleteOld(): Promise<void> {
    for (const { url } of (await this.cache?.keys()) ?? []) {
      if (url.startsWith(this.folder) && url.includes("?") && !this.wanted.has(url)) await this.cache?.delete(url);
    }
  }
}

function concatenate(parts: Uint8Array[]): Uint8Array {
  const joined = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    joined.set(part, at);
    at += part.length;
  }
  return joined;
}

/** Gunzipped, unless the server already did that. */
async function gunzip(data: Uint8Array): Promise<ArrayBuffer> {
  if (data[0] !== 0x1f || data[1] !== 0x8b) return data.buffer as ArrayBuffer;
  const stream = new Blob([data as BlobPart]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

async function hasHash(data: Uint8Array, expected: string): Promise<boolean> {
  if (!crypto.subtle) return true; // only where the page is secure
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data as BufferSource));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("") === expected;
}
