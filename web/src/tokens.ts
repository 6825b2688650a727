// From token ids to the words people read, as src/sightline/tokenizers/ does.

export interface Tokenizer {
  name: "word" | "char" | "bpe";
  max_length: number;
  tokens: string[];
}

export interface WordTokens {
  text: string;
  positions: number[]; // of its tokens among the ids
}

export const PAD = 0, START = 1, END = 2, UNKNOWN = 3;
const CLITICS = new Set(["n't", "'s", "'re", "'ve", "'ll", "'d", "'m"]);
const OPENING = "▁";

export function wordsOf(ids: number[], tokenizer: Tokenizer): WordTokens[] {
  const words: WordTokens[] = [];
  let closed = true; // char: a space ends a word
  ids.forEach((id, position) => {
    if (id <= UNKNOWN) return;
    const token = tokenizer.tokens[id], last = words[words.length - 1];
    const joins = { word: CLITICS.has(token), char: !closed, bpe: !token.startsWith(OPENING) }[tokenizer.name];
    if (tokenizer.name === "char" && token === " ") {
      closed = true;
      last?.positions.push(position); // choosing it is choosing "dog" over "dogs"
    } else if (joins && last) {
      last.text += token;
      last.positions.push(position);
    } else {
      closed = false;
      words.push({ text: tokenizer.name === "bpe" && token.startsWith(OPENING) ? token.slice(1) : token, positions: [position] });
    }
  });
  return words.filter((word) => word.text);
}

/** A single token as people read it, for the alternatives. */
export function readable(token: string): string {
  return { "<end>": "(the end)", " ": "(a space)" }[token] ?? token.replace(/^▁/, "");
}
