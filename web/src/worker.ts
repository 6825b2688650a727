// Everything that takes time, off the page's thread: load the model, see a photo, find the words.

import { Confidence } from "./confidence";
import { scaled, type Grid } from "./light";
import type { FromWorker, Told, ToWorker, Wish, Word } from "./messages";
import { Model, type Places } from "./model";
import { PhotoError, see, type Seen } from "./photo";
import { draw, search, type Hypothesis } from "./search";
import { readable, wordsOf } from "./tokens";

const OTHERS = 5;

let loading: Promise<Model> | null = null;
let current = 0; // the photo asked for last; any other is given up
let queue: Promise<void> = Promise.resolve();

class Stopped extends Error {}

self.addEventListener("message", ({ data }: MessageEvent<ToWorker>) => {
  if (data.kind === "load") loading = load(data.places);
  if (data.kind === "caption") {
    current = data.id;
    queue = queue.then(() => answer(data.id, () => caption(data.id, data.file, data.wish)));
  }
  if (data.kind === "pixels") {
    queue = queue.then(() => answer(data.id, async () => {
      const { square } = await see(data.file, (await loading!).manifest.preprocess);
      return { kind: "square", id: data.id, square };
    }));
  }
});

async function load(places: Places): Promise<Model> {
  try {
    const model = await Model.load(places, (done, whole) => post({ kind: "progress", done, whole }));
    const { manifest, threads } = model, { encoder, decoder, parameters, precision, weights, licence } = manifest;
    await warmUp(model);
    const bytes = Object.values(manifest.graphs).reduce((sum, graph) => sum + graph.bytes, 0);
    post({
      kind: "ready",
      about: {
        encoder, decoder, parameters, precision, weights, licence, threads,
        beam: manifest.decoding.beam, megabytes: bytes / 1e6, calibrated: model.confidence !== null,
      },
    });
    return model;
  } catch (error) {
    post({ kind: "broken", reason: reasonOf(error) });
    throw error;
  }
}

/** The first run of a graph sets things up; no photo should wait for that. */
async function warmUp(model: Model): Promise<void> {
  const { size } = model.manifest.preprocess;
  const steps = await model.start(await model.encode(new Float32Array(3 * size * size)));
  await steps.step([1]);
}

async function answer(id: number, work: () => Promise<FromWorker>): Promise<void> {
  try {
    post(await work());
  } catch (error) {
    if (!(error instanceof Stopped)) post({ kind: "failed", id, reason: reasonOf(error) });
  }
}

async function caption(id: number, file: Blob, wish: Wish | null): Promise<FromWorker> {
  const model = await loading!, { manifest } = model;
  const going = async () => { // lets newer messages in
    await new Promise((done) => setTimeout(done));
    if (current !== id) throw new Stopped();
  };
  await going();
  const began = performance.now();
  const seen = await see(file, manifest.preprocess);
  await going();
  const saw = performance.now();
  const features = await model.encode(seen.pixels);
  const steps = await model.start(features);
  const encoded = performance.now();
  const live = async (part: Hypothesis) => {
    await going();
    post({ kind: "live", id, words: lit(wordsFrom(part, model)), frame: seen.frame });
  };
  const options = { ...manifest.decoding, temperature: 0, ...wish };
  const found = options.temperature > 0
    ? [await draw(steps, options, Math.random, live)]
    : await search(steps, options, Math.min(OTHERS, options.beam), live);
  const told = tell(found, model, seen, features.pooled.data as Float32Array);
  told.seconds = { photo: (saw - began) / 1000, encoder: (encoded - saw) / 1000, words: (performance.now() - encoded) / 1000 };
  return { kind: "told", id, told };
}

function wordsFrom(found: Hypothesis, { manifest }: Model): Word[] {
  const [rows, columns] = manifest.grid, { tokens } = manifest.tokenizer;
  return wordsOf(found.tokens, manifest.tokenizer).map(({ text, places }) => {
    const probability = Math.exp(places.reduce((sum, place) => sum + found.logProbs[place], 0));
    const maps = places.flatMap((place) => found.attention[place] ?? []), gates = places.flatMap((place) => found.gate[place] ?? []);
    return {
      text, probability, confidence: probability, light: null,
      attention: maps.length ? gridOf(maps, rows, columns) : null,
      gate: gates.length ? gates.reduce((sum, gate) => sum + gate, 0) / gates.length : null,
      runners: found.runners[places[0]].map((other) => ({ text: readable(tokens[other.token]), probability: other.probability })),
    };
  });
}

function gridOf(maps: Float32Array[], rows: number, columns: number): Grid {
  return Array.from({ length: rows }, (_, y) => Array.from({ length: columns }, (_, x) =>
    maps.reduce((sum, map) => sum + map[y * columns + x], 0) / maps.length));
}

function lit(words: Word[]): Word[] {
  if (!words.length || words.some((word) => !word.attention)) return words;
  const lights = scaled(words.map((word) => word.attention!));
  return words.map((word, place) => ({ ...word, light: lights[place] }));
}

function tell(found: Hypothesis[], model: Model, seen: Seen, pooled: Float32Array): Told {
  const ood_score = model.confidence?.ood_score(pooled) ?? null;
  const [best, ...others] = found.map((hypothesis) => judged(hypothesis, wordsFrom(hypothesis, model), model.confidence, ood_score));
  return {
    ...best, words: lit(best.words), ood_score, frame: seen.frame, seconds: { photo: 0, encoder: 0, words: 0 },
    others: others.map(({ text, confidence }) => ({ text, confidence })),
  };
}

type Judged = Pick<Told, "text" | "sentence" | "words" | "confidence" | "calibrated" | "unsure" | "certainty" | "finished">;

/** As `Caption.sentence` and `Caption.certainty` in src/sightline/types.py. */
function judged(found: Hypothesis, words: Word[], confidence: Confidence | null, ood_score: number | null): Judged {
  const score = found.logProbs.reduce((sum, value) => sum + value, 0), { finished } = found;
  const likelihood = Math.exp(score / Math.max(1, words.length + Number(finished)));
  const sure = confidence?.judge(words, likelihood, ood_score!);
  const text = words.map((word) => word.text).join(" "), bare = text.replace(/^[ .]+|[ .]+$/g, "");
  const chance = sure?.caption ?? likelihood, unsure = sure?.unsure ?? false;
  let certainty = `${Math.round(100 * chance)}% confidence${sure ? "" : ", uncalibrated"}`;
  if (unsure) certainty = ood_score! > 1 ? "unsure: unlike the photos it learnt from" : `unsure: ${certainty}`;
  if (!finished) certainty += ", cut at the greatest length";
  const sentence = !bare ? "" : unsure ? `unsure: ${bare}.` : `${bare[0].toUpperCase()}${bare.slice(1)}.`;
  return {
    text, sentence, confidence: chance, calibrated: Boolean(sure), unsure, certainty, finished,
    words: words.map((word, place) => ({ ...word, confidence: sure?.words[place] ?? word.probability })),
  };
}

function reasonOf(error: unknown): string {
  if (error instanceof PhotoError) return error.message;
  return error instanceof Error ? error.message || error.name : String(error);
}

function post(message: FromWorker): void {
  self.postMessage(message);
}
