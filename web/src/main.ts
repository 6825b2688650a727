// The page: takes a photo from any input, has the engine caption it, and shows the result.

import { hasCamera, isTouch, openCamera, prepareCamera } from "./camera";
import { Demo } from "./demo";
import { byId } from "./dom";
import { BrowserEngine, ServerEngine, TokenError, type Engine } from "./engine";
import type { SliderOptions } from "./messages";
import { asSentence, ResultView } from "./result";

// A server without a model for the browser changes this element: then it captions the photos itself.
const engineMeta = document.querySelector<HTMLMetaElement>("meta[name=sightline-engine]")!;
const onServer = engineMeta.content === "server";
const file = byId<HTMLInputElement>("file"), snap = byId<HTMLInputElement>("snap"), photo = byId<HTMLImageElement>("photo");
const beam = byId<HTMLInputElement>("beam"), temperature = byId<HTMLInputElement>("temperature"), token = byId<HTMLInputElement>("token");
const engine: Engine = onServer
  ? new ServerEngine(() => token.value.trim(), () => announce("The server is busy; trying again shortly."))
  : new BrowserEngine((done, total) => {
    byId("state").style.setProperty("--done", String(done / total));
    byId("state-text").textContent = `Loading the model, ${Math.floor((100 * Math.min(done, total)) / total)}%`;
  });
const view = new ResultView(), demo = onServer ? null : new Demo(engine);
let current: Blob | null = null, lastRequest = 0, defaults: SliderOptions = { beam: 3, temperature: 0 };

Object.assign(window, { sightline: engine }); // for tests and benchmarks

// -- captioning ------------------------------------------------------------------------------------------------------

async function captionPhoto(blob: Blob): Promise<void> {
  current = blob;
  if (!history.state) history.pushState("photo", ""); // so that Back leads to the first screen
  URL.revokeObjectURL(photo.src);
  photo.alt = "";
  photo.hidden = false;
  byId("undecodable").hidden = byId("start-error").hidden = true;
  photo.src = URL.createObjectURL(blob);
  showScreen("result");
  byId("sentence").focus({ preventScroll: true });
  await captionCurrent();
}

function showScreen(name: "welcome" | "result"): void {
  demo?.stop();
  byId("welcome").hidden = name !== "welcome";
  byId("result").hidden = name !== "result";
  window.scrollTo({ top: 0 });
  if (name === "welcome" && document.body.classList.contains("ready")) demo?.play().catch(() => {});
}

async function captionCurrent(): Promise<void> {
  const request = ++lastRequest, blob = current;
  if (!blob) return;
  view.clear();
  announce("Captioning the photo.");
  try {
    await engine.ready;
    const result = await engine.caption(blob, isDefault(options()) ? null : options(), (words, frame) => { if (request === lastRequest) view.showPartial(words, frame); });
    if (request !== lastRequest) return;
    await view.show(result);
    if (request === lastRequest) announce(`${result.sentence} ${result.certainty}.`);
  } catch (error) {
    if (request !== lastRequest) return;
    announce("");
    if (error instanceof TokenError) return requestToken(error.message);
    view.showError((error as Error).message);
  }
}

function requestToken(reason: string): void {
  showStartError(reason);
  showScreen("welcome");
  byId("token-form").hidden = false;
  token.focus();
}

function showStartError(reason: string): void {
  byId("start-error").textContent = asSentence(reason);
  byId("start-error").hidden = false;
}

/** For screen readers. */
function announce(text: string): void {
  byId("status").textContent = text;
}

// -- the model -------------------------------------------------------------------------------------------------------

function setState(name: "loading" | "ready" | "broken", text: string): void {
  document.body.classList.remove("loading", "ready", "broken");
  document.body.classList.add(name);
  byId("state-text").textContent = text;
}

