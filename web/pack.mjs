// Packs the npm package: `node pack.mjs [FOLDER]`, after `npm run build`. Needs no network.
// Its script and types come from package/, ONNX Runtime from the built page, the model from the Python package.

import { execFileSync } from "node:child_process";
import { copyFileSync, cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const here = import.meta.dirname, root = join(here, ".."), page = join(root, "src/sightline/serve/page");
const model = join(root, "src/sightline/pretrained/default");
const folder = mkdtempSync(join(tmpdir(), "package-")), target = resolve(process.argv[2] ?? ".");

cpSync(join(here, "package"), folder, { recursive: true });
for (const name of ["LICENSE", "NOTICE"]) copyFileSync(join(root, name), join(folder, name));
copyFileSync(join(page, "licences.txt"), join(folder, "licences.txt"));
for (const name of ["runtime", "model"]) mkdirSync(join(folder, name));
for (const name of readdirSync(join(page, "assets")).filter((name) => name.startsWith("ort-"))) {
  copyFileSync(join(page, "assets", name), join(folder, "runtime", name));
}
for (const name of ["sightline.json", "confidence.json", "encoder.onnx", "start.onnx", "step.onnx", "model.safetensors", "README.md"]) {
  copyFileSync(join(model, name), join(folder, "model", name));
}
const [{ filename }] = JSON.parse(execFileSync("npm", ["pack", "--json", "--pack-destination", target], { cwd: folder, encoding: "utf8" }));
rmSync(folder, { recursive: true });
console.log(join(target, filename));
