// Photos from inputs, the clipboard, and dropped files and folders; and thumbnails of them.

import { MAX_BYTES } from "./photo";

export interface ChosenFile {
  file: File;
  path: string; // with its folders, where it came with one
}

export interface Chosen {
  files: ChosenFile[];
  skipped: number; // files in folders that are no photos
}

const THUMBNAIL = [480, 360]; // pixels
const EXTENSIONS = /\.(jpe?g|jpe|jfif|png|webp|gif|bmp|tiff?|avifs?|heic|heif|apng|mpo|jp2|ppm|pgm|pbm|pnm)$/i;

/** The files of an input; those of a folder only where they are photos. */
export function chosenFrom(list: Iterable<File>): Chosen {
  return sorted([...list].map((file) => ({ file, path: file.webkitRelativePath || file.name })));
}

/** What was dropped: folders with all their photos. */
export async function chosenFromDrop(transfer: DataTransfer): Promise<Chosen> {
  const entries = [...transfer.items].filter(({ kind }) => kind === "file").map((item) => item.webkitGetAsEntry()); // gone after this turn
  const plain = [...transfer.files];
  if (!entries.some((entry) => entry?.isDirectory)) return chosenFrom(plain);
  const found: ChosenFile[] = [];
  for (const entry of entries) if (entry) await walk(entry, found);
  return sorted(found);
}

async function walk(entry: FileSystemEntry, found: ChosenFile[]): Promise<void> {
  if (entry.isFile) {
    const file = await new Promise<File>((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject)).catch(() => null);
    if (file) found.push({ file, path: entry.fullPath.replace(/^\//, "") });
    return;
  }
  const reader = (entry as FileSystemDirectoryEntry).createReader();
  for (;;) { // it answers with up to 100 entries at a time
    const entries = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject)).catch(() => []);
    if (!entries.length) return;
    for (const inner of entries) await walk(inner, found);
  }
}

function sorted(files: ChosenFile[]): Chosen {
  const photos = files.filter(({ path }) => !path.includes("/") || isPhoto(path));
  if (photos.some(({ path }) => path.includes("/"))) photos.sort((one, other) => one.path.localeCompare(other.path, "en", { numeric: true }));
  return { files: photos, skipped: files.length - photos.length };
}

const isPhoto = (path: string) => EXTENSIONS.test(path) && !/(^|\/)\./.test(path); // nothing hidden

/** A small JPEG of a photo; null where the browser cannot show it. */
export async function thumbnail(file: Blob): Promise<Blob | null> {
  if (!file.size || file.size > MAX_BYTES) return null;
  let photo: ImageBitmap;
  try {
    photo = await createImageBitmap(file, { imageOrientation: "from-image" });
  } catch {
    return null;
  }
  const scale = Math.min(1, Math.max(THUMBNAIL[0] / photo.width, THUMBNAIL[1] / photo.height)); // it may be cropped later
  const canvas = new OffscreenCanvas(Math.max(1, Math.round(photo.width * scale)), Math.max(1, Math.round(photo.height * scale)));
  const context = canvas.getContext("2d")!;
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(photo, 0, 0, canvas.width, canvas.height);
  photo.close();
  return canvas.convertToBlob({ type: "image/jpeg", quality: 0.8 });
}
