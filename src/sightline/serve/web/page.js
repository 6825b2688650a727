"use strict";
// Asks this server about one photo at a time, and draws the light as sightline/explain/maps.py does.
const SCALE = Uint8Array.from(atob("$SCALE"), (letter) => letter.charCodeAt(0)); // 256 x RGBA
const SPREAD = $SPREAD, COLOUR = $COLOUR, LONGEST = 960, TRIES = 3;
const $ = (id) => document.getElementById(id);
const photo = $("photo"), light = $("light");
let asking = null, told = null, chosen = -1, timer = 0, pixels = null, token = "", most = Infinity;

fetch("healthz").then((answer) => answer.json()).then((health) => {
  $("model").textContent = `, whose model is “${health.model}”`;
  $("gate").hidden = !health.token_required;
  most = health.limits.max_bytes - 2048; // the form around the photo needs a little
}).catch(() => {});

if ("waiting" in $("note").dataset) { // the page in the browser is being made: change to it, but never under someone's hands
  const look = setInterval(async () => {
    const html = await fetch(".").then((answer) => (answer.ok ? answer.text() : null)).catch(() => null);
    if (html === null) return;
    const note = new DOMParser().parseFromString(html, "text/html").getElementById("note"); // only this page has one
    if (note && "waiting" in note.dataset) return;
    clearInterval(look);
    if ($("result").hidden) location.reload();
    else $("note").textContent = note?.textContent ?? "The version that runs inside your browser is ready: load this page again.";
  }, 3000);
}

// -- asking ----------------------------------------------------------------------------------------------------------

async function ask(file) {
  const form = new FormData();
  form.append("photos", file, file.name || "photo");
  for (let attempt = 1; ; attempt++) {
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const answer = await fetch("v1/explain", { method: "POST", body: form, headers, signal: asking.signal });
    const content = await answer.json();
    if (answer.ok) return content.explanations[0];
    if (answer.status !== 429 || attempt === TRIES) throw Object.assign(new Error(content.error), { status: answer.status });
    say("The server is busy; trying again shortly.");
    await new Promise((done) => setTimeout(done, 1000 * Math.min(10, Number(answer.headers.get("Retry-After")) || 1)));
  }
}

async function describe(file) {
  asking?.abort();
  const mine = (asking = new AbortController());
  token = $("token").value.trim();
  begin(file);
  try {
    if (file.size > most) throw new Error(`this photo has ${megabytes(file.size)}; the server takes ${megabytes(most)}: shrink it first`);
    const answer = await ask(file);
    if (mine === asking) tell(answer);
  } catch (error) {
    if (mine !== asking || error.name === "AbortError") return;
    if (error.status === 401) return askToken();
    fail(error instanceof TypeError ? "the server cannot be reached: is it still running?" : error.message);
  }
}

