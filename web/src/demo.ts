// The first screen: once the model is loaded, it captions the example, then shows each word's heat map in turn.

import { byId, reducedMotion, wait } from "./dom";
import type { Engine } from "./engine";
import { Overlay } from "./heatmap";
import { Sentence } from "./sentence";
import type { CaptionResult } from "./types";

const ROUNDS = 3, START_MS = 2600, WORD_MS = 900, PAUSE_MS = 5000;

export class Demo {
  private controller = new AbortController();
  private run = 0; // counts starts and stops: a run ends when this is no longer its own number
  private result: CaptionResult | null = null;
  private readonly photo = document.querySelector<HTMLImageElement>("#demo-stage img")!;
  private readonly overlay = new Overlay(byId("demo-stage"), this.photo);
  private readonly sentence = new Sentence(byId("demo-words"), this.overlay);

  constructor(private readonly engine: Engine) {}

  async play(): Promise<void> {
    const run = ++this.run;
    await this.engine.ready;
    const file = await (await fetch(this.photo.src)).blob();
    if (run !== this.run) return;
    this.sentence.clear();
    const { signal } = (this.controller = new AbortController());
    this.result ??= await this.engine.caption(file, null, (words, frame) => { if (run === this.run) this.sentence.showPartial(words, frame); }, signal);
    if (run !== this.run) return;
    this.photo.alt = this.result.sentence;
    await this.sentence.showFinal(this.result.words, this.result.frame, this.result.unsure);
    await wait(START_MS);
    if (!reducedMotion()) await this.showWords(this.result, run);
  }

  stop(): void {
    this.run++;
    this.controller.abort();
  }

  private async showWords(result: CaptionResult, run: number): Promise<void> {
    for (let round = 0; round < ROUNDS; round++) {
      for (const [index, word] of result.words.entries()) {
        if (run !== this.run) return;
        const element = this.sentence.elements[index];
        element.classList.add("current");
        this.overlay.show(word.heatmap, result.frame);
        await wait(WORD_MS);
        element.classList.remove("current");
      }
      if (run === this.run) this.overlay.show(null);
      await wait(PAUSE_MS);
    }
  }
}
