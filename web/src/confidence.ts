// Calibrated confidence of a caption and its words, and the OOD score of a photo: the arithmetic of docs/confidence.md.

import limits from "../../src/sightline/io/levels.json";
import type { Level } from "./types";

export function levelOf(confidence: number): Level {
  const names = Object.keys(limits) as (keyof typeof limits)[]; // from the highest to the lowest
  return names.find((name) => confidence >= limits[name]) ?? names[names.length - 1];
}

export interface ConfidenceFile {
  format: string;
  words: { intercept: number; slope: number; offsets: Record<string, number>; function_words: string[] };
  captions: { intercept: number; words: number; log_probability: number; photo?: string; unsure_below: number };
  photos: { dimension: number; directions: number; mean: string; matrix: string; limit: number };
}

/** What the photo's pooled vector alone says: of its captions, and whether it is like the training photos (up to 1). */
export interface PhotoScores {
  term: number;
  ood_score: number;
}

export interface CalibratedScores {
  words: number[];
  caption: number;
  ood_score: number;
  unsure: boolean;
}

export class Confidence {
  private readonly functionWords: Set<string>;
  private readonly mean: Float32Array;
  private readonly matrix: Float32Array;
  private readonly weights: Float32Array | null;

  constructor(private readonly file: ConfidenceFile) {
    if (file.format !== "sightline-confidence-1") throw new Error(`confidence.json has the unknown format ${file.format}`);
    this.functionWords = new Set(file.words.function_words);
    this.mean = halves(file.photos.mean);
    this.matrix = halves(file.photos.matrix);
    this.weights = file.captions.photo === undefined ? null : halves(file.captions.photo);
  }

  photo(pooled: Float32Array): PhotoScores {
    const term = this.weights?.reduce((sum, weight, index) => sum + weight * pooled[index], 0) ?? 0;
    return { term, ood_score: this.oodScore(pooled) };
  }

  private oodScore(pooled: Float32Array): number {
    const { directions, dimension, limit } = this.file.photos;
    let sum = 0;
    for (let row = 0; row < directions; row++) {
      let projection = 0;
      for (let i = 0; i < dimension; i++) projection += (pooled[i] - this.mean[i]) * this.matrix[row * dimension + i];
      sum += projection * projection;
    }
    return Math.sqrt(sum / directions) / limit;
  }

  calibrate(words: { text: string; probability: number }[], likelihood: number, photo: PhotoScores): CalibratedScores {
    const { intercept, slope, offsets } = this.file.words, captions = this.file.captions;
    const probabilities = words.map(({ text, probability }) => {
      const offset = Object.hasOwn(offsets, text) ? offsets[text] : 0;
      return sigmoid(intercept + slope * logit(probability) + offset);
    });
    const content = probabilities.filter((_, index) => !this.functionWords.has(words[index].text));
    const chosen = content.length ? content : probabilities;
    const mean = chosen.length ? chosen.reduce((sum, value) => sum + value, 0) / chosen.length : 0;
    const log = Math.log(Math.max(likelihood, 1e-30));
    const caption = sigmoid(captions.intercept + captions.words * logit(mean) + captions.log_probability * log + photo.term);
    const { ood_score } = photo;
    return { words: probabilities, caption, ood_score, unsure: ood_score > 1 || caption < captions.unsure_below };
  }
}

function sigmoid(value: number): number {
  return 1 / (1 + Math.exp(-Math.min(Math.max(value, -40), 40)));
}

function logit(probability: number): number {
  const clamped = Math.min(Math.max(probability, 1e-4), 1 - 1e-4);
  return Math.log(clamped / (1 - clamped));
}

/** base64 of little-endian half-precision numbers. */
export function halves(text: string): Float32Array {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return Float32Array.from({ length: bytes.length >> 1 }, (_, index) => {
    const bits = bytes[2 * index] | (bytes[2 * index + 1] << 8);
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : (sign * fraction) / 2 ** 24;
  });
}
