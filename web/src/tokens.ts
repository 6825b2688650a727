// From token ids to the words people read, as src/sightline/tokenizers/ does.

export interface Tokenizer {
  name: "word" | "char" | "bpe";
  max_length: number;
  tokens: string[];
}

export interface WordPlaces {
  text: string;
  places: number[]; // positions among the ids
}

export const PAD = 0, START = 1, END = 2, UNKNOWN = 3;
const CLITICS = new Set(["n't", "'s", "'re", "'ve", "'ll", "'d", "'m"]);
const OPENING = "▁";

export function wordsOf(ids: number[], tokenizer: Tokenizer): WordPlaces[] {
  const words: WordPlaces[] = [];
  let closed = true; // char: a space closes a word
  ids.forEach((id, place) => {
    if (id <= UNKNOWN) return;
    const token = tokenizer.tokens[id], last = words[words.length - 1];
    const joins = { word: CLITICS.has(token), char: !closed, bpe: !token.startsWith(OPENING) }[tokenizer.name];
    if (tokenizer.name === "char" && token === " ") {
      closed = true;
      last?.places.push(place); // choosing it is choosing "dog" over "dogs"
    } else if (joins && last) {
      last.text += token;
      last.places.push(place);
    } else {
      closed = false;
      words.push({ text: tokenizer.name === "bpe" && token.startsWith(OPENING) ? token.slice(1) : token, places: [place] });
    }
  });
  return words.filter((word) => word.text);
}

/** A single token for people: a runner-up. */
export function readable(token: string): string {
  return { "<end>": "(the end)", " ": "(a space)" }[token] ?? token.replace(/^▁/, "");
}