const megabytes = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MB`;

// -- telling ---------------------------------------------------------------------------------------------------------

function begin(file) {
  stop();
  told = pixels = null;
  URL.revokeObjectURL(photo.src);
  photo.alt = "";
  photo.hidden = false;
  photo.src = URL.createObjectURL(file);
  for (const id of ["told", "copy", "play", "panel", "late", "early", "unseen", "welcome"]) $(id).hidden = true;
  $("legend").textContent = "";
  $("result").hidden = $("ghost").hidden = false;
  $("result").classList.add("busy");
  $("result").setAttribute("aria-busy", "true");
  light.classList.remove("lit");
  light.hidden = true;
  say("Looking at the photo.");
  window.scrollTo({ top: 0 });
}

function done() {
  $("result").classList.remove("busy");
  $("result").removeAttribute("aria-busy");
  $("ghost").hidden = true;
}

function askToken() {
  done();
  $("result").hidden = true;
  $("welcome").hidden = $("gate").hidden = $("early").hidden = false;
  $("early").textContent = token ? "This is not the server’s token." : "The server asks for a token first.";
  $("token").focus();
  say("");
}

function fail(reason) {
  done();
  $("late").textContent = reason[0].toUpperCase() + reason.slice(1) + (/[.?!]$/.test(reason) ? "" : ".");
  $("late").hidden = false;
  say("");
}

function tell(answer) {
  done();
  told = answer;
  photo.alt = answer.sentence;
  const sentence = $("sentence");
  sentence.replaceChildren(...(answer.unsure ? ["unsure: "] : []));
  answer.words.forEach((word, index) => {
    const button = make("button", "word", word.text);
    button.type = "button";
    button.style.setProperty("--share", word.confidence ?? word.probability);
    button.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-label", `${word.text}, ${percent(word.probability)} likely`);
    button.addEventListener("click", () => { stop(); show(index === chosen ? -1 : index); });
    button.addEventListener("keydown", (event) => walk(event, index));
    if (index) sentence.append(" ");
    sentence.append(button);
  });
  sentence.append(answer.words.length ? "." : "The model said nothing.");
  $("sure").style.setProperty("--share", answer.confidence);
  const certainty = answer.certainty ?? `${percent(answer.confidence)} confidence`;
  $("certainty").textContent = certainty;
  const others = answer.others || [];
  $("ranking").replaceChildren(...others.map((other) => row(capital(other.caption), other.confidence)));
  $("others").hidden = !others.length;
  $("told").hidden = $("panel").hidden = false;
  $("copy").hidden = $("play").hidden = $("hint").hidden = !answer.words.length;
  show(-1);
  say(`${answer.sentence} ${certainty}.`);
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1) + ".";
const percent = (share) => (share < 0.005 ? "under 1%" : `${Math.round(100 * share)}%`);
const readable = (text) => ({ "<end>": "(the end)", " ": "(a space)" })[text] || text.replace(/^▁/, "");

function say(text) { $("status").textContent = text; }

function make(kind, name, text) {
  const element = document.createElement(kind);
  element.className = name;
  element.textContent = text;
  return element;
}

function row(text, share) {
  const item = document.createElement("li"), bar = make("span", "bar", "");
  bar.style.setProperty("--share", share);
  bar.setAttribute("aria-hidden", "true");
  item.append(make("span", "", text), bar, make("span", "number", share < 0.005 ? "<1%" : percent(share)));
  return item;
}

// -- one word and its light ------------------------------------------------------------------------------------------

function show(index) {
  chosen = index;
  document.querySelectorAll(".word").forEach((word, at) => word.setAttribute("aria-pressed", String(at === index)));
  const word = told?.words[index];
  $("whole").hidden = Boolean(word);
  $("legend").textContent = "";
  if (!word) {
    light.classList.remove("lit");
    $("chosen").replaceChildren();
    return;
  }
  const facts = percent(word.probability) + " likely" + (word.gate == null ? "" : ` · gate ${word.gate.toFixed(2)}`);
  const runners = document.createElement("ol");
  runners.className = "ranking";
  runners.append(...word.alternatives.slice(0, 5).map((other) => row(readable(other.text), other.probability)));
  $("chosen").replaceChildren(make("h2", "", word.text), make("p", "facts", facts), make("h3", "", "Runners-up"), runners);
  if (!word.heat_map || photo.hidden) return;
  const where = told.method === "attention" ? "where the model looked for" : "the part of the photo that led to";
  light.setAttribute("aria-label", `Bright is ${where} “${word.text}”.`);
  $("legend").textContent = `Bright is ${where} “${word.text}”.`;
  photo.decode().then(() => { if (chosen === index) { shine(word.heat_map); light.hidden = false; requestAnimationFrame(() => light.classList.add("lit")); } }, () => {});
}

function prepare() { // once for each photo: its pixels, and which of them the model saw
  const scale = Math.min(1, LONGEST / Math.max(photo.naturalWidth, photo.naturalHeight));
  light.width = Math.max(1, Math.round(photo.naturalWidth * scale));
  light.height = Math.max(1, Math.round(photo.naturalHeight * scale));
  const pen = light.getContext("2d", { willReadFrequently: true });
  pen.drawImage(photo, 0, 0, light.width, light.height);
  pixels = pen.getImageData(0, 0, light.width, light.height).data;
}

function weights(count, start, end, length) { // how much each place of the grid counts for each pixel; null outside
  return Array.from({ length }, (_, pixel) => {
    const share = ((pixel + 0.5) / length - start) / (end - start);
    if (share < 0 || share > 1) return null;
    const position = share * count - 0.5;
    const all = Array.from({ length: count }, (_, place) => Math.exp(-0.5 * ((position - place) / SPREAD) ** 2));
    const sum = all.reduce((total, value) => total + value);
    return all.map((value) => value / sum);
  });
}

function shine(map) {
  if (!pixels) prepare();
  const { width, height } = light, [left, top, right, bottom] = told.frame;
  const across = weights(map[0].length, left, right, width), down = weights(map.length, top, bottom, height);
  const pen = light.getContext("2d"), out = pen.createImageData(width, height), shown = out.data;
  for (let y = 0, at = 0; y < height; y++) {
    const line = down[y] && map[0].map((_, x) => down[y].reduce((sum, weight, place) => sum + weight * map[place][x], 0));
    for (let x = 0; x < width; x++, at += 4) {
      let value = 0;
      if (line && across[x]) for (let place = 0; place < line.length; place++) value += across[x][place] * line[place];
      const level = Math.max(0, Math.min(255, Math.round(255 * value)));
      const colour = Math.min(1, (COLOUR * level) / 255), alpha = SCALE[4 * level + 3] / 255;
      const grey = 0.299 * pixels[at] + 0.587 * pixels[at + 1] + 0.114 * pixels[at + 2];
      for (let channel = 0; channel < 3; channel++) {
        const own = grey + colour * (pixels[at + channel] - grey);
        shown[at + channel] = own + alpha * (SCALE[4 * level + channel] - own);
      }
      shown[at + 3] = 255;
    }
  }
  pen.putImageData(out, 0, 0);
}

function walk(event, index) {
  const words = [...document.querySelectorAll(".word")];
  const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: words.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  stop();
  const next = (to + words.length) % words.length;
  words[next].focus();
  show(next);
}

function stop() {
  clearInterval(timer);
  timer = 0;
  $("play").textContent = "Play";
  $("play").setAttribute("aria-label", "Play: show every word in turn");
}

// -- hands -----------------------------------------------------------------------------------------------------------

$("choose").addEventListener("click", () => $("file").click());
$("another").addEventListener("click", () => $("file").click());
$("gate").addEventListener("submit", (event) => { event.preventDefault(); $("choose").focus(); });
$("file").addEventListener("change", (event) => {
  if (event.target.files[0]) describe(event.target.files[0]);
  event.target.value = "";
});
$("play").addEventListener("click", () => {
  if (timer) return stop();
  show(chosen + 1 < told.words.length ? chosen + 1 : 0);
  $("play").textContent = "Pause";
  $("play").setAttribute("aria-label", "Pause");
  timer = setInterval(() => (chosen + 1 < told.words.length ? show(chosen + 1) : (stop(), show(-1))), 1200);
});
$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(told.sentence);
  } catch { // without https there is no clipboard to write to, but what is selected can be copied
    getSelection().selectAllChildren($("sentence"));
    document.execCommand("copy");
  }
  $("copy").textContent = "Copied";
  say("Alt text copied.");
  setTimeout(() => ($("copy").textContent = "Copy alt text"), 1600);
});
photo.addEventListener("load", () => $("stage").style.setProperty("--ratio", photo.naturalWidth / photo.naturalHeight));
photo.addEventListener("error", () => { photo.hidden = true; $("unseen").hidden = false; });
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && told) { stop(); show(-1); } });
document.addEventListener("paste", (event) => {
  const file = [...event.clipboardData.files].find((one) => one.type.startsWith("image/"));
  if (file) { event.preventDefault(); describe(file); }
});
let inside = 0;
document.addEventListener("dragenter", (event) => { event.preventDefault(); inside++; document.body.classList.add("over"); });
document.addEventListener("dragleave", () => { if (--inside <= 0) { inside = 0; document.body.classList.remove("over"); } });
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  inside = 0;
  document.body.classList.remove("over");
  const file = event.dataTransfer.files[0];
  if (file) describe(file);
});
