// The captions as text and files. The same rules as in Python: the columns, cells and sidecar names of the command
// line, and nothing unsure in alt text and sidecars unless a person asks for it.

import { makeZip } from "client-zip";
import { captionOf, type PhotoItem } from "./collection";

const COLUMNS = ["source", "caption", "confidence", "unsure", "ood_score", "finished", "error"];
const LONGEST_ALT = 125; // characters of the model's alt text; a person's own wording is not cut
const FORMULA = /^'*[=+\-@\t\r\n]/; // a spreadsheet takes such a cell for a formula

type Cell = string | number | boolean | null;

/** Which captions may stand for their photos in alt text and sidecars, as `Caption.is_reliable` in src/sightline/types.py. */
export interface Rule {
  includeUnsure: boolean;
  minConfidence: number; // 0 to 1
}

/** A file to download, and how many captions the rule leaves out. */
export interface Download {
  name: string;
  content: Blob;
  captions: number;
  leftOut: number;
}

export const isUnsure = ({ result, checked }: PhotoItem) => Boolean(result?.unsure) && !checked;
const isCaptioned = (item: PhotoItem) => captionOf(item) !== "";
const rounded = (value: number, digits: number) => Math.round(value * 10 ** digits) / 10 ** digits;

/** A person's wording as it is; the model's as bare words, as the command line writes them. */
const plainCaption = (item: PhotoItem) => item.wording ?? item.result?.text ?? "";

// -- tables ----------------------------------------------------------------------------------------------------------

/** As `sightline caption --csv`. A caption that a person wrote has no confidence. */
export function asCsv(items: PhotoItem[]): Download {
  const lines = [COLUMNS, ...items.filter((item) => isCaptioned(item) || item.error).map(row)].map(csvLine);
  return { name: "captions.csv", content: text(lines.join(""), "text/csv"), captions: items.filter(isCaptioned).length, leftOut: 0 };
}

function row(item: PhotoItem): Cell[] {
  const { result, path, wording } = item;
  if (!isCaptioned(item)) return [path, null, null, null, null, null, item.error];
  const ood = result?.ood_score ?? null, score = ood === null ? null : rounded(ood, 3);
  if (wording !== null || !result) return [path, plainCaption(item), null, false, score, true, null];
  return [path, plainCaption(item), rounded(result.confidence, 4), isUnsure(item), score, result.finished, null];
}

function csvLine(cells: Cell[]): string {
  const texts = cells.map(cellText), all = texts.some((one) => one.includes("\r"));
  return `${texts.map((one) => (all || /[",\n]/.test(one) ? `"${one.replaceAll('"', '""')}"` : one)).join(",")}\n`;
}

function cellText(value: Cell): string {
  if (value === null) return "";
  if (typeof value === "number") return Number.isInteger(value) ? value.toFixed(1) : String(value);
  return typeof value === "string" ? withoutFormula(value) : String(value);
}

