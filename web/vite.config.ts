// Builds the page into the Python package: plain files, relative addresses, nothing fetched from other hosts.

import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join, relative, sep } from "node:path";
import { gzipSync } from "node:zlib";
import { defineConfig, type Plugin } from "vite";

const here = import.meta.dirname, out = join(here, "../src/sightline/serve/page");
const stylesheet = join(here, "../src/sightline/io/page.css"); // shared with the pages that Python writes
const levels = join(here, "../src/sightline/io/levels.json"); // the words for a confidence, shared with Python
const ort = join(here, "node_modules/onnxruntime-web");
const version = JSON.parse(readFileSync(join(ort, "package.json"), "utf8")).version;
// The smallest build of ONNX Runtime: no WebGPU. Gzipped, a quarter of the size: the page gunzips it, so that no server needs to know about encodings.
const runtimeScript = `assets/ort-${version}.js`, binary = `assets/ort-${version}.bin`;
const runtimeFile = join(ort, "dist/ort-wasm-simd-threaded.mjs");
const packed = gzipSync(readFileSync(join(ort, "dist/ort-wasm-simd-threaded.wasm")), { level: 9 });

function walk(folder: string): string[] {
  return readdirSync(folder).sort().flatMap((name) => {
    const path = join(folder, name);
    return statSync(path).isDirectory() ? walk(path) : [path];
  });
}

const named = (root: string) => (path: string) => relative(root, path).split(sep).join("/");

function digest(paths: string[], root: string): string {
  const hash = createHash("sha256");
  for (const path of paths) hash.update(`${named(root)(path)}\0`).update(readFileSync(path)).update("\0");
  return hash.digest("hex");
}

/** A hash of everything that is built from; tests compare it with the sources. */
function sourcesDigest(): string {
  const sources = ["index.html", "package-lock.json", "sw.js", "vite.config.ts"].map((name) => join(here, name));
  return digest([...sources, stylesheet, levels, ...walk(join(here, "public")), ...walk(join(here, "src"))], here);
}

/** ONNX Runtime's files, unchanged. */
function runtime(): Plugin {
  return {
    name: "runtime",
    generateBundle() {
      this.emitFile({ type: "asset", fileName: runtimeScript, source: readFileSync(runtimeFile) });
      this.emitFile({ type: "asset", fileName: binary, source: packed });
      this.emitFile({ type: "asset", fileName: "licences.txt", source: licences() });
    },
    configureServer(server) {
      server.middlewares.use((request, response, next) => {
        const path = request.url?.split("?")[0];
        if (path === `/${runtimeScript}`) response.setHeader("Content-Type", "text/javascript").end(readFileSync(runtimeFile));
        else if (path === `/${binary}`) response.end(packed);
        else next();
      });
    },
  };
}

const MIT = `Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation
files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy,
modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the
Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
`;

function licences(): string {
  return `ONNX Runtime ${version} (assets/ort-*, and in assets/captioner-*), MIT\nCopyright (c) Microsoft Corporation\n\nclient-zip (in assets/index-*), MIT\nCopyright 2020 David Junger\n\n${MIT}`;
}

/** Swagger UI for the server's /docs, unchanged, in a folder of its own: a static copy of the page does not need it. */
function apiDocs(): Plugin {
  const from = join(here, "node_modules/swagger-ui-dist"), to = join(here, "../src/sightline/serve/swagger-ui");
  return {
    name: "api-docs",
    apply: "build",
    closeBundle() {
      mkdirSync(to, { recursive: true });
      for (const name of ["swagger-ui-bundle.js", "swagger-ui-bundle.js.LICENSE.txt", "swagger-ui.css", "LICENSE", "NOTICE"]) {
        const text = readFileSync(join(from, name), "utf8").replace(/\n?(\/\/|\/\*)# sourceMappingURL=.*\s*$/, "\n");
        writeFileSync(join(to, name === "LICENSE" || name === "NOTICE" ? `${name}.txt` : name), text);
      }
    },
  };
}

/** The service worker with the list of all files, and build.json with a hash of the sources. */
function offline(): Plugin {
  return {
    name: "offline",
    apply: "build",
    closeBundle() {
      const files = walk(out).filter((path) => !["sw.js", "build.json"].includes(named(out)(path)));
      const list = files.map(named(out)).filter((name) => name !== "licences.txt");
      const script = readFileSync(join(here, "sw.js"), "utf8");
      writeFileSync(join(out, "sw.js"), script.replace("__VERSION__", digest(files, out).slice(0, 16)).replace("__FILES__", JSON.stringify(list)));
      writeFileSync(join(out, "build.json"), `${JSON.stringify({ sources: sourcesDigest() })}\n`);
    },
  };
}

// The worker's captioner is a file of its own that exports `Captioner`: the npm package contains it, too (pack.mjs).
const captionerChunk = { minifyInternalExports: false, codeSplitting: { groups: [{ name: "captioner", test: /src\/captioner\.ts$/ }] } };

export default defineConfig({
  base: "./",
  plugins: [runtime(), offline(), apiDocs()],
  worker: { format: "es", rolldownOptions: { output: captionerChunk } },
  resolve: { conditions: ["onnxruntime-web-use-extern-wasm", "module", "browser", "import", "default"] },
  define: { __RUNTIME__: JSON.stringify({ script: runtimeScript, binary, bytes: packed.length }) },
  build: { outDir: out, emptyOutDir: true, target: "es2022", modulePreload: false, assetsInlineLimit: 0 },
  server: { proxy: { "/model": "http://127.0.0.1:8000" }, fs: { allow: [join(here, "..")] } },
});
