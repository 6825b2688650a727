// On the first screen the example is captioned for real, as soon as the model is there, and its words go round.

import { byId, calm, wait } from "./dom";
import type { Engine } from "./engine";
import { Stage } from "./light";
import type { Told } from "./messages";
import { Reveal } from "./reveal";

export class Demo {
  private stopped = false;
  private readonly photo = document.querySelector<HTMLImageElement>("#demo-stage img")!;
  private readonly stage = new Stage(byId("demo-stage"), this.photo);
  private readonly reveal = new Reveal(byId("demo-words"), this.stage);

  constructor(private readonly engine: Engine) {}

  async play(): Promise<void> {
    await this.engine.ready;
    const file = await (await fetch(this.photo.src)).blob();
    if (this.stopped) return;
    this.reveal.begin();
    const told = await this.engine.caption(file, null, (words, frame) => this.reveal.live(words, frame));
    this.photo.alt = told.sentence;
    await this.reveal.end(told.words, told.frame, told.unsure);
    await wait(2600);
    if (!calm()) await this.round(told);
  }

  stop(): void {
    this.stopped = true;
  }

  /** Twice through the words, then rest. */
  private async round(told: Told): Promise<void> {
    for (let turn = 0; turn < 2; turn++) {
      for (const [place, word] of told.words.entries()) {
        if (this.stopped || document.hidden) return this.stage.show(null);
        const element = this.reveal.elements[place];
        element.classList.add("now");
        this.stage.show(word.light, told.frame);
        await wait(900);
        element.classList.remove("now");
      }
      this.stage.show(null);
      await wait(5000);
    }
  }
}
