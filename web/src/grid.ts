// The photos as cards: a thumbnail, the caption to edit, and how far to rely on it.

import { captionOf, type Collection, type PhotoItem } from "./collection";
import { byId, make, percent, showMessage } from "./dom";
import { thumbnail } from "./files";

const RANKS = ["unsure", "failed", "doubtful", "likely", "sure"]; // what needs a person most comes first
const STATES = { waiting: "waiting", captioning: "captioning …", failed: "failed", done: "" };

interface Card {
  root: HTMLLIElement;
  open: HTMLButtonElement;
  picture: HTMLImageElement;
  status: HTMLElement;
  error: HTMLElement;
  caption: HTMLTextAreaElement;
  approve: HTMLButtonElement;
}

export class Grid {
  private readonly list = byId("cards");
  private readonly order = byId<HTMLSelectElement>("order");
  private readonly cards = new Map<PhotoItem, Card>();
  private thumbnails: Promise<void> = Promise.resolve();

  constructor(private readonly collection: () => Collection, private readonly onOpen: (item: PhotoItem) => void) {
    this.order.addEventListener("change", () => this.arrange());
    this.list.addEventListener("keydown", (event) => this.moveFocus(event));
  }

  /** The photos in the order in which they are shown. */
  get ordered(): PhotoItem[] {
    const { items } = this.collection();
    if (this.order.value === "added") return items;
    const ranks = items.map((item, index) => ({ item, rank: rankOf(item) * items.length + index }));
    return ranks.sort((one, other) => one.rank - other.rank).map(({ item }) => item);
  }

  /** Photos were added, removed or restored. */
  refresh(): void {
    const { items } = this.collection(), kept = new Set(items);
    for (const [item, { root, picture }] of this.cards) {
      if (kept.has(item)) continue;
      root.remove();
      URL.revokeObjectURL(picture.src);
      this.cards.delete(item);
    }
    const added = items.filter((item) => !this.cards.has(item));
    for (const item of added) this.addCard(item);
    for (const item of added) this.update(item); // once every card is there: a finished one is moved before another
    this.arrange();
  }

  /** A photo's state or caption has changed. */
  update(item: PhotoItem): void {
    const card = this.cards.get(item);
    if (!card) return;
    const { root, status, error, caption, approve } = card, { result, state, checked } = item, level = levelOf(item);
    root.dataset.state = state;
    status.dataset.level = level;
    status.textContent = checked ? "checked by you" : result ? [level, noteOf(item)].filter(Boolean).join(" · ") : STATES[state];
    showMessage(error, item.error);
    error.hidden = !item.error;
    if (document.activeElement !== caption) caption.value = captionOf(item);
    caption.disabled = state !== "done" && state !== "failed" && item.wording === null;
    caption.placeholder = state === "failed" ? "Write a caption yourself" : "";
    approve.hidden = checked || !(level === "unsure" || level === "doubtful");
    if (state === "done" || state === "failed") this.place(item);
  }

  focus(item: PhotoItem | undefined): void {
    if (item) this.cards.get(item)?.open.focus();
    else byId("photos-title").focus();
  }

  private arrange(): void {
    let at = this.list.firstElementChild;
    for (const item of this.ordered) { // only cards that stand elsewhere are moved: the others keep their focus
      const { root } = this.cards.get(item)!;
      if (root === at) at = at.nextElementSibling;
      else this.list.insertBefore(root, at);
    }
  }

  /** Moves one finished card to its place, unless a person is at work in it. */
  private place(item: PhotoItem): void {
    const { root } = this.cards.get(item)!, ordered = this.ordered;
    if (root.contains(document.activeElement) || item.checked) return;
    const next = ordered[ordered.indexOf(item) + 1], before = next ? this.cards.get(next)!.root : null;
    if (root.nextElementSibling !== before) this.list.insertBefore(root, before);
  }

  private addCard(item: PhotoItem): void {
    const name = item.path.split("/").pop()!;
    const root = make("li", "card"), open = make("button", "open"), picture = make("img"), status = make("p", "status level");
    const error = make("p", "card-error"), caption = make("textarea"), foot = make("p", "card-foot"), title = make("span", "name quiet", item.path);
    const approve = make("button", "link", "Looks right"), remove = make("button", "link", "Remove");
    for (const button of [open, approve, remove]) button.type = "button";
    open.setAttribute("aria-label", `${name}: word by word`);
    open.append(picture);
    picture.alt = "";
    picture.hidden = true;
    title.title = item.path;
    caption.rows = 3;
    caption.setAttribute("aria-label", `Caption of ${name}`);
    caption.spellcheck = true;
    approve.setAttribute("aria-label", `Looks right: caption of ${name}`);
    remove.setAttribute("aria-label", `Remove ${name}`);
    foot.append(title, approve, remove);
    const body = make("div", "card-body");
    body.append(status, error, caption, foot);
    root.append(open, body);
    this.cards.set(item, { root, open, picture, status, error, caption, approve });
    this.list.append(root);

    open.addEventListener("click", () => this.onOpen(item));
    root.addEventListener("click", ({ target }) => { // anywhere but on a control
      if (target instanceof Element && !target.closest("button, textarea") && !getSelection()?.toString()) this.onOpen(item);
    });
    caption.addEventListener("change", () => this.collection().edit(item, caption.value));
    approve.addEventListener("click", () => {
      this.collection().approve(item);
      caption.focus();
    });
    remove.addEventListener("click", () => {
      const ordered = this.ordered, index = ordered.indexOf(item);
      this.collection().remove([item]);
      this.focus(ordered[index + 1] ?? ordered[index - 1]);
    });
    this.thumbnails = this.thumbnails.then(() => this.showThumbnail(item)); // one after the other: a decoded photo is large
  }

  private async showThumbnail(item: PhotoItem): Promise<void> {
    if (!this.cards.has(item)) return;
    const small = await thumbnail(item.file).catch(() => null), card = this.cards.get(item);
    if (!card) return;
    if (!small) return card.open.classList.add("blank");
    card.picture.src = URL.createObjectURL(small);
    card.picture.hidden = false;
  }

  /** Ctrl or Alt with an arrow key moves from caption to caption. */
  private moveFocus(event: KeyboardEvent): void {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], captions = [...this.list.querySelectorAll<HTMLTextAreaElement>("textarea:enabled")];
    if (!step || !(event.altKey || event.ctrlKey)) return;
    const index = captions.findIndex((caption) => caption.closest("li")!.contains(event.target as Node));
    captions[index + step]?.focus();
    event.preventDefault();
  }
}

/** What a card says on how far to rely on its caption. */
function levelOf({ result, checked, state }: PhotoItem): string {
  return checked ? "checked" : state === "failed" ? "failed" : result?.level ?? "";
}

function rankOf(item: PhotoItem): number {
  const rank = RANKS.indexOf(levelOf(item));
  return rank >= 0 ? rank : RANKS.length;
}

function noteOf({ result }: PhotoItem): string {
  if (result!.unsure && (result!.ood_score ?? 0) > 1) return "unlike the training photos";
  return `${percent(result!.confidence)}${result!.calibrated ? "" : ", uncalibrated"}`;
}
