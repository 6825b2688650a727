// The page: takes photos from any input, has the engine caption them, and shows them as a grid or one by one.

import { hasCamera, isTouch, openCamera, prepareCamera } from "./camera";
import { captionOf, Collection, type PhotoItem } from "./collection";
import { Demo } from "./demo";
import { byId, showMessage } from "./dom";
import { BrowserEngine, ServerEngine, type Engine } from "./engine";
import { asAltHtml, asCsv, asJson, asLines, asSidecars, isUnsure, save, type Download, type Rule } from "./exports";
import { chosenFrom, chosenFromDrop, type Chosen } from "./files";
import { Grid } from "./grid";
import { Options } from "./options";
import { ResultView } from "./result";

// A server without a model for the browser changes this element: then it captions the photos itself.
const engineMeta = document.querySelector<HTMLMetaElement>("meta[name=sightline-engine]")!;
const onServer = engineMeta.content === "server";
const photo = byId<HTMLImageElement>("photo"), token = byId<HTMLInputElement>("token"), wording = byId<HTMLTextAreaElement>("wording");
const engine: Engine = onServer
  ? new ServerEngine(() => token.value.trim(), () => announce("The server is busy; trying again shortly."))
  : new BrowserEngine((done, total) => {
    byId("state").style.setProperty("--done", String(done / total));
    byId("state-text").textContent = `Loading the model, ${Math.floor((100 * Math.min(done, total)) / total)}%`;
  });
const demo = onServer ? null : new Demo(engine);
const view = new ResultView((text) => opened && collection.edit(opened, text), () => leavePhoto());
const options = new Options((chosen) => opened && collection.recaption(opened, chosen));
const grid = new Grid(() => collection, (item) => go({ screen: "photo", id: item.id }));
const collection = new Collection(engine, {
  changed(item) {
    grid.update(item);
    if (item === opened) showCaption(item);
    showProgress();
  },
  listed() {
    grid.refresh();
    showProgress();
  },
  partial: (item, words, frame) => { if (item === opened) view.showPartial(words, frame); },
  tokenNeeded: requestToken,
});
let opened: PhotoItem | null = null; // the photo that is shown word by word

Object.assign(window, { sightline: engine }); // for tests and benchmarks

// -- the three screens -----------------------------------------------------------------------------------------------

interface Screen {
  screen: "welcome" | "photos" | "photo";
  id?: number; // of the photo
  depth?: number; // screens before this one
  fromGrid?: boolean;
}

const currentScreen = (): Screen => history.state ?? { screen: "welcome" };

/** To another screen, so that Back leads to this one. */
function go(target: Screen, replace = false): void {
  const { screen, depth = 0, fromGrid } = currentScreen();
  if (replace || (screen === target.screen && screen !== "welcome")) history.replaceState({ ...target, depth, fromGrid }, "");
  else history.pushState({ ...target, depth: depth + 1, fromGrid: screen === "photos" }, "");
  showScreen();
}

function showScreen(): void {
  const { screen, id } = currentScreen(), item = collection.items.find((one) => one.id === id) ?? null;
  const shown = screen === "photo" && !item ? "photos" : screen, before = opened;
  demo?.stop();
  byId("welcome").hidden = shown !== "welcome";
  byId("photos").hidden = shown !== "photos";
  byId("result").hidden = shown !== "photo";
  if (shown !== "welcome") byId("start-error").hidden = true;
  window.scrollTo({ top: 0 });
  if (shown === "photo") return showPhoto(item!);
  closePhoto();
  if (shown === "photos") grid.focus(before && collection.items.includes(before) ? before : undefined);
  else if (document.body.classList.contains("ready")) demo?.play().catch(() => {});
}

function leavePhoto(): void {
  if (currentScreen().fromGrid) history.back();
  else go({ screen: "photos" }, true);
}

addEventListener("popstate", showScreen);
byId("home").addEventListener("click", (event) => { // without loading the model again
  event.preventDefault();
  if (history.state) history.go(-history.state.depth);
  byId("main").focus({ preventScroll: true });
});
byId("to-grid").addEventListener("click", leavePhoto);
byId("resume").addEventListener("click", () => go({ screen: "photos" }));
if (history.state) history.replaceState(null, ""); // reloaded: the photos are gone

// -- one photo -------------------------------------------------------------------------------------------------------

