// From a photo's state to captions: the beam search and the sampling of src/sightline/decoding/, for one photo.

import { END, PAD, START, UNKNOWN } from "./tokens";

export interface Options {
  beam: number;
  length_penalty: number;
  max_length: number; // counts start and end
  min_length: number; // counts neither
  no_repeat_ngram: number;
  allow_unknown: boolean;
  temperature: number; // 0: search; above: draw
}

export interface Stepped {
  logits: Float32Array; // rows × vocabulary
  attention?: Float32Array; // rows × places
  gate?: Float32Array; // rows
}

/** The decoder: it keeps its own state, one row for each caption in the making. */
export interface Decoder {
  vocabulary: number;
  step(tokens: number[]): Promise<Stepped>;
  /** Row i goes on from what row `rows[i]` was. */
  reorder(rows: number[]): void;
}

export interface Runner {
  token: number;
  probability: number;
}

/** One token more of a caption; the chain back to the first is the caption. */
interface Link {
  before: Link | null;
  token: number;
  logProb: number;
  length: number;
  attention?: Float32Array;
  gate?: number;
  runners: Runner[];
}

export interface Hypothesis {
  tokens: number[];
  logProbs: number[]; // of each token, then of the end if finished
  score: number;
  finished: boolean;
  attention: (Float32Array | undefined)[];
  gate: (number | undefined)[];
  runners: Runner[][];
}

interface Ended {
  link: Link | null;
  endLogProb: number;
  score: number;
}

type Live = (hypothesis: Hypothesis) => void | Promise<void>;

const RUNNERS = 5;
const { fround } = Math;

/** The best caption first, then the runners-up: exactly what `sightline caption` says, whatever else is asked for. */
export async function search(decoder: Decoder, options: Options, others: number, live?: Live): Promise<Hypothesis[]> {
  const { beam, length_penalty: penalty, max_length: longest } = options;
  const finished: Ended[] = [];
  let rows: (Link | null)[] = [null], totals = [0], tokens = [START];
  let answer: Hypothesis | null = null;
  for (let length = 0; length < longest - 1; length++) {
    const given = await decoder.step(tokens);
    const vocabulary = decoder.vocabulary;
    const logProbs = rows.map((row, place) =>
      forbid(logSoftmax(given.logits.subarray(place * vocabulary, (place + 1) * vocabulary)), row, length, options));
    const candidates = greatest(logProbs, totals, 2 * beam);
    candidates.slice(0, beam).forEach(({ row, token, total }) => {
      if (token !== END) return;
      finished.push({ link: rows[row], endLogProb: logProbs[row][END], score: fround(total / (length + 1) ** penalty) });
    });
    finished.sort((one, other) => other.score - one.score).splice(beam); // sorting keeps equals in order
    const runners = logProbs.map((own) => lazily(() => greatest([own], [0], RUNNERS + 1)));
    const going = candidates.filter(({ token }) => token !== END).slice(0, beam);
    const links = going.map(({ row, token }) => link(rows[row], token, logProbs[row][token], given, row, rows.length, runners[row]()));
    const best = going.length ? going[0].total : -Infinity;
    const settled = (count: number) => {
      if (finished.length < count) return !going.length;
      const asked = finished[count - 1].score;
      return asked >= fround(best / (longest - 1) ** penalty)
        || (finished.length === beam && asked >= fround(best / (length + 2) ** penalty));
    };
    if (answer === null && settled(1)) answer = finished.length ? told(finished[0]) : null;
    if (settled(Math.min(others, beam)) || !going.length || length === longest - 2) {
      rows = links;
      totals = going.map(({ total }) => total);
      break;
    }
    if (live && answer === null) await live(cut(links[0], 0));
    if (beam > 1) decoder.reorder(going.map(({ row }) => row));
    [rows, totals, tokens] = [links, going.map(({ total }) => total), going.map(({ token }) => token)];
  }
  const ended = finished.map(told);
  const unfinished = rows.map((row, place) => cut(row, fround(totals[place] / (longest - 1) ** penalty)));
  const found = [...ended, ...(ended.length && answer ? [] : unfinished.sort((one, other) => other.score - one.score))];
  if (!found.length) throw new Error("the model gives no usable probabilities: its files are damaged");
  const first = answer ?? found[0];
  const rest = found.filter((other) => other.tokens.join() !== first.tokens.join());
  return [first, ...rest].slice(0, Math.max(1, others));
}

