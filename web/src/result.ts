// The result for one photo: the sentence, its confidence, and the details of one selected word.

import { levelOf } from "./confidence";
import { asSentence, byId, make, rows, showMessage } from "./dom";
import { Overlay } from "./heatmap";
import { Sentence } from "./sentence";
import type { CaptionResult, Frame, Level, Word } from "./types";

const REPLAY_MS = 1200; // for each word
const CHOICES = "The model’s own probabilities, given the words before. Those below 1% are left out.";
const CONFIDENCE = " Confidence is another number: the probability that people use the word for this photo, too.";

export class ResultView {
  result: CaptionResult | null = null;
  shown: CaptionResult | null = null; // the same, from its first word on
  private selected = -1;
  private timer = 0;
  private readonly overlay = new Overlay(byId("stage"), byId<HTMLImageElement>("photo"));
  private readonly sentence = new Sentence(byId("sentence"), this.overlay, (index) => {
    if (!this.result) return;
    this.stop();
    this.select(index === this.selected ? -1 : index);
  });

  /** `onUse` gets the text of another candidate that a person prefers, `onLeave` is for the Escape key. */
  constructor(private readonly onUse: (text: string) => void, onLeave: () => void) {
    byId("sentence").addEventListener("keydown", (event) => this.moveSelection(event));
    byId("play").addEventListener("click", () => (this.timer ? this.stop() : this.play()));
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || byId("result").hidden || document.querySelector("dialog[open]")) return;
      if (this.selected < 0) return onLeave();
      this.stop();
      this.select(-1);
    });
  }

  clear(): void {
    this.stop();
    this.result = this.shown = null;
    this.select(-1);
    this.sentence.clear();
    for (const id of ["confidence", "meaning", "panel", "result-error"]) byId(id).hidden = true;
    for (const id of ["copy", "play"]) byId<HTMLButtonElement>(id).disabled = true;
    this.setBusy(true);
  }

  showPartial(words: Word[], frame: Frame): void {
    this.setBusy(false);
    this.sentence.showPartial(words, frame);
  }

  /** The final result: at once, or word by word. */
  async show(result: CaptionResult, atOnce?: boolean): Promise<void> {
    this.setBusy(false);
    this.shown = result;
    const complete = this.sentence.showFinal(result.words, result.frame, result.unsure, atOnce);
    byId<HTMLImageElement>("photo").alt = result.sentence;
    await complete;
    this.result = result;
    if (result.calibrated) {
      this.sentence.elements.forEach((word, index) => word.setAttribute("aria-label", `${word.textContent}, ${levelOfWord(result, result.words[index])}`));
    }
    if (!result.words.length) byId("sentence").textContent = "The model returned an empty caption.";
    byId("confidence-bar").style.setProperty("--share", String(result.confidence));
    byId("confidence-bar").hidden = byId("hint-line").hidden = result.unsure;
    byId("certainty").textContent = result.certainty;
    byId("confidence").dataset.level = result.level;
    byId("meaning").textContent = meaningOf(result);
    this.showCandidates(result);
    for (const id of ["confidence", "meaning", "panel"]) byId(id).hidden = false;
    byId("hint").hidden = !result.words.length;
    for (const id of ["copy", "play"]) byId<HTMLButtonElement>(id).disabled = !result.words.length;
    this.select(-1, false);
  }

  showError(reason: string): void {
    this.setBusy(false);
    this.sentence.clear();
    byId("sentence").replaceChildren();
    showMessage(byId("result-error"), reason);
    byId("result-error").hidden = false;
  }

  private showCandidates(result: CaptionResult): void {
    const lines = rows(result.others.map((other) => ({ text: asSentence(other.text), share: other.confidence })));
    for (const line of lines) {
      const text = line.firstElementChild!, use = make("button", "link", text.textContent!);
      use.type = "button";
      use.setAttribute("aria-label", `Use this caption: ${text.textContent}`);
      use.addEventListener("click", () => this.onUse(use.textContent!));
      text.replaceChildren(use);
    }
    byId("candidates").replaceChildren(...lines);
    byId("others").hidden = !lines.length;
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
    byId("legend").textContent = word?.heatmap ? `What the model attended to while writing “${word.text}”` : "";
    if (word || hideOverlay) this.overlay.show(word?.heatmap ?? null, this.result?.frame);
    byId("selected-word").replaceChildren(...(word ? this.detailsOf(word) : []));
  }

  private detailsOf(word: Word): HTMLElement[] {
    const level = levelOfWord(this.result!, word), gate = word.gate === null ? "" : `gate ${word.gate.toFixed(2)}`;
    const certainty = level === "unsure" ? "unsure, as the whole caption is" : level && `${level}: ${Math.round(100 * word.confidence)}% confidence`;
    const facts = make("p", "facts level", [certainty, gate].filter(Boolean).join(" · ")), ranking = make("ol", "ranking");
    facts.dataset.level = level;
    const chosen = { text: word.text, share: word.probability, chosen: true };
    ranking.append(...rows([chosen, ...word.alternatives.map((other) => ({ text: other.text, share: other.probability }))]));
    return [make("h2", "", word.text), facts, make("h3", "label", "Probability as the next word"), ranking, make("p", "quiet", CHOICES + (level && level !== "unsure" ? CONFIDENCE : ""))];
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

/** As `Word.level` in src/sightline/types.py: no word of an unsure caption is sure. */
function levelOfWord({ calibrated, unsure }: CaptionResult, { confidence }: Word): Level | "" {
  return unsure ? "unsure" : calibrated ? levelOf(confidence) : "";
}

/** The confidence in one sentence. */
function meaningOf({ calibrated, confidence, ood_score }: CaptionResult): string {
  if ((ood_score ?? 0) > 1) return "The photo is unlike those the model was trained on: do not rely on this caption.";
  if (!calibrated) return "The model’s own estimate, which has not been compared with people’s captions.";
  return `Of 100 captions with this confidence, about ${Math.round(100 * confidence)} are right on photos like those the model was trained on, fewer on others. Right means that people use most of their words, too.`;
}