function showPhoto(item: PhotoItem): void {
  if (opened !== item) {
    closePhoto();
    opened = item;
    photo.alt = "";
    photo.src = URL.createObjectURL(item.file);
    collection.prefer(item);
    options.show(item.options);
    showCaption(item, true);
  }
  showPager();
  byId("sentence").focus({ preventScroll: true });
}

/** Releases the photo: only its thumbnail stays in memory. */
function closePhoto(): void {
  if (photo.src) URL.revokeObjectURL(photo.src);
  photo.removeAttribute("src");
  photo.hidden = false;
  byId("undecodable").hidden = true;
  opened = null;
  view.clear();
}

function showCaption(item: PhotoItem, atOnce?: boolean): void {
  wording.value = captionOf(item);
  wording.disabled = item.state !== "done" && item.state !== "failed";
  byId("checked").hidden = !item.checked;
  byId("copy").hidden = isUnsure(item);
  byId("approve").hidden = byId("confirm-first").hidden = !isUnsure(item);
  if (item.state === "failed") return view.showError(item.error);
  if (item.result && item.result === view.shown) return;
  if (!item.result) return view.clear();
  void view.show(item.result, atOnce).then(() => { if (item === opened && item.result) announce(`${item.result.sentence} ${item.result.certainty}.`); });
}

function showPager(): void {
  const ordered = grid.ordered, index = ordered.indexOf(opened!);
  for (const id of ["to-grid", "position", "previous", "next"]) byId(id).hidden = ordered.length < 2;
  byId("position").textContent = `${index + 1} of ${ordered.length}`;
  for (const [id, step] of [["previous", -1], ["next", 1]] as const) {
    const button = byId<HTMLButtonElement>(id), target = ordered[index + step];
    button.disabled = !target;
    button.onclick = () => go({ screen: "photo", id: target.id });
  }
}

wording.addEventListener("change", () => opened && collection.edit(opened, wording.value));
photo.addEventListener("error", () => {
  if (!opened) return;
  photo.hidden = true;
  byId("undecodable").hidden = false;
});

// -- all photos ------------------------------------------------------------------------------------------------------

const counted = (count: number, noun: string) => `${count} ${noun}${count === 1 ? "" : "s"}`;
let lastAnnounced = 0; // finished photos

function showProgress(): void {
  const { items } = collection, failed = items.filter(({ state }) => state === "failed").length;
  const finished = items.filter(({ state }) => state === "done").length + failed, progress = byId<HTMLProgressElement>("progress");
  const unsure = items.filter(isUnsure).length;
  const counts = [finished < items.length ? `${finished} of ${items.length} captioned` : `${finished - failed} captioned`];
  if (unsure) counts[0] += `, ${unsure} of them unsure`;
  if (failed) counts.push(`${failed} failed`);
  byId("photos-title").textContent = counted(items.length, "photo");
  byId("counts").textContent = items.length ? counts.join(" · ") : "No photos are left: add some, or undo the removal.";
  byId("percentages").hidden = !items.some(({ result }) => result?.calibrated);
  progress.max = Math.max(1, items.length);
  progress.value = finished;
  progress.hidden = finished === items.length;
  byId("resume").hidden = !items.length;
  byId("resume").textContent = `Back to ${counted(items.length, "photo")}`;
  for (const button of document.querySelectorAll<HTMLButtonElement>("[data-needs=captions]")) button.disabled = !items.some(captionOf);
  byId<HTMLButtonElement>("remove-all").disabled = !items.length;
  showUndo();
  if (opened) showPager();
  const step = Math.max(1, Math.ceil(items.length / 10)); // a screen reader hears about every tenth of them
  if (!byId("photos").hidden && finished !== lastAnnounced && (finished === items.length || finished % step === 0)) announce(counts.join(", "));
  lastAnnounced = finished;
}

function showUndo(): void {
  const label = collection.undoable;
  for (const button of document.querySelectorAll<HTMLButtonElement>("[data-undo]")) {
    button.disabled = !label;
    button.title = label ? `Undo the ${label}` : "";
    button.setAttribute("aria-label", label ? `Undo the ${label}` : "Undo");
  }
}

function undo(): void {
  const label = collection.undo();
  showUndo();
  if (!label) return;
  report(`Undone: ${label}.`);
}

