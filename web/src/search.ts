// Beam search and sampling for one photo, as in src/sightline/decoding/.

import { END, PAD, START, UNKNOWN } from "./tokens";

export interface Options {
  beam: number;
  length_penalty: number;
  max_length: number; // counts start and end
  min_length: number; // counts neither
  no_repeat_ngram: number;
  no_repeat_words?: boolean; // models exported earlier do not have it
  word_groups?: number[]; // of each token, for no_repeat_words: 0 may repeat, equal numbers are one word
  allow_unknown: boolean;
  temperature: number; // 0: beam search; above: sampling
}

export interface StepOutput {
  logits: Float32Array; // rows × vocabulary
  attention?: Float32Array; // rows × grid cells
  gate?: Float32Array; // rows
}

/** The decoder and its state: one row for each hypothesis. */
export interface Decoder {
  vocabulary: number;
  step(tokens: number[]): Promise<StepOutput>;
  /** Row i continues from row `rows[i]`. */
  reorder(rows: number[]): void;
}

export interface Alternative {
  token: number;
  probability: number;
}

/** The last token of a hypothesis, with a backpointer to the token before it. */
interface Node {
  previous: Node | null;
  token: number;
  logProb: number;
  length: number;
  attention?: Float32Array;
  gate?: number;
  alternatives: Alternative[];
}

export interface Hypothesis {
  tokens: number[];
  logProbs: number[]; // of each token, then of the end if finished
  score: number;
  finished: boolean;
  attention: (Float32Array | undefined)[];
  gate: (number | undefined)[];
  alternatives: Alternative[][];
}

interface Finished {
  last: Node | null;
  endLogProb: number;
  score: number;
}

type OnPartial = (hypothesis: Hypothesis) => void | Promise<void>;

const ALTERNATIVES = 5;
const { fround } = Math;

/** Up to `count` captions, best first. The first is exactly that of `sightline caption`, whatever `count` is. */
export async function search(decoder: Decoder, options: Options, count: number, onPartial?: OnPartial): Promise<Hypothesis[]> {
  const { beam, length_penalty: penalty, max_length: longest } = options, { vocabulary } = decoder;
  const finished: Finished[] = [];
  let rows: (Node | null)[] = [null], totals = [0], tokens = [START];
  let best: Hypothesis | null = null;
  for (let length = 0; length < longest - 1; length++) {
    const output = await decoder.step(tokens);
    const logProbs = rows.map((row, index) =>
      forbid(logSoftmax(output.logits.subarray(index * vocabulary, (index + 1) * vocabulary)), row, length, options));
    const candidates = topK(logProbs, totals, 2 * beam);
    candidates.slice(0, beam).forEach(({ row, token, total }) => {
      if (token !== END) return;
      finished.push({ last: rows[row], endLogProb: logProbs[row][END], score: fround(total / (length + 1) ** penalty) });
    });
    finished.sort((one, other) => other.score - one.score).splice(beam); // sorting keeps equals in order
    const alternatives = logProbs.map((row) => lazily(() => topK([row], [0], ALTERNATIVES + 1)));
    const open = candidates.filter(({ token }) => token !== END).slice(0, beam);
    const nodes = open.map(({ row, token }) => append(rows[row], token, logProbs[row][token], output, row, rows.length, alternatives[row]()));
    const bestOpen = open.length ? open[0].total : -Infinity;
    const settled = (wanted: number) => { // no open hypothesis can still change the best `wanted`
      if (finished.length < wanted) return !open.length;
      const { score } = finished[wanted - 1];
      return score >= fround(bestOpen / (longest - 1) ** penalty)
        || (finished.length === beam && score >= fround(bestOpen / (length + 2) ** penalty));
    };
    if (best === null && settled(1)) best = finished.length ? finishedHypothesis(finished[0]) : null;
    [rows, totals] = [nodes, open.map(({ total }) => total)];
    if (settled(Math.min(count, beam)) || !open.length || length === longest - 2) break;
    if (onPartial && best === null) await onPartial(openHypothesis(nodes[0], 0));
    if (beam > 1) decoder.reorder(open.map(({ row }) => row));
    tokens = open.map(({ token }) => token);
  }
  const ended = finished.map(finishedHypothesis);
  const cut = rows.map((row, index) => openHypothesis(row, fround(totals[index] / (longest - 1) ** penalty)));
  const found = [...ended, ...(ended.length && best ? [] : cut.sort((one, other) => other.score - one.score))];
  if (!found.length) throw new Error("the model gives no usable probabilities: its files are damaged");
  const first = best ?? found[0];
  const rest = found.filter((other) => other.tokens.join() !== first.tokens.join());
  return [first, ...rest].slice(0, Math.max(1, count));
}

