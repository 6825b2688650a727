// The photos of this visit, with their captions: a queue that captions one after the other, edits, removals, and undo.

import { asDescription } from "./dom";
import { TokenError, type Engine, type OnPartial } from "./engine";
import type { ChosenFile } from "./files";
import type { CaptionResult, DecodingOptions } from "./types";

export interface PhotoItem {
  readonly id: number;
  readonly file: File;
  readonly path: string; // no other photo has it
  state: "waiting" | "captioning" | "done" | "failed";
  result: CaptionResult | null;
  error: string; // one line, where it failed
  options: DecodingOptions | null; // null: the model's defaults
  wording: string | null; // a person's caption instead of the model's
  checked: boolean; // a person wrote the caption or found it right
}

interface Change {
  label: string;
  undo: () => void;
}

/** What is shown and written as a photo's caption; empty where there is none. */
export const captionOf = (item: PhotoItem) => item.wording ?? description(item);
const description = ({ result }: PhotoItem) => (result ? asDescription(result.text) : "");

export interface Listener {
  changed(item: PhotoItem): void; // its state, its caption
  listed(): void; // photos were added, removed or restored
  partial: (item: PhotoItem, ...words: Parameters<OnPartial>) => void;
  tokenNeeded(reason: string): void;
}

export class Collection {
  items: PhotoItem[] = [];
  unsaved = false; // a person's work that no download holds
  private readonly changes: Change[] = [];
  private current: { item: PhotoItem; controller: AbortController } | null = null;
  private first: PhotoItem | null = null; // captioned before all others
  private running = false;
  private lastId = 0;

  constructor(private readonly engine: Engine, private readonly listener: Listener) {}

  /** Adds photos, except those that are here already; the items of all of them. */
  add(files: ChosenFile[]): PhotoItem[] {
    const byPath = new Map(this.items.map((item) => [item.path, item]));
    const added = files.map(({ file, path }) => {
      let unused = path;
      for (let number = 2; ; number++) {
        const before = byPath.get(unused);
        if (before && isSame(before.file, file)) return before;
        if (!before) break;
        unused = path.replace(/(\.[^./]*)?$/, `-${number}$1`);
      }
      const item: PhotoItem = {
        id: ++this.lastId, file, path: unused, state: "waiting", result: null, error: "", options: null, wording: null, checked: false,
      };
      byPath.set(unused, item);
      this.items.push(item);
      return item;
    });
    this.listener.listed();
    void this.run();
    return added;
  }

  /** Captions this photo next, with these options: null for the model's own. */
  recaption(item: PhotoItem, options: DecodingOptions | null): void {
    item.options = options;
    [item.state, item.result, item.error] = ["waiting", null, ""];
    this.prefer(item);
    if (this.current?.item === item) this.current.controller.abort();
    this.listener.changed(item);
    void this.run();
  }

  prefer(item: PhotoItem): void {
    this.first = item;
  }

  /** After a token was given, go on. */
  async run(): Promise<void> {
    if (this.running) return;
    this.running = true;
    for (let item = this.next(); item && this.running; item = this.next()) await this.caption(item);
    this.running = false;
  }

  private next(): PhotoItem | undefined {
    if (this.first?.state === "waiting" && this.items.includes(this.first)) return this.first;
    return this.items.find(({ state }) => state === "waiting");
  }

  private async caption(item: PhotoItem): Promise<void> {
    const controller = new AbortController();
    this.current = { item, controller };
    item.state = "captioning";
    this.listener.changed(item);
    try {
      await this.engine.ready;
      item.result = await this.engine.caption(item.file, item.options, (...words) => this.listener.partial(item, ...words), controller.signal);
      item.state = "done";
    } catch (error) {
      if (controller.signal.aborted) item.state = "waiting"; // removed, or to be captioned with other options
      else if (error instanceof TokenError) {
        [item.state, this.running] = ["waiting", false];
        this.listener.tokenNeeded(error.message);
      } else [item.state, item.error] = ["failed", (error as Error).message];
    }
    this.current = null;
    if (this.items.includes(item)) this.listener.changed(item);
  }

  // -- a person's work -------------------------------------------------------------------------------------------------

  /** Sets a person's wording; the model's own words, or none, take it back. */
  edit(item: PhotoItem, text: string): void {
    const line = text.replace(/\s+/g, " ").trim(), wording = line && line !== description(item) ? line : null;
    if (wording === item.wording) return this.listener.changed(item);
    this.change(item, `edit of ${item.path}`, () => [item.wording, item.checked] = [wording, wording !== null]);
  }

  approve(item: PhotoItem): void {
    this.change(item, `check of ${item.path}`, () => (item.checked = true));
  }

  remove(items: PhotoItem[]): void {
    const before = this.items, gone = new Set(items), [{ path }] = items;
    this.items = before.filter((item) => !gone.has(item));
    if (this.current && gone.has(this.current.item)) this.current.controller.abort();
    this.changes.push({
      label: items.length > 1 ? `removal of ${items.length} photos` : `removal of ${path}`,
      undo: () => {
        const later = this.items.filter((item) => !before.includes(item)); // added since
        this.items = [...before, ...later];
        this.listener.listed();
        void this.run();
      },
    });
    this.listener.listed();
  }

  get undoable(): string | null {
    return this.changes.at(-1)?.label ?? null;
  }

  undo(): string | null {
    const last = this.changes.pop();
    last?.undo();
    return last?.label ?? null;
  }

  private change(item: PhotoItem, label: string, apply: () => void): void {
    const { wording, checked } = item;
    apply();
    this.unsaved = true;
    this.changes.push({ label, undo: () => this.restore(item, wording, checked) });
    this.listener.changed(item);
  }

  private restore(item: PhotoItem, wording: string | null, checked: boolean): void {
    [item.wording, item.checked, this.unsaved] = [wording, checked, true];
    this.listener.changed(item);
  }
}

const isSame = (one: File, other: File) => one.size === other.size && one.lastModified === other.lastModified;
