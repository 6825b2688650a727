// Words appear one by one, each with its light on the photo. While the search goes on they are the best sentence so
// far, and are taken back where it thinks better of it.

import { calm, make, percent } from "./dom";
import type { Stage } from "./light";
import type { Word } from "./messages";

const PACE = 190; // milliseconds for a word

export class Reveal {
  private words: Word[] = [];
  private frame: number[] = [0, 0, 1, 1];
  private done = false;
  private timer = 0;
  private readonly shown: { text: string; element: HTMLElement }[] = [];
  private readonly caret = make("span", "caret");
  private finish: () => void = () => {};

  /** `pick` makes the words buttons. */
  constructor(private readonly box: HTMLElement, private readonly stage: Stage, private readonly pick?: (index: number) => void) {}

  begin(): void {
    clearInterval(this.timer);
    this.timer = 0;
    [this.words, this.done] = [[], false];
    this.shown.length = 0;
    this.box.replaceChildren(...(calm() ? [] : [this.caret]));
    this.stage.show(null);
  }

  /** The sentence so far. */
  live(words: Word[], frame: number[]): void {
    [this.words, this.frame] = [words, frame];
    if (!calm()) this.run();
  }

  /** The whole sentence; resolves once all of it stands there. */
  end(words: Word[], frame: number[], unsure: boolean): Promise<void> {
    [this.words, this.frame, this.done] = [words, frame, true];
    if (unsure) this.box.prepend(make("span", "mild", "unsure: "));
    return new Promise((resolve) => {
      this.finish = resolve;
      if (calm()) while (this.tick()) continue;
      else this.run();
    });
  }

  get elements(): HTMLElement[] {
    return this.shown.map(({ element }) => element);
  }

  private run(): void {
    if (this.timer) return;
    this.timer = window.setInterval(() => this.tick(), PACE);
    this.tick();
  }

  /** One word more, or those taken back that no longer fit; false once there is nothing left to do. */
  private tick(): boolean {
    const same = this.shown.findIndex(({ text }, place) => this.words[place]?.text !== text);
    if (same >= 0) for (const { element } of this.shown.splice(same)) this.drop(element);
    const next = this.shown.length, word = this.words[next];
    if (word) {
      this.add(word, next);
      if (!calm()) this.stage.show(word.light, this.frame);
      if (!this.done || next + 1 < this.words.length) return true;
    }
    if (!this.done) return true;
    clearInterval(this.timer);
    this.timer = 0;
    this.caret.remove();
    if (this.words.length) this.box.append(".");
    this.shown.forEach(({ element }, place) => element.style.setProperty("--share", String(this.words[place].confidence)));
    if (!calm()) setTimeout(() => { if (!this.timer && this.done) this.rest(); }, 2 * PACE);
    const finish = this.finish;
    finish();
    return false;
  }

  /** Day again, unless somebody chose a word meanwhile. */
  private rest(): void {
    if (!this.elements.some((element) => element.matches("[aria-pressed=true], .now"))) this.stage.show(null);
  }

  private add(word: Word, index: number): void {
    const element = make(this.pick ? "button" : "span", `word fresh${index ? "" : " first"}`, word.text);
    element.style.setProperty("--share", String(word.confidence));
    if (element instanceof HTMLButtonElement) {
      element.type = "button";
      element.setAttribute("aria-pressed", "false");
      element.setAttribute("aria-label", `${word.text}, ${percent(word.confidence)} sure`);
      element.addEventListener("click", () => this.pick?.(index));
    }
    const pieces: (Node | string)[] = index ? [" ", element] : [element];
    if (this.caret.isConnected) this.caret.before(...pieces);
    else this.box.append(...pieces);
    this.shown.push({ text: word.text, element });
  }

  private drop(element: HTMLElement): void {
    if (element.previousSibling?.nodeType === Node.TEXT_NODE) element.previousSibling.remove();
    element.remove();
  }
}
