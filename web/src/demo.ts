// On the first screen the example is captioned for real, as soon as the model is there, and its words go round.

import { byId, calm, wait } from "./dom";
import type { Engine } from "./engine";
import { Stage } from "./light";
import type { Told } from "./messages";
import { Reveal } from "./reveal";

const ROUNDS = 3, FIRST = 2600, WORD = 900, REST = 5000; // milliseconds

export class Demo {
  private turn = 0; // counts starts and stops: whoever sees another number than its own is over
  private told: Told | null = null;
  private readonly photo = document.querySelector<HTMLImageElement>("#demo-stage img")!;
  private readonly stage = new Stage(byId("demo-stage"), this.photo);
  private readonly reveal = new Reveal(byId("demo-words"), this.stage);

  constructor(private readonly engine: Engine) {}

  async play(): Promise<void> {
    const mine = ++this.turn;
    await this.engine.ready;
    const file = await (await fetch(this.photo.src)).blob();
    if (mine !== this.turn) return;
    this.reveal.begin();
    this.told ??= await this.engine.caption(file, null, (words, frame) => { if (mine === this.turn) this.reveal.live(words, frame); });
    if (mine !== this.turn) return;
    this.photo.alt = this.told.sentence;
    await this.reveal.end(this.told.words, this.told.frame, this.told.unsure);
    await wait(FIRST);
    if (!calm()) await this.round(this.told, mine);
  }

  stop(): void {
    this.turn++;
  }

  /** A few times through the words, then rest. */
  private async round(told: Told, mine: number): Promise<void> {
    for (let round = 0; round < ROUNDS; round++) {
      for (const [place, word] of told.words.entries()) {
        if (mine !== this.turn) return;
        const element = this.reveal.elements[place];
        element.classList.add("now");
        this.stage.show(word.light, told.frame);
        await wait(WORD);
        element.classList.remove("now");
      }
      if (mine === this.turn) this.stage.show(null);
      await wait(REST);
    }
  }
}
