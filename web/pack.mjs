// Packs the npm package: `node pack.mjs [FOLDER]`. Needs no network and no node_modules: the captioner and ONNX Runtime
// come from the built page, the model from the Python package, the rest from package/ and src/.

import { execFileSync } from "node:child_process";
import { copyFileSync, cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const here = import.meta.dirname, root = join(here, ".."), page = join(root, "src/sightline/serve/page");
const model = join(root, "src/sightline/pretrained/default"), assets = join(page, "assets");
const folder = mkdtempSync(join(tmpdir(), "package-")), target = resolve(process.argv[2] ?? ".");
const [captioner, script, binary] = [/^captioner-.*\.js$/, /^ort-.*\.js$/, /^ort-.*\.bin$/].map((pattern) => readdirSync(assets).find((name) => pattern.test(name)));
const source = (name) => readFileSync(join(here, "src", name), "utf8");

cpSync(join(here, "package"), folder, { recursive: true });
for (const name of ["LICENSE", "NOTICE"]) copyFileSync(join(root, name), join(folder, name));
copyFileSync(join(page, "licences.txt"), join(folder, "licences.txt"));
copyFileSync(join(assets, captioner), join(folder, "captioner.js"));
const runtime = { script, binary, bytes: statSync(join(assets, binary)).size };
writeFileSync(join(folder, "index.js"), source("package.js").replace("= __RUNTIME__", `= ${JSON.stringify(runtime)}`));
writeFileSync(join(folder, "index.d.ts"), source("package.d.ts").replaceAll('"./types"', '"./types.js"'));
writeFileSync(join(folder, "types.d.ts"), source("types.ts"));
for (const name of ["runtime", "model"]) mkdirSync(join(folder, name));
for (const name of [script, binary]) copyFileSync(join(assets, name), join(folder, "runtime", name));
for (const name of ["sightline.json", "confidence.json", "encoder.onnx", "start.onnx", "step.onnx", "model.safetensors", "README.md"]) {
  copyFileSync(join(model, name), join(folder, "model", name));
}
const [{ filename }] = JSON.parse(execFileSync("npm", ["pack", "--json", "--pack-destination", target], { cwd: folder, encoding: "utf8" }));
rmSync(folder, { recursive: true });
console.log(join(target, filename));
