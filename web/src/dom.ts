// Small helpers for the document.

export function byId<Kind extends HTMLElement = HTMLElement>(id: string): Kind {
  return document.getElementById(id) as Kind;
}

export function make<Name extends keyof HTMLElementTagNameMap>(kind: Name, name = "", text = ""): HTMLElementTagNameMap[Name] {
  const element = document.createElement(kind);
  element.className = name;
  element.textContent = text;
  return element;
}

export const percent = (share: number) => (share < 0.01 ? "<1%" : `${Math.round(100 * share)}%`);
/** A caption's bare words with a capital letter and a full stop, as `Caption.description` in src/sightline/types.py. */
export function asDescription(text: string): string {
  const trimmed = text.replace(/^[ .]+|[ .]+$/g, "").replace(/\s+/g, " ");
  return trimmed && `${trimmed[0].toUpperCase()}${trimmed.slice(1)}.`;
}

/** A message as a sentence: with a capital letter and a full stop. */
export const asSentence = (text: string) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.?!]$/.test(text) ? "" : "."}`;

/** Shows a message as a sentence; what stands in backticks, a command, is code. */
export function showMessage(element: HTMLElement, text: string): void {
  const pieces = (text && asSentence(text)).split(/`([^`]+)`/);
  element.replaceChildren(...pieces.map((piece, index) => (index % 2 ? make("code", "", piece) : piece)));
}

export const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
export const wait = (milliseconds: number) => new Promise<void>((done) => setTimeout(done, milliseconds));

/** A line for each entry, in the order of the numbers; those below 1% are left out, except the chosen one's. */
export function rows(entries: { text: string; share: number; chosen?: boolean }[]): HTMLLIElement[] {
  return entries.filter(({ share, chosen }) => share >= 0.01 || chosen).sort((one, other) => other.share - one.share)
    .map(({ text, share, chosen }) => row(text, share, chosen));
}

/** A line with a bar and a number. */
function row(text: string, share: number, chosen = false): HTMLLIElement {
  const item = make("li", chosen ? "chosen" : ""), bar = make("span", "bar");
  bar.style.setProperty("--share", String(share));
  bar.setAttribute("aria-hidden", "true");
  item.append(make("span", "", text), bar, make("span", "number", percent(share)));
  return item;
}