/** One caption drawn at `options.temperature`; `chance` gives numbers from 0 to 1. */
export async function draw(decoder: Decoder, options: Options, chance: () => number, live?: Live): Promise<Hypothesis> {
  const { length_penalty: penalty, max_length: longest } = options;
  let row: Link | null = null, total = 0, token = START;
  for (let length = 0; length < longest - 1; length++) {
    const given = await decoder.step([token]);
    const logProbs = forbid(logSoftmax(given.logits), row, length, options);
    const weights = logSoftmax(logProbs.map((value) => value / options.temperature)).map(Math.exp);
    token = drawn(weights, chance());
    total = fround(total + logProbs[token]);
    if (token === END) return told({ link: row, endLogProb: logProbs[END], score: fround(total / (length + 1) ** penalty) });
    row = link(row, token, logProbs[token], given, 0, 1, greatest([logProbs], [0], RUNNERS + 1));
    if (live) await live(cut(row, 0));
  }
  return cut(row, fround(total / (longest - 1) ** penalty));
}

export function logSoftmax(logits: Float32Array): Float32Array {
  let most = -Infinity, sum = 0;
  for (const value of logits) if (value > most) most = value;
  const shifted = new Float32Array(logits.length);
  for (let at = 0; at < logits.length; at++) sum += Math.exp((shifted[at] = logits[at] - most));
  const log = fround(Math.log(sum));
  for (let at = 0; at < logits.length; at++) shifted[at] -= log;
  return shifted;
}

/** Sets what may not come next to -∞, in place. */
function forbid(logProbs: Float32Array, row: Link | null, length: number, options: Options): Float32Array {
  const size = options.no_repeat_ngram, ending = logProbs[END];
  logProbs[PAD] = logProbs[START] = -Infinity;
  if (!options.allow_unknown) logProbs[UNKNOWN] = -Infinity;
  if (length < options.min_length) logProbs[END] = -Infinity;
  if (!size || length < size) return logProbs;
  const history = tokensOf(row), recent = history.slice(history.length - (size - 1)).join();
  for (let from = 0; from + size <= history.length; from++) {
    if (size === 1 || history.slice(from, from + size - 1).join() === recent) logProbs[history[from + size - 1]] = -Infinity;
  }
  // Where every longer caption would repeat itself, a shorter one is allowed.
  if (length < options.min_length && logProbs.every((value) => value === -Infinity)) logProbs[END] = ending;
  return logProbs;
}

interface Candidate {
  row: number;
  token: number;
  total: number;
}

/** The `count` greatest of total + log-probability over all rows, greatest first; of equals the first one first. */
function greatest(logProbs: Float32Array[], totals: number[], count: number): Candidate[] {
  const found: Candidate[] = [];
  logProbs.forEach((own, row) => {
    for (let token = 0; token < own.length; token++) {
      const total = fround(totals[row] + own[token]);
      if (!(total > -Infinity) || (found.length === count && total <= found[count - 1].total)) continue;
      let place = found.length;
      while (place > 0 && found[place - 1].total < total) place--;
      found.splice(place, 0, { row, token, total });
      if (found.length > count) found.pop();
    }
  });
  return found;
}

function drawn(weights: Float32Array, chance: number): number {
  let whole = 0, heap = 0, last = 0;
  for (const weight of weights) whole += weight;
  for (let token = 0; token < weights.length; token++) {
    heap += weights[token];
    if (weights[token] > 0) last = token;
    if (heap > chance * whole) return token;
  }
  return last;
}

function link(
  before: Link | null, token: number, logProb: number, given: Stepped, row: number, rows: number, likely: Candidate[],
): Link {
  const { attention, gate } = given, places = attention ? attention.length / rows : 0;
  return {
    before, token, logProb, length: (before?.length ?? 0) + 1, gate: gate?.[row],
    attention: attention?.slice(row * places, (row + 1) * places),
    runners: likely.filter((other) => other.token !== token).slice(0, RUNNERS)
      .map((other) => ({ token: other.token, probability: Math.exp(other.total) })),
  };
}

function lazily<Value>(make: () => Value): () => Value {
  let made: Value | undefined;
  return () => (made ??= make());
}

function linksOf(last: Link | null): Link[] {
  const links: Link[] = [];
  for (let own = last; own; own = own.before) links.push(own);
  return links.reverse();
}

function tokensOf(last: Link | null): number[] {
  return linksOf(last).map((own) => own.token);
}

function told({ link: last, endLogProb, score }: Ended): Hypothesis {
  const found = cut(last, score);
  return { ...found, logProbs: [...found.logProbs, endLogProb], finished: true };
}

function cut(last: Link | null, score: number): Hypothesis {
  const links = linksOf(last);
  return {
    tokens: links.map((own) => own.token), logProbs: links.map((own) => own.logProb), score, finished: false,
    attention: links.map((own) => own.attention), gate: links.map((own) => own.gate), runners: links.map((own) => own.runners),
  };
}
