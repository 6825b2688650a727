// From a photo to its caption: prepare, encode, decode, finish. The page's worker and the npm package both run this.

import { levelOf, type Confidence, type PhotoScores } from "./confidence";
import { scaled } from "./heatmap";
import { Model, type ModelUrls, type Progress } from "./model";
import type { Captioner as PublishedCaptioner } from "./package";
import { prepare, type PreparedPhoto } from "./photo";
import { sample, search, type Hypothesis } from "./search";
import { readable, wordsOf } from "./tokens";
import type { CaptionResult, DecodingOptions, Frame, Grid, ModelInfo, Pixels, Word } from "./types";

const CANDIDATES = 5;

export interface Hooks {
  onPartial?: (words: Word[], frame: Frame) => void; // the words so far
  checkWanted?: () => Promise<void>; // called between the stages: throws where the caption is no longer wanted
}

export class Captioner implements PublishedCaptioner {
  private constructor(private readonly model: Model) {}

  static async load(urls: ModelUrls, progress: Progress, threads?: number): Promise<Captioner> {
    const model = await Model.load(urls, progress, threads), { size } = model.manifest.preprocess;
    // The first run of a graph allocates its buffers; no photo should wait for that.
    const decoder = await model.start(await model.encode(new Float32Array(3 * size * size)));
    await decoder.step([1]);
    return new Captioner(model);
  }

  get info(): ModelInfo {
    const { parameters, decoding } = this.model.manifest;
    const description = `${(parameters / 1e6).toFixed(1)} million parameters, ${(this.model.bytes / 1e6).toFixed(1)} MB, computed in your browser with ONNX Runtime.`;
    return { beam: decoding.beam, description };
  }

  prepare(photo: Blob | Pixels): Promise<PreparedPhoto> {
    return prepare(photo, this.model.manifest.preprocess);
  }

  async caption(given: Blob | Pixels, chosen: Partial<DecodingOptions> | null = null, hooks: Hooks = {}): Promise<CaptionResult> {
    const { model } = this, began = performance.now();
    await hooks.checkWanted?.();
    const photo = await this.prepare(given);
    await hooks.checkWanted?.();
    const prepared = performance.now();
    const features = await model.encode(photo.pixels);
    const decoder = await model.start(features);
    const encoded = performance.now();
    const onPartial = async (hypothesis: Hypothesis) => {
      await hooks.checkWanted?.();
      hooks.onPartial?.(withHeatmaps(wordsFrom(hypothesis, model)), photo.frame);
    };
    const { decoding, word_groups } = model.manifest;
    const options = { ...decoding, word_groups, temperature: 0, ...chosen };
    const found = options.temperature > 0
      ? [await sample(decoder, options, Math.random, onPartial)]
      : await search(decoder, options, Math.min(CANDIDATES, options.beam), onPartial);
    const result = resultFrom(found, model, photo, features.pooled.data as Float32Array);
    result.seconds = { photo: (prepared - began) / 1000, encoder: (encoded - prepared) / 1000, words: (performance.now() - encoded) / 1000 };
    return result;
  }
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
  const scores = model.confidence?.photo(pooled) ?? null;
  const [best, ...others] = found.map((hypothesis) => captionFrom(hypothesis, wordsFrom(hypothesis, model), model.confidence, scores));
  return {
    ...best, words: withHeatmaps(best.words), ood_score: scores?.ood_score ?? null, frame: photo.frame, seconds: { photo: 0, encoder: 0, words: 0 },
    others: others.map(({ text, confidence }) => ({ text, confidence })),
  };
}

type Caption = Pick<CaptionResult, "text" | "sentence" | "words" | "confidence" | "calibrated" | "unsure" | "level" | "certainty" | "finished">;

/** As `Caption.sentence` and `Caption.certainty` in src/sightline/types.py. */
function captionFrom(hypothesis: Hypothesis, words: Word[], calibration: Confidence | null, scores: PhotoScores | null): Caption {
  const score = hypothesis.logProbs.reduce((sum, value) => sum + value, 0), { finished } = hypothesis;
  const likelihood = Math.exp(score / Math.max(1, words.length + Number(finished)));
  const calibrated = calibration?.calibrate(words, likelihood, scores!);
  const text = words.map((word) => word.text).join(" "), trimmed = text.replace(/^[ .]+|[ .]+$/g, "");
  const confidence = calibrated?.caption ?? likelihood, unsure = calibrated?.unsure ?? false;
  const level = unsure ? "unsure" : calibrated ? levelOf(confidence) : "";
  let certainty = `${Math.round(100 * confidence)}% confidence${calibrated ? "" : ", uncalibrated"}`;
  if (unsure && scores!.ood_score > 1) certainty = "unlike the photos it was trained on";
  if (level) certainty = `${level}: ${certainty}`;
  if (!finished) certainty += ", cut at the greatest length";
  const sentence = !trimmed ? "" : unsure ? `unsure: ${trimmed}.` : `${trimmed[0].toUpperCase()}${trimmed.slice(1)}.`;
  return {
    text, sentence, confidence, calibrated: Boolean(calibrated), unsure, level, certainty, finished,
    words: words.map((word, index) => ({ ...word, confidence: calibrated?.words[index] ?? word.probability })),
  };
}
