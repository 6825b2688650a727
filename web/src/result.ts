// The result for one photo: the sentence, its confidence, and the details of one selected word.

import { byId, make, percent, row } from "./dom";
import { Overlay, type Frame } from "./heatmap";
import type { CaptionResult, Word } from "./messages";
import { Sentence } from "./sentence";

const REPLAY_MS = 1200; // for each word

export class ResultView {
  result: CaptionResult | null = null;
  private selected = -1;
  private timer = 0;
  private readonly overlay = new Overlay(byId("stage"), byId<HTMLImageElement>("photo"));
  private readonly sentence = new Sentence(byId("sentence"), this.overlay, (index) => {
    if (!this.result) return;
    this.stop();
    this.select(index === this.selected ? -1 : index);
  });

  constructor() {
    byId("sentence").addEventListener("keydown", (event) => this.moveSelection(event));
    byId("play").addEventListener("click", () => (this.timer ? this.stop() : this.play()));
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.result || document.querySelector("dialog[open]")) return;
      this.stop();
      this.select(-1);
    });
  }

  clear(): void {
    this.stop();
    this.result = null;
    this.select(-1);
    this.sentence.clear();
    for (const id of ["confidence", "panel", "result-error"]) byId(id).hidden = true;
    for (const id of ["copy", "play"]) byId<HTMLButtonElement>(id).disabled = true;
    this.setBusy(true);
  }

  showPartial(words: Word[], frame: Frame): void {
    this.setBusy(false);
    this.sentence.showPartial(words, frame);
  }

  async show(result: CaptionResult): Promise<void> {
    this.setBusy(false);
    const complete = this.sentence.showFinal(result.words, result.frame, result.unsure);
    byId<HTMLImageElement>("photo").alt = result.sentence;
    await complete;
    this.result = result;
    if (!result.words.length) byId("sentence").textContent = "The model returned an empty caption.";
    byId("confidence-bar").style.setProperty("--share", String(result.confidence));
    byId("certainty").textContent = result.certainty;
    byId("candidates").replaceChildren(...result.others.map((other) => row(asSentence(other.text), other.confidence)));
    byId("others").hidden = !result.others.length;
    byId("confidence").hidden = byId("panel").hidden = false;
    byId("hint").hidden = !result.words.length;
    for (const id of ["copy", "play"]) byId<HTMLButtonElement>(id).disabled = !result.words.length;
    this.select(-1, false);
  }

  showError(reason: string): void {
    this.setBusy(false);
    this.sentence.clear();
    byId("sentence").replaceChildren();
    byId("result-error").textContent = asSentence(reason);
    byId("result-error").hidden = false;
  }

  private setBusy(busy: boolean): void {
    byId("result").classList.toggle("busy", busy);
    byId("result").setAttribute("aria-busy", String(busy));
  }

  private select(index: number, hideOverlay = true): void {
    this.selected = index;
    this.sentence.elements.forEach((word, at) => word.setAttribute("aria-pressed", String(at === index)));
    const word = this.result?.words[index];
    byId("whole-caption").hidden = Boolean(word);
    byId("legend").textContent = word?.heatmap ? `Heat map for “${word.text}”` : "";
    if (word || hideOverlay) this.overlay.show(word?.heatmap ?? null, this.result?.frame);
    byId("selected-word").replaceChildren(...(word ? this.detailsOf(word) : []));
  }

  private detailsOf(word: Word): HTMLElement[] {
    const facts = [`${percent(word.probability)} probability`];
    if (this.result?.calibrated) facts.unshift(`${percent(word.confidence)} confidence`);
    if (word.gate !== null) facts.push(`gate ${word.gate.toFixed(2)}`);
    const ranking = make("ol", "ranking");
    ranking.append(...word.alternatives.map((other) => row(other.text, other.probability)));
    return [make("h2", "", word.text), make("p", "facts", facts.join(" · ")), make("h3", "label", "Alternatives"), ranking];
  }

  private moveSelection(event: KeyboardEvent): void {
    const words = this.sentence.elements, index = words.indexOf(event.target as HTMLElement);
    const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: words.length - 1 }[event.key];
    if (to === undefined || index < 0 || !this.result) return;
    event.preventDefault();
    this.stop();
    const next = (to + words.length) % words.length;
    words[next].focus();
    this.select(next);
  }

  private play(): void {
    const next = () => {
      if (this.result && this.selected + 1 < this.result.words.length) return this.select(this.selected + 1);
      this.stop();
      this.select(-1);
    };
    byId("play").textContent = "Pause";
    this.timer = window.setInterval(next, REPLAY_MS);
    next();
  }

  private stop(): void {
    clearInterval(this.timer);
    this.timer = 0;
    byId("play").textContent = "Replay";
  }
}

/** With a capital letter and a full stop. */
export const asSentence = (text: string) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.?!]$/.test(text) ? "" : "."}`;