for (const button of document.querySelectorAll("[data-undo]")) button.addEventListener("click", undo);
document.addEventListener("keydown", (event) => { // in a text field the browser's own undo
  if (event.key.toLowerCase() !== "z" || !(event.ctrlKey || event.metaKey) || event.shiftKey) return;
  if (event.target instanceof Element && event.target.matches("textarea, input")) return;
  event.preventDefault();
  undo();
});
byId("remove-all").addEventListener("click", () => {
  collection.remove(collection.items);
  byId("photos-title").focus();
});

const downloads: Record<string, (rule: Rule) => Download | Promise<Download>> = {
  csv: () => asCsv(collection.items),
  json: () => asJson(collection.items),
  html: (rule) => asAltHtml(collection.items, rule),
  zip: (rule) => asSidecars(collection.items, rule),
};
for (const button of document.querySelectorAll<HTMLButtonElement>("[data-download]")) {
  button.addEventListener("click", async () => {
    const includeUnsure = byId<HTMLInputElement>("include-unsure").checked, least = leastConfidence();
    const file = await downloads[button.dataset.download!]({ includeUnsure, minConfidence: least / 100 });
    const reasons = [...(includeUnsure ? [] : ["unsure"]), ...(least ? [`below ${least}%`] : [])].join(" or ");
    const left = file.leftOut ? `; ${file.leftOut} ${reasons} left out` : "";
    if (!file.captions && button.dataset.download !== "csv") return report(`Nothing to write: every caption is ${reasons}.`);
    save(file);
    collection.unsaved = false;
    report(`${file.name}: ${counted(file.captions, "caption")}${left}.`);
  });
}
/** In percent, as a person wrote it; what is no number between 0 and 100 is corrected in the field. */
function leastConfidence(): number {
  const field = byId<HTMLInputElement>("min-confidence"), least = Math.min(100, Math.max(0, field.valueAsNumber || 0));
  field.value = String(least);
  return least;
}

byId("copy-all").addEventListener("click", async () => {
  const lines = asLines(collection.items);
  await copyText(lines);
  collection.unsaved = false;
  report(`${counted(lines.split("\n").length - 1, "caption")} copied.`);
});
addEventListener("beforeunload", (event) => { if (collection.unsaved) event.preventDefault(); });

/** For everyone: below the buttons, and read by screen readers. */
function report(text: string): void {
  byId("report").textContent = text;
  announce(text);
}

/** For screen readers. */
function announce(text: string): void {
  byId("status").textContent = text;
}

async function copyText(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // without https there is no clipboard API, but a selection can be copied
    const field = document.createElement("textarea"), focused = document.activeElement as HTMLElement | null;
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
    focused?.focus();
  }
}

const copy = byId("copy");
copy.addEventListener("click", async () => {
  if (!opened) return;
  await copyText(captionOf(opened));
  copy.textContent = "Copied";
  announce("Alt text copied.");
  setTimeout(() => (copy.textContent = "Copy alt text"), 1600);
});

byId("approve").addEventListener("click", () => {
  if (!opened) return;
  collection.approve(opened);
  copy.focus();
});

// -- the model -------------------------------------------------------------------------------------------------------

function setState(name: "loading" | "ready" | "broken", text: string): void {
  document.body.classList.remove("loading", "ready", "broken");
  document.body.classList.add(name);
  byId("state-text").textContent = text;
}

setState("loading", "Loading the model");
engine.ready.then((info) => {
  setState("ready", "Ready");
  options.setDefault(info.beam);
  byId("about").textContent = `${info.description} Captions can be wrong, above all for photos unlike those the model was trained on: read the sentence before you use it.`;
  if (engine instanceof ServerEngine) byId("token-form").hidden = !engine.tokenRequired;
  else void enableOffline();
  if (!collection.items.length) demo?.play().catch(() => {});
}, (error: Error) => {
  setState("broken", "Not available");
  showStartError(`the model could not be loaded: ${error.message}`);
});

/** A service worker keeps the page's files, the page keeps the model's. */
async function enableOffline(): Promise<void> {
  if (!("serviceWorker" in navigator)) return;
  try {
    await navigator.serviceWorker.register("sw.js");
    await navigator.serviceWorker.ready;
    setState("ready", "Ready, also offline");
    document.body.dataset.offline = "ready";
  } catch {
    /* then only online */
  }
}

