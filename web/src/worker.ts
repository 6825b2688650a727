// Everything that takes time, off the page's thread: load the model, prepare a photo, encode, decode.

import { levelOf, type Confidence } from "./confidence";
import { scaled, type Grid } from "./heatmap";
import type { CaptionResult, FromWorker, SliderOptions, ToWorker, Word } from "./messages";
import { Model, type ModelUrls } from "./model";
import { PhotoError, prepare, type PreparedPhoto } from "./photo";
import { sample, search, type Hypothesis } from "./search";
import { readable, wordsOf } from "./tokens";

const CANDIDATES = 5;

let loading: Promise<Model> | null = null;
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
      const { square } = await prepare(data.file, (await loading!).manifest.preprocess);
      return { kind: "square", id: data.id, square };
    }));
  }
});

async function load(urls: ModelUrls): Promise<Model> {
  try {
    const model = await Model.load(urls, (done, total) => post({ kind: "progress", done, total }));
    const { manifest } = model;
    await warmUp(model);
    const bytes = Object.values(manifest.graphs).reduce((sum, graph) => sum + graph.bytes, 0);
    const description = `${(manifest.parameters / 1e6).toFixed(1)} million parameters, ${(bytes / 1e6).toFixed(1)} MB, computed in your browser with ONNX Runtime.`;
    post({ kind: "ready", info: { beam: manifest.decoding.beam, description } });
    return model;
  } catch (error) {
    post({ kind: "broken", reason: reasonOf(error) });
    throw error;
  }
}

/** The first run of a graph allocates its buffers; no photo should wait for that. */
async function warmUp(model: Model): Promise<void> {
  const { size } = model.manifest.preprocess;
  const decoder = await model.start(await model.encode(new Float32Array(3 * size * size)));
  await decoder.step([1]);
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

async function caption(id: number, file: Blob, chosen: SliderOptions | null): Promise<FromWorker> {
  const model = await loading!, { manifest } = model;
  const checkWanted = async () => { // lets newer messages in
    await new Promise((done) => setTimeout(done));
    if (dropped.has(id)) throw new Dropped();
  };
  await checkWanted();
  const began = performance.now();
  const photo = await prepare(file, manifest.preprocess);
  await checkWanted();
  const prepared = performance.now();
  const features = await model.encode(photo.pixels);
  const decoder = await model.start(features);
  const encoded = performance.now();
  const onPartial = async (hypothesis: Hypothesis) => {
    await checkWanted();
    post({ kind: "partial", id, words: withHeatmaps(wordsFrom(hypothesis, model)), frame: photo.frame });
  };
  const options = { ...manifest.decoding, temperature: 0, ...chosen };
  const found = options.temperature > 0
    ? [await sample(decoder, options, Math.random, onPartial)]
    : await search(decoder, options, Math.min(CANDIDATES, options.beam), onPartial);
  const result = resultFrom(found, model, photo, features.pooled.data as Float32Array);
  result.seconds = { photo: (prepared - began) / 1000, encoder: (encoded - prepared) / 1000, words: (performance.now() - encoded) / 1000 };
  return { kind: "result", id, result };
}

function wordsFrom(hypothesis: Hypothesis, { manifest }: Model): Word[] {
  const [rows, columns] = manifest.grid, { tokens } = manifest.tokenizer;
  return wordsOf(hypothesis.tokens, manifest.tokenizer).map(({ text, positions }) => {
    const probability = Math.exp(positions.reduce((sum, position) => sum + hypothesis.logProbs[position], 0));
    const maps = positions.flatMap((position) => hypothesis.attention[position] ?? []);
    const gates = positions.flatMap((position) => hypothesis.gate[position] ?? []);
    return {
      text, probability, confidence: probability, heatmap: null,
      attention: maps.length ? meanGrid(maps, rows, columns) : null,
      gate: gates.length ? gates.reduce((sum, gate) => sum + gate, 0) / gates.length : null,
      alternatives: hypothesis.alternatives[positions[0]].map((other) => ({ text: readable(tokens[other.token]), probability: other.probability })),
    };
  });
}

function meanGrid(maps: Float32Array[], rows: number, columns: number): Grid {
  return Array.from({ length: rows }, (_, y) => Array.from({ length: columns }, (_, x) =>
    maps.reduce((sum, map) => sum + map[y * columns + x], 0) / maps.length));
}

function withHeatmaps(words: Word[]): Word[] {
  if (!words.length || words.some((word) => !word.attention)) return words;
  const heatmaps = scaled(words.map((word) => word.attention!));
  return words.map((word, index) => ({ ...word, heatmap: heatmaps[index] }));
}

function resultFrom(found: Hypothesis[], model: Model, photo: PreparedPhoto, pooled: Float32Array): CaptionResult {
  const oodScore = model.confidence?.oodScore(pooled) ?? null;
  const [best, ...others] = found.map((hypothesis) => captionFrom(hypothesis, wordsFrom(hypothesis, model), model.confidence, oodScore));
  return {
    ...best, words: withHeatmaps(best.words), ood_score: oodScore, frame: photo.frame, seconds: { photo: 0, encoder: 0, words: 0 },
    others: others.map(({ text, confidence }) => ({ text, confidence })),
  };
}

type Caption = Pick<CaptionResult, "text" | "sentence" | "words" | "confidence" | "calibrated" | "unsure" | "level" | "certainty" | "finished">;

/** As `Caption.sentence` and `Caption.certainty` in src/sightline/types.py. */
function captionFrom(hypothesis: Hypothesis, words: Word[], calibration: Confidence | null, oodScore: number | null): Caption {
  const score = hypothesis.logProbs.reduce((sum, value) => sum + value, 0), { finished } = hypothesis;
  const likelihood = Math.exp(score / Math.max(1, words.length + Number(finished)));
  const calibrated = calibration?.calibrate(words, likelihood, oodScore!);
  const text = words.map((word) => word.text).join(" "), trimmed = text.replace(/^[ .]+|[ .]+$/g, "");
  const confidence = calibrated?.caption ?? likelihood, unsure = calibrated?.unsure ?? false;
  const level = unsure ? "unsure" : calibrated ? levelOf(confidence) : "";
  let certainty = `${Math.round(100 * confidence)}% confidence${calibrated ? "" : ", uncalibrated"}`;
  if (unsure && oodScore! > 1) certainty = "unlike the photos it was trained on";
  if (level) certainty = `${level}: ${certainty}`;
  if (!finished) certainty += ", cut at the greatest length";
  const sentence = !trimmed ? "" : unsure ? `unsure: ${trimmed}.` : `${trimmed[0].toUpperCase()}${trimmed.slice(1)}.`;
  return {
    text, sentence, confidence, calibrated: Boolean(calibrated), unsure, level, certainty, finished,
    words: words.map((word, index) => ({ ...word, confidence: calibrated?.words[index] ?? word.probability })),
  };
}

function reasonOf(error: unknown): string {
  if (error instanceof PhotoError) return error.message;
  return error instanceof Error ? error.message || error.name : String(error);
}

function post(message: FromWorker): void {
  self.postMessage(message);
}