setState("loading", "Loading the model");
engine.ready.then((info) => {
  setState("ready", "Ready");
  defaults = { beam: info.beam, temperature: 0 };
  beam.max = String(Math.max(10, info.beam));
  resetOptions();
  byId("about").textContent = `${info.description} Captions can be wrong, above all for photos unlike those the model was trained on: read the sentence before you use it.`;
  if (engine instanceof ServerEngine) byId("token-form").hidden = !engine.tokenRequired;
  else void enableOffline();
  if (!current) demo?.play().catch(() => {});
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
  byId("where").textContent = "The photo is sent to this server and not stored.";
  byId("note").textContent = engineMeta.dataset.note ?? "";
  if ("pending" in engineMeta.dataset) waitForBrowserModel();
}

/** The server is still exporting the model for the browser. Reload once it is ready, but never while a result is shown. */
function waitForBrowserModel(): void {
  const timer = setInterval(async () => {
    const html = await fetch(".", { cache: "no-store" }).then((response) => (response.ok ? response.text() : "")).catch(() => "");
    const meta = new DOMParser().parseFromString(html, "text/html").querySelector<HTMLMetaElement>("meta[name=sightline-engine]");
    if (!meta || "pending" in meta.dataset) return;
    clearInterval(timer);
    if (meta.content === "server") byId("note").textContent = meta.dataset.note ?? "";
    else if (byId("result").hidden) location.reload();
    else byId("note").textContent = "The model for your browser is ready: reload this page to use it.";
  }, 3000);
}

// -- inputs ----------------------------------------------------------------------------------------------------------

byId("choose").addEventListener("click", () => file.click());
byId("another").addEventListener("click", () => file.click());
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  byId("choose").focus();
});
for (const input of [file, snap]) {
  input.addEventListener("change", () => {
    if (input.files?.[0]) void captionPhoto(input.files[0]);
    input.value = "";
  });
}
const camera = byId("camera");
camera.hidden = !hasCamera() && !isTouch();
camera.addEventListener("click", () => (hasCamera() ? void openCamera() : snap.click()));
prepareCamera((taken) => void captionPhoto(taken));

for (const button of document.querySelectorAll<HTMLButtonElement>("[data-example]")) {
  button.addEventListener("click", async () => {
    const response = await fetch(`examples/${button.dataset.example}.jpg`);
    void captionPhoto(await response.blob());
  });
}
byId("demo").addEventListener("click", () => document.querySelector<HTMLButtonElement>("[data-example=dog]")!.click());

document.addEventListener("paste", (event) => {
  const pasted = [...(event.clipboardData?.files ?? [])].find((one) => one.type.startsWith("image/"));
  if (!pasted) return;
  event.preventDefault();
  void captionPhoto(pasted);
});
let depth = 0; // of the elements that a dragged file has entered
const setDragging = (dragging: boolean) => document.body.classList.toggle("over", dragging);
document.addEventListener("dragenter", (event) => {
  event.preventDefault();
  if (event.dataTransfer?.types.includes("Files")) setDragging(++depth > 0);
});
document.addEventListener("dragleave", () => setDragging((depth = Math.max(0, depth - 1)) > 0));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  setDragging((depth = 0) > 0);
  const dropped = event.dataTransfer?.files[0];
  if (dropped) void captionPhoto(dropped);
});
photo.addEventListener("error", () => {
  photo.hidden = true;
  byId("undecodable").hidden = false;
});

addEventListener("popstate", () => showScreen(history.state && current ? "result" : "welcome"));
byId("home").addEventListener("click", (event) => { // without loading the model again
  event.preventDefault();
  if (history.state) history.back();
  byId("main").focus({ preventScroll: true });
});
if (history.state) history.replaceState(null, ""); // reloaded: the photo is gone

// -- copying, decoding options ---------------------------------------------------------------------------------------

const copy = byId("copy");
copy.addEventListener("click", async () => {
  const text = view.result?.sentence ?? "";
  try {
    await navigator.clipboard.writeText(text);
  } catch { // without https there is no clipboard API, but a selection can be copied
    getSelection()?.selectAllChildren(byId("sentence"));
    document.execCommand("copy");
  }
  copy.textContent = "Copied";
  announce("Alt text copied.");
  setTimeout(() => (copy.textContent = "Copy alt text"), 1600);
});

function options(): SliderOptions {
  return { beam: beam.valueAsNumber, temperature: temperature.valueAsNumber };
}

const isDefault = (chosen: SliderOptions) => chosen.beam === defaults.beam && chosen.temperature === defaults.temperature;

function showOptions(): void {
  const chosen = options();
  byId("beam-out").textContent = String(chosen.beam);
  byId("temperature-out").textContent = chosen.temperature ? chosen.temperature.toFixed(1) : "0";
  beam.disabled = chosen.temperature > 0;
  byId("again").hidden = !chosen.temperature;
  byId("reset").hidden = isDefault(chosen);
}

function resetOptions(): void {
  beam.valueAsNumber = defaults.beam;
  temperature.valueAsNumber = defaults.temperature;
  showOptions();
}

let delay = 0;
for (const input of [beam, temperature]) {
  input.addEventListener("input", () => {
    showOptions();
    clearTimeout(delay);
    delay = window.setTimeout(() => void captionCurrent(), 220);
  });
}
byId("again").addEventListener("click", () => void captionCurrent());
byId("reset").addEventListener("click", () => {
  resetOptions();
  void captionCurrent();
});
