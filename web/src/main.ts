// The page: a photo comes in by any door, the worker says what it shows.

import { hasCamera, isTouch, openCamera, prepareCamera } from "./camera";
import { Demo } from "./demo";
import { byId } from "./dom";
import { Engine } from "./engine";
import type { About, Wish } from "./messages";
import { sentence, Story } from "./story";

const file = byId<HTMLInputElement>("file"), snap = byId<HTMLInputElement>("snap"), photo = byId<HTMLImageElement>("photo");
const beam = byId<HTMLInputElement>("beam"), temperature = byId<HTMLInputElement>("temperature");
const engine = new Engine((done, whole) => {
  byId("state").style.setProperty("--done", String(done / whole));
  byId("state-text").textContent = `Getting the model, ${Math.floor((100 * Math.min(done, whole)) / whole)}%`;
});
const story = new Story(), demo = new Demo(engine);
let chosen: Blob | null = null, asked = 0, own: Wish = { beam: 3, temperature: 0 };

Object.assign(window, { sightline: engine }); // for measuring, and for the curious

// -- a photo ---------------------------------------------------------------------------------------------------------

async function describe(given: Blob): Promise<void> {
  chosen = given;
  if (!history.state) history.pushState("photo", ""); // so that Back leads to the first screen
  URL.revokeObjectURL(photo.src);
  photo.alt = "";
  photo.hidden = false;
  byId("unseen").hidden = byId("early").hidden = true;
  photo.src = URL.createObjectURL(given);
  turnTo("result");
  byId("sentence").focus({ preventScroll: true });
  await ask();
}

function turnTo(name: "welcome" | "result"): void {
  demo.stop();
  byId("welcome").hidden = name !== "welcome";
  byId("result").hidden = name !== "result";
  window.scrollTo({ top: 0 });
  if (name === "welcome" && document.body.classList.contains("ready")) demo.play().catch(() => {});
}

async function ask(): Promise<void> {
  const mine = ++asked, given = chosen;
  if (!given) return;
  story.begin();
  say("Looking at the photo.");
  try {
    await engine.ready;
    const told = await engine.caption(given, wish(), (words, frame) => { if (mine === asked) story.live(words, frame); });
    if (mine !== asked) return;
    await story.tell(told);
    if (mine === asked) say(`${told.sentence} ${told.certainty}.`);
  } catch (error) {
    if (mine !== asked) return;
    story.fail((error as Error).message);
    say("");
  }
}

function say(text: string): void {
  byId("status").textContent = text;
}

// -- the model -------------------------------------------------------------------------------------------------------

function state(name: "loading" | "ready" | "broken", text: string): void {
  document.body.classList.remove("loading", "ready", "broken");
  document.body.classList.add(name);
  byId("state-text").textContent = text;
}

function tellAbout(about: About): void {
  const size = about.parameters / 1e6;
  byId("about").textContent = `${size.toFixed(1)} million parameters, ${about.megabytes.toFixed(1)} MB, computed in your browser with ONNX Runtime. `
    + "It can be wrong, above all on photos unlike those it learnt from: read the sentence before you use it.";
}

state("loading", "Getting the model");
engine.ready.then((about) => {
  state("ready", "Ready");
  own = { beam: about.beam, temperature: 0 };
  beam.max = String(Math.max(10, about.beam));
  reset();
  tellAbout(about);
  void keepOffline();
  if (!chosen) demo.play().catch(() => {});
}, (error: Error) => {
  state("broken", "Not available");
  byId("early").textContent = sentence(`the model could not be loaded: ${error.message}`);
  byId("early").hidden = false;
});

/** From now on without a network: a service worker keeps the page, the page keeps the model. */
async function keepOffline(): Promise<void> {
  if (!("serviceWorker" in navigator)) return;
  try {
    await navigator.serviceWorker.register("sw.js");
    await navigator.serviceWorker.ready;
    state("ready", "Ready, also offline");
    document.body.dataset.offline = "ready";
  } catch {
    /* then only online */
  }
}

// -- doors -----------------------------------------------------------------------------------------------------------

byId("choose").addEventListener("click", () => file.click());
byId("another").addEventListener("click", () => file.click());
for (const input of [file, snap]) {
  input.addEventListener("change", () => {
    if (input.files?.[0]) void describe(input.files[0]);
    input.value = "";
  });
}
const camera = byId("camera");
camera.hidden = !hasCamera() && !isTouch();
camera.addEventListener("click", () => (hasCamera() ? void openCamera() : snap.click()));
prepareCamera((taken) => void describe(taken));

for (const button of document.querySelectorAll<HTMLButtonElement>("[data-example]")) {
  button.addEventListener("click", async () => {
    const answer = await fetch(`examples/${button.dataset.example}.jpg`);
    void describe(await answer.blob());
  });
}
byId("demo").addEventListener("click", () => document.querySelector<HTMLButtonElement>("[data-example=dog]")!.click());

document.addEventListener("paste", (event) => {
  const pasted = [...(event.clipboardData?.files ?? [])].find((one) => one.type.startsWith("image/"));
  if (!pasted) return;
  event.preventDefault();
  void describe(pasted);
});
let inside = 0;
const over = (now: boolean) => document.body.classList.toggle("over", now);
document.addEventListener("dragenter", (event) => {
  event.preventDefault();
  if (event.dataTransfer?.types.includes("Files")) over(++inside > 0);
});
document.addEventListener("dragleave", () => over((inside = Math.max(0, inside - 1)) > 0));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  over((inside = 0) > 0);
  const dropped = event.dataTransfer?.files[0];
  if (dropped) void describe(dropped);
});
photo.addEventListener("error", () => {
  photo.hidden = true;
  byId("unseen").hidden = false;
});

addEventListener("popstate", () => turnTo(history.state && chosen ? "result" : "welcome"));
byId("home").addEventListener("click", (event) => { // no need to load everything again
  event.preventDefault();
  if (history.state) history.back();
  byId("main").focus({ preventScroll: true });
});
if (history.state) history.replaceState(null, ""); // reloaded: the photo is gone

// -- its words -------------------------------------------------------------------------------------------------------

const copy = byId("copy");
copy.addEventListener("click", async () => {
  const text = story.told?.sentence ?? "";
  try {
    await navigator.clipboard.writeText(text);
  } catch { // without https there is no clipboard to write to, but what is selected can be copied
    getSelection()?.selectAllChildren(byId("sentence"));
    document.execCommand("copy");
  }
  copy.textContent = "Copied";
  say("Alt text copied.");
  setTimeout(() => (copy.textContent = "Copy alt text"), 1600);
});

function wish(): Wish {
  return { beam: beam.valueAsNumber, temperature: temperature.valueAsNumber };
}

function showWish(): void {
  const { beam: width, temperature: heat } = wish();
  byId("beam-out").textContent = String(width);
  byId("temperature-out").textContent = heat ? heat.toFixed(1) : "0";
  beam.disabled = heat > 0;
  byId("again").hidden = !heat;
  byId("reset").hidden = !heat && width === own.beam;
}

function reset(): void {
  beam.valueAsNumber = own.beam;
  temperature.valueAsNumber = own.temperature;
  showWish();
}

let soon = 0;
for (const input of [beam, temperature]) {
  input.addEventListener("input", () => {
    showWish();
    clearTimeout(soon);
    soon = window.setTimeout(() => void ask(), 220);
  });
}
byId("again").addEventListener("click", () => void ask());
byId("reset").addEventListener("click", () => {
  reset();
  void ask();
});