if (onServer) {
  byId("where").textContent = "The photos are sent to this server and not stored.";
  byId("note").textContent = engineMeta.dataset.note ?? "";
  if ("pending" in engineMeta.dataset) waitForBrowserModel();
}

/** The server is still exporting the model for the browser. Reload once it is ready, but never while there are photos. */
function waitForBrowserModel(): void {
  const timer = setInterval(async () => {
    const html = await fetch(".", { cache: "no-store" }).then((response) => (response.ok ? response.text() : "")).catch(() => "");
    const meta = new DOMParser().parseFromString(html, "text/html").querySelector<HTMLMetaElement>("meta[name=sightline-engine]");
    if (!meta || "pending" in meta.dataset) return;
    clearInterval(timer);
    if (meta.content === "server") byId("note").textContent = meta.dataset.note ?? "";
    else if (byId("result").hidden && !collection.items.length) location.reload();
    else byId("note").textContent = "The model for your browser is ready: reload this page to use it.";
  }, 3000);
}

function requestToken(reason: string): void {
  go({ screen: "welcome" });
  showStartError(reason);
  byId("token-form").hidden = false;
  token.focus();
}

function showStartError(reason: string): void {
  showMessage(byId("start-error"), reason);
  byId("start-error").hidden = false;
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  byId("choose").focus();
  if (!collection.items.length) return;
  go({ screen: "photos" });
  void collection.run();
});

// -- inputs ----------------------------------------------------------------------------------------------------------

/** One photo is shown at once, several as a grid. */
function take({ files, skipped }: Chosen): void {
  if (!files.length) {
    showStartError("there is no photo in this folder");
    return report("There is no photo in this folder.");
  }
  const items = collection.add(files);
  if (items.length === 1 && !skipped) return go({ screen: "photo", id: items[0].id });
  go({ screen: "photos" });
  report(`${counted(items.length, "photo")} added.${skipped ? ` ${counted(skipped, "other file")} in the folder skipped.` : ""}`);
}

const takeFile = (file: File) => take(chosenFrom([file]));
const file = byId<HTMLInputElement>("file"), folder = byId<HTMLInputElement>("folder"), snap = byId<HTMLInputElement>("snap");
for (const button of document.querySelectorAll("[data-choose]")) button.addEventListener("click", () => file.click());
byId("choose-folder").addEventListener("click", () => folder.click());
byId("choose-folder").hidden = isTouch() || !("webkitdirectory" in folder);
for (const input of [file, folder, snap]) {
  input.addEventListener("change", () => {
    if (input.files?.length) take(chosenFrom(input.files));
    input.value = "";
  });
}
const camera = byId("camera");
camera.hidden = !hasCamera() && !isTouch();
camera.addEventListener("click", () => (hasCamera() ? void openCamera() : snap.click()));
prepareCamera((taken) => takeFile(new File([taken], "camera.jpg", { type: taken.type })));

for (const button of document.querySelectorAll<HTMLButtonElement>("[data-example]")) {
  button.addEventListener("click", async () => {
    const name = `${button.dataset.example}.jpg`, response = await fetch(`examples/${name}`);
    takeFile(new File([await response.blob()], name, { lastModified: 0 })); // 0: the same file each time
  });
}
byId("demo").addEventListener("click", () => document.querySelector<HTMLButtonElement>("[data-example=dog]")!.click());

document.addEventListener("paste", (event) => {
  const pasted = [...(event.clipboardData?.files ?? [])].filter((one) => one.type.startsWith("image/"));
  if (!pasted.length) return;
  event.preventDefault();
  take(chosenFrom(pasted));
});
let depth = 0; // of the elements that a dragged file has entered
const setDragging = (dragging: boolean) => document.body.classList.toggle("over", dragging);
document.addEventListener("dragenter", (event) => {
  event.preventDefault();
  if (event.dataTransfer?.types.includes("Files")) setDragging(++depth > 0);
});
document.addEventListener("dragleave", () => setDragging((depth = Math.max(0, depth - 1)) > 0));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", async (event) => {
  event.preventDefault();
  setDragging((depth = 0) > 0);
  const chosen = event.dataTransfer && (await chosenFromDrop(event.dataTransfer));
  if (chosen && (chosen.files.length || chosen.skipped)) take(chosen);
});
