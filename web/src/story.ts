// What is said about one photo: the sentence, how sure it is, and one word at a time.

import { byId, make, percent, row } from "./dom";
import { Stage } from "./light";
import type { Told, Word } from "./messages";
import { Reveal } from "./reveal";

const NEXT = 1200; // milliseconds for a word when they are shown in turn

export class Story {
  told: Told | null = null;
  private chosen = -1;
  private timer = 0;
  private readonly stage = new Stage(byId("stage"), byId<HTMLImageElement>("photo"));
  private readonly reveal = new Reveal(byId("sentence"), this.stage, (index) => {
    if (!this.told) return;
    this.stop();
    this.choose(index === this.chosen ? -1 : index);
  });

  constructor() {
    byId("sentence").addEventListener("keydown", (event) => this.walk(event));
    byId("play").addEventListener("click", () => (this.timer ? this.stop() : this.play()));
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.told || document.querySelector("dialog[open]")) return;
      this.stop();
      this.choose(-1);
    });
  }

  begin(): void {
    this.stop();
    this.told = null;
    this.choose(-1);
    this.reveal.begin();
    for (const id of ["told", "panel", "late"]) byId(id).hidden = true;
    for (const id of ["copy", "play"]) byId<HTMLButtonElement>(id).disabled = true;
    this.busy(true);
  }

  live(words: Word[], frame: number[]): void {
    this.busy(false);
    this.reveal.live(words, frame);
  }

  async tell(told: Told): Promise<void> {
    this.busy(false);
    const whole = this.reveal.end(told.words, told.frame, told.unsure);
    byId<HTMLImageElement>("photo").alt = told.sentence;
    await whole;
    this.told = told;
    if (!told.words.length) byId("sentence").textContent = "The model said nothing.";
    byId("sure").style.setProperty("--share", String(told.confidence));
    byId("certainty").textContent = told.certainty;
    byId("ranking").replaceChildren(...told.others.map((other) => row(capital(other.text), other.confidence)));
    byId("others").hidden = !told.others.length;
    byId("told").hidden = byId("panel").hidden = false;
    byId("hint").hidden = !told.words.length;
    for (const id of ["copy", "play"]) byId<HTMLButtonElement>(id).disabled = !told.words.length;
    this.choose(-1, false);
  }

  fail(reason: string): void {
    this.busy(false);
    this.reveal.begin();
    byId("sentence").replaceChildren();
    byId("late").textContent = sentence(reason);
    byId("late").hidden = false;
  }

  private busy(busy: boolean): void {
    byId("result").classList.toggle("busy", busy);
    byId("result").setAttribute("aria-busy", String(busy));
  }

  private choose(index: number, dark = true): void {
    this.chosen = index;
    this.reveal.elements.forEach((word, place) => word.setAttribute("aria-pressed", String(place === index)));
    const word = this.told?.words[index];
    byId("whole").hidden = Boolean(word);
    byId("legend").textContent = word?.light ? `Bright is where the model looked for “${word.text}”.` : "";
    if (word || dark) this.stage.show(word?.light ?? null, this.told?.frame);
    byId("chosen").replaceChildren(...(word ? this.about(word) : []));
  }

  private about(word: Word): HTMLElement[] {
    const facts = [`${percent(word.probability)} likely for the model`];
    if (this.told?.calibrated) facts.unshift(`${percent(word.confidence)} sure`);
    if (word.gate !== null) facts.push(`gate ${word.gate.toFixed(2)}`);
    const runners = make("ol", "ranking");
    runners.append(...word.runners.map((other) => row(other.text, other.probability)));
    return [make("h2", "", word.text), make("p", "facts", facts.join(" · ")), make("h3", "label", "In its place, it considered"), runners];
  }

  private walk(event: KeyboardEvent): void {
    const words = this.reveal.elements, index = words.indexOf(event.target as HTMLElement);
    const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: words.length - 1 }[event.key];
    if (to === undefined || index < 0 || !this.told) return;
    event.preventDefault();
    this.stop();
    const next = (to + words.length) % words.length;
    words[next].focus();
    this.choose(next);
  }

  private play(): void {
    const next = () => {
      if (this.told && this.chosen + 1 < this.told.words.length) return this.choose(this.chosen + 1);
      this.stop();
      this.choose(-1);
    };
    byId("play").textContent = "Pause";
    this.timer = window.setInterval(next, NEXT);
    next();
  }

  private stop(): void {
    clearInterval(this.timer);
    this.timer = 0;
    byId("play").textContent = "Replay";
  }
}

const capital = (text: string) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
export const sentence = (reason: string) => `${reason.charAt(0).toUpperCase()}${reason.slice(1)}${/[.?!]$/.test(reason) ? "" : "."}`;