/** One caption sampled at `options.temperature`; `random` gives numbers from 0 to 1. */
export async function sample(decoder: Decoder, options: Options, random: () => number, onPartial?: OnPartial): Promise<Hypothesis> {
  const { length_penalty: penalty, max_length: longest } = options;
  let row: Node | null = null, total = 0, token = START;
  for (let length = 0; length < longest - 1; length++) {
    const output = await decoder.step([token]);
    const logProbs = forbid(logSoftmax(output.logits), row, length, options);
    const weights = logSoftmax(logProbs.map((value) => value / options.temperature)).map(Math.exp);
    token = sampleIndex(weights, random());
    total = fround(total + logProbs[token]);
    if (token === END) return finishedHypothesis({ last: row, endLogProb: logProbs[END], score: fround(total / (length + 1) ** penalty) });
    row = append(row, token, logProbs[token], output, 0, 1, topK([logProbs], [0], ALTERNATIVES + 1));
    if (onPartial) await onPartial(openHypothesis(row, 0));
  }
  return openHypothesis(row, fround(total / (longest - 1) ** penalty));
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
function forbid(logProbs: Float32Array, row: Node | null, length: number, options: Options): Float32Array {
  const size = options.no_repeat_ngram, ending = logProbs[END];
  logProbs[PAD] = logProbs[START] = -Infinity;
  if (!options.allow_unknown) logProbs[UNKNOWN] = -Infinity;
  if (length < options.min_length) logProbs[END] = -Infinity;
  if (!size && !options.no_repeat_words) return logProbs;
  const history = tokensOf(row);
  if (size && length >= size) forbidNgrams(logProbs, history, size);
  if (options.no_repeat_words) forbidWords(logProbs, history, options.word_groups!);
  // Where every longer caption would repeat itself, a shorter one is allowed.
  if (length < options.min_length && logProbs.every((value) => value === -Infinity)) logProbs[END] = ending;
  return logProbs;
}

function forbidNgrams(logProbs: Float32Array, history: number[], size: number): void {
  const recent = history.slice(history.length - (size - 1)).join();
  for (let from = 0; from + size <= history.length; from++) {
    if (size === 1 || history.slice(from, from + size - 1).join() === recent) logProbs[history[from + size - 1]] = -Infinity;
  }
}

function forbidWords(logProbs: Float32Array, history: number[], groups: number[]): void {
  const used = new Uint8Array(groups.length);
  for (const token of history) used[groups[token]] = 1;
  used[0] = 0; // these tokens may repeat
  for (let token = 0; token < groups.length; token++) if (used[groups[token]]) logProbs[token] = -Infinity;
}

interface Candidate {
  row: number;
  token: number;
  total: number;
}

/** The `count` greatest of total + log-probability over all rows, greatest first; of equals the first one first. */
function topK(logProbs: Float32Array[], totals: number[], count: number): Candidate[] {
  const found: Candidate[] = [];
  logProbs.forEach((values, row) => {
    for (let token = 0; token < values.length; token++) {
      const total = fround(totals[row] + values[token]);
      if (!(total > -Infinity) || (found.length === count && total <= found[count - 1].total)) continue;
      let index = found.length;
      while (index > 0 && found[index - 1].total < total) index--;
      found.splice(index, 0, { row, token, total });
      if (found.length > count) found.pop();
    }
  });
  return found;
}

function sampleIndex(weights: Float32Array, random: number): number {
  let total = 0, sum = 0, last = 0;
  for (const weight of weights) total += weight;
  for (let index = 0; index < weights.length; index++) {
    sum += weights[index];
    if (weights[index] > 0) last = index;
    if (sum > random * total) return index;
  }
  return last;
}

function append(
  previous: Node | null, token: number, logProb: number, output: StepOutput, row: number, rows: number, likely: Candidate[],
): Node {
  const { attention, gate } = output, cells = attention ? attention.length / rows : 0;
  return {
    previous, token, logProb, length: (previous?.length ?? 0) + 1, gate: gate?.[row],
    attention: attention?.slice(row * cells, (row + 1) * cells),
    alternatives: likely.filter((other) => other.token !== token).slice(0, ALTERNATIVES)
      .map((other) => ({ token: other.token, probability: Math.exp(other.total) })),
  };
}

function lazily<Value>(make: () => Value): () => Value {
  let made: Value | undefined;
  return () => (made ??= make());
}

/** Follows the backpointers to the first token. */
function nodesOf(last: Node | null): Node[] {
  const nodes: Node[] = [];
  for (let node = last; node; node = node.previous) nodes.push(node);
  return nodes.reverse();
}

function tokensOf(last: Node | null): number[] {
  return nodesOf(last).map(({ token }) => token);
}

function finishedHypothesis({ last, endLogProb, score }: Finished): Hypothesis {
  const found = openHypothesis(last, score);
  return { ...found, logProbs: [...found.logProbs, endLogProb], finished: true };
}

function openHypothesis(last: Node | null, score: number): Hypothesis {
  const nodes = nodesOf(last);
  return {
    tokens: nodes.map((node) => node.token), logProbs: nodes.map((node) => node.logProb), score, finished: false,
    attention: nodes.map((node) => node.attention), gate: nodes.map((node) => node.gate), alternatives: nodes.map((node) => node.alternatives),
  };
}