/** Text that a spreadsheet would take for a formula begins with an apostrophe. */
const withoutFormula = (value: string) => (FORMULA.test(value) && value.replace(/^'+/, "") !== "-" ? `'${value}` : value);

/** As `sightline caption --json`; `checked` marks captions that a person wrote or found right. */
export function asJson(items: PhotoItem[]): Download {
  const captioned = items.filter(isCaptioned), lines = captioned.map((item) => JSON.stringify(record(item)));
  const content = lines.length ? `[\n${lines.join(",\n")}\n]\n` : "[]\n";
  return { name: "captions.json", content: text(content, "application/json"), captions: captioned.length, leftOut: 0 };
}

function record(item: PhotoItem): object {
  const { path: source, result, wording, checked } = item, caption = plainCaption(item);
  const ood = result?.ood_score ?? null, score = ood === null ? {} : { ood_score: rounded(ood, 3) };
  if (wording !== null || !result) {
    const model = result ? { model_caption: result.text } : {};
    return { source, caption, confidence: null, calibrated: false, unsure: false, ...score, finished: true, checked, ...model, words: [] };
  }
  const words = result.words.map(({ text, probability, confidence }) =>
    ({ text, probability: rounded(probability, 4), ...(result.calibrated ? { confidence: rounded(confidence, 4) } : {}) }));
  return {
    source, caption, confidence: rounded(result.confidence, 4), calibrated: result.calibrated, unsure: isUnsure(item), ...score,
    finished: result.finished, checked, words,
  };
}

/** For the clipboard: a photo and its sentence on each line, as `sightline caption` prints them. */
export function asLines(items: PhotoItem[]): string {
  const oneLine = (value: string) => withoutFormula(value.replace(/\s+/g, " ").trim());
  return items.filter(isCaptioned).map((item) => `${oneLine(item.path)}\t${oneLine(sentenceOf(item))}\n`).join("");
}

/** For a person to read: the mark "unsure:" stays, unless a person has checked the caption. */
export const sentenceOf = (item: PhotoItem) => (isUnsure(item) ? item.result!.sentence : captionOf(item));

// -- alt text and sidecars -------------------------------------------------------------------------------------------

/** A page of <img> elements with the photos' relative addresses. */
export function asAltHtml(items: PhotoItem[], rule: Rule): Download {
  const { written, leftOut } = chosen(items, rule);
  const images = written.map((item) => `<img src="${item.path.split("/").map(encodeURIComponent).join("/")}" alt="${escaped(altOf(item))}">\n`);
  const content = `<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>Photos with alt text</title>\n${images.join("")}`;
  return { name: "alt-text.html", content: text(content, "text/html"), captions: written.length, leftOut };
}

function altOf(item: PhotoItem): string {
  const caption = captionOf(item).replace(/\s+/g, " ");
  if (item.wording !== null || caption.length <= LONGEST_ALT) return caption;
  return `${caption.slice(0, LONGEST_ALT - 1).replace(/\s\S*$/, "").replace(/[ ,]+$/, "")}…`;
}

const escaped = (value: string) => value.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");

/** `dog.txt` for each `dog.jpg`, as `sightline bulk --sidecar` writes them, in a zip file. */
export async function asSidecars(items: PhotoItem[], rule: Rule): Promise<Download> {
  const { written, leftOut } = chosen(items, rule), names = sidecarNames(items), lastModified = new Date();
  const files = written.map((item) => ({ name: names.get(item)!, input: `${plainCaption(item)}\n`, lastModified }));
  const content = await new Response(makeZip(files)).blob();
  return { name: "sidecars.zip", content: content.slice(0, content.size, "application/zip"), captions: written.length, leftOut };
}

/** Where several photos of a folder are called dog: `dog.jpg.txt`. */
function sidecarNames(items: PhotoItem[]): Map<PhotoItem, string> {
  const stem = (path: string) => path.replace(/(?<=[^/])\.[^./]*$/, ""), counts = new Map<string, number>();
  for (const { path } of items) counts.set(stem(path).toLowerCase(), (counts.get(stem(path).toLowerCase()) ?? 0) + 1);
  return new Map(items.map((item) => {
    const { path } = item, name = counts.get(stem(path).toLowerCase())! > 1 ? path : stem(path);
    return [item, `${name.replaceAll("\\", "_")}.txt`];
  }));
}

function chosen(items: PhotoItem[], { includeUnsure, minConfidence }: Rule): { written: PhotoItem[]; leftOut: number } {
  const isReliable = (item: PhotoItem) =>
    item.checked || ((includeUnsure || !isUnsure(item)) && (item.result?.confidence ?? 0) >= minConfidence);
  const captioned = items.filter(isCaptioned), written = captioned.filter(isReliable);
  return { written, leftOut: captioned.length - written.length };
}

function text(content: string, type: string): Blob {
  return new Blob([content], { type: `${type};charset=utf-8` });
}

export function save({ name, content }: Download): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // the browser may still be reading it
}
