// The sentence on the page. Its words appear one by one, each with its heat map on the photo. While the search goes
// on, they are the best caption so far; words that the search drops are removed again.

import { make, reducedMotion } from "./dom";
import type { Overlay } from "./heatmap";
import type { Frame, Word } from "./types";

const WORD_MS = 190;

export class Sentence {
  private words: Word[] = [];
  private frame: Frame = [0, 0, 1, 1];
  private complete = false;
  private unsure = false;
  private timer = 0;
  private readonly shown: { text: string; element: HTMLElement }[] = [];
  private readonly caret = make("span", "caret");
  private onComplete: () => void = () => {};

  /** With `onSelect`, the words are buttons. */
  constructor(private readonly box: HTMLElement, private readonly overlay: Overlay, private readonly onSelect?: (index: number) => void) {}

  clear(): void {
    clearInterval(this.timer);
    this.timer = 0;
    [this.words, this.complete] = [[], false];
    this.shown.length = 0;
    this.box.replaceChildren(...(reducedMotion() ? [] : [this.caret]));
    this.overlay.show(null);
  }

  /** The best caption so far. */
  showPartial(words: Word[], frame: Frame): void {
    [this.words, this.frame, this.unsure] = [words, frame, false];
    if (!reducedMotion()) this.run();
  }

  /** The final caption; resolves once all of it is shown: at once, or word by word. */
  showFinal(words: Word[], frame: Frame, unsure: boolean, atOnce = reducedMotion()): Promise<void> {
    [this.words, this.frame, this.complete, this.unsure] = [words, frame, true, unsure];
    if (unsure) this.box.prepend(make("span", "unsure", "unsure: "));
    return new Promise((resolve) => {
      this.onComplete = resolve;
      if (atOnce) while (this.tick(false)) continue;
      else this.run();
    });
  }

  get elements(): HTMLElement[] {
    return this.shown.map(({ element }) => element);
  }

  private run(): void {
    if (this.timer) return;
    this.timer = window.setInterval(() => this.tick(), WORD_MS);
    this.tick();
  }

  /** Remove words that changed, then add one; false once nothing is left to do. */
  private tick(withHeatmap = !reducedMotion()): boolean {
    const changed = this.shown.findIndex(({ text }, index) => this.words[index]?.text !== text);
    if (changed >= 0) for (const { element } of this.shown.splice(changed)) this.remove(element);
    const next = this.shown.length, word = this.words[next];
    if (word) {
      this.add(word, next);
      if (withHeatmap) this.overlay.show(word.heatmap, this.frame);
      if (!this.complete || next + 1 < this.words.length) return true;
    }
    if (!this.complete) return true;
    clearInterval(this.timer);
    this.timer = 0;
    this.caret.remove();
    if (this.words.length) this.box.append(".");
    this.shown.forEach(({ element }, index) => this.underline(element, this.words[index]));
    if (withHeatmap) setTimeout(() => { if (!this.timer && this.complete) this.hideOverlay(); }, 2 * WORD_MS);
    this.onComplete();
    return false;
  }

  /** Unless a word was selected meanwhile. */
  private hideOverlay(): void {
    if (!this.elements.some((element) => element.matches("[aria-pressed=true], .current"))) this.overlay.show(null);
  }

  private add(word: Word, index: number): void {
    const element = make(this.onSelect ? "button" : "span", `word new${index ? "" : " first"}`, word.text);
    this.underline(element, word);
    if (element instanceof HTMLButtonElement) {
      element.type = "button";
      element.setAttribute("aria-pressed", "false");
      element.addEventListener("click", () => this.onSelect?.(index));
    }
    const nodes: (Node | string)[] = index ? [" ", element] : [element];
    if (this.caret.isConnected) this.caret.before(...nodes);
    else this.box.append(...nodes);
    this.shown.push({ text: word.text, element });
  }

  /** The line under a word is its confidence; an unsure caption's words have none. */
  private underline(element: HTMLElement, { confidence }: Word): void {
    element.style.setProperty("--share", String(this.unsure ? 0 : confidence));
  }

  private remove(element: HTMLElement): void {
    if (element.previousSibling?.nodeType === Node.TEXT_NODE) element.previousSibling.remove();
    element.remove();
  }
}
