"use strict";
// The heat map over the photo, as sightline/explain/heatmap.py draws it: same smoothing, same colours.
const data = JSON.parse(document.getElementById("data").textContent);
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const views = data.views.map(bytes); // each: all words' maps, row by row
const scale = bytes(data.scale); // 256 x RGBA
const cells = data.height * data.width;
const photo = document.getElementById("photo");
const canvas = document.getElementById("heat-map");
const words = [...document.querySelectorAll(".word")];
const panels = [...document.querySelectorAll(".panel")]; // the whole caption first, then one for each word
const layers = document.getElementById("layers");
const choices = [...document.querySelectorAll("[data-view]")];
let word = -1, view = 0, timer = 0, pixels = null;

function weights(count, length) {
  return Array.from({ length }, (_, pixel) => {
    const position = ((pixel + 0.5) * count) / length - 0.5;
    const row = Array.from({ length: count }, (_, cell) => Math.exp(-0.5 * ((position - cell) / data.spread) ** 2));
    const sum = row.reduce((total, value) => total + value);
    return row.map((value) => value / sum);
  });
}

const mapOf = (index, chosen) => views[chosen].subarray(index * cells, (index + 1) * cells);
let across, down;

function prepare() { // once the photo is decoded
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [canvas.width, canvas.height];
  const context = copy.getContext("2d");
  context.drawImage(photo, 0, 0, copy.width, copy.height);
  pixels = context.getImageData(0, 0, copy.width, copy.height).data;
  across = weights(data.width, copy.width);
  down = weights(data.height, copy.height);
}

function draw() {
  if (!pixels) prepare();
  const map = mapOf(word, view), context = canvas.getContext("2d");
  const out = context.createImageData(canvas.width, canvas.height), shown = out.data;
  const row = new Float64Array(data.width);
  for (let y = 0, at = 0; y < canvas.height; y++) {
    for (let x = 0; x < data.width; x++) {
      row[x] = 0;
      for (let cell = 0; cell < data.height; cell++) row[x] += down[y][cell] * map[cell * data.width + x];
    }
    for (let x = 0; x < canvas.width; x++, at += 4) {
      let value = 0;
      for (let cell = 0; cell < data.width; cell++) value += across[x][cell] * row[cell];
      const level = Math.min(255, Math.round((value * data.highest)));
      const colour = Math.min(1, (data.colour * level) / 255);
      const grey = 0.299 * pixels[at] + 0.587 * pixels[at + 1] + 0.114 * pixels[at + 2];
      const alpha = scale[4 * level + 3] / 255;
      for (let channel = 0; channel < 3; channel++) {
        const base = grey + colour * (pixels[at + channel] - grey);
        shown[at + channel] = base + alpha * (scale[4 * level + channel] - base);
      }
      shown[at + 3] = 255;
    }
  }
  context.putImageData(out, 0, 0);
}

function thumbnails() {
  for (const choice of choices) {
    const canvas = choice.querySelector("canvas");
    choice.setAttribute("aria-pressed", String(Number(choice.dataset.view) === view));
    if (!canvas) continue;
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (word < 0) continue;
    const picture = context.createImageData(data.width, data.height);
    mapOf(word, Number(choice.dataset.view)).forEach((value, cell) => {
      const share = Math.min(1, (value * data.highest) / 255);
      picture.data.set([12 + 243 * share, 16 + 160 * share, 38 + 30 * share, 255], 4 * cell);
    });
    context.putImageData(picture, 0, 0);
  }
}

function show(index) {
  word = index;
  words.forEach((button, at) => button.setAttribute("aria-pressed", String(at === index)));
  panels.forEach((panel, at) => (panel.hidden = at !== index + 1));
  const visible = index >= 0 && views.length > 0;
  canvas.classList.toggle("visible", visible);
  if (layers) layers.hidden = !visible;
  thumbnails();
  if (!visible) return;
  canvas.setAttribute("aria-label", `Heat map for “${words[index].textContent}”`);
  photo.decode().then(draw, draw);
}

function stop() {
  clearInterval(timer);
  timer = 0;
  if (play) play.textContent = "Play";
}

const play = document.getElementById("play"), whole = document.getElementById("whole");
words.forEach((button, index) => {
  button.addEventListener("click", () => { stop(); show(index); });
  button.addEventListener("focus", () => { stop(); show(index); });
  button.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) words[(index + step + words.length) % words.length].focus();
  });
});
choices.forEach((choice) => choice.addEventListener("click", () => {
  view = Number(choice.dataset.view);
  show(word < 0 ? 0 : word);
}));
whole?.addEventListener("click", () => { stop(); show(-1); });
play?.addEventListener("click", () => {
  if (timer) return stop();
  show((word + 1) % words.length);
  play.textContent = "Pause";
  timer = setInterval(() => (word + 1 < words.length ? show(word + 1) : (stop(), show(-1))), 1100);
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") { stop(); show(-1); } });
show(-1);
