// Keeps the page for offline: its own files from one build, all or none. The model is kept by the page itself.
"use strict";
const VERSION = "fbceb4f22dadeb7a", FILES = ["assets/index-BDe4g3JX.js","assets/index-nbOvzYyx.css","assets/ort-1.30.0.bin","assets/ort-1.30.0.js","assets/worker-JXIh462k.js","examples/README.txt","examples/cat-small.jpg","examples/cat.jpg","examples/coffee-small.jpg","examples/coffee.jpg","examples/dog-small.jpg","examples/dog.jpg","examples/photographer-small.jpg","examples/photographer.jpg","icon.svg","index.html","manifest.webmanifest"];
const NAME = `sightline-page-${VERSION}`, PATIENCE = 3000;
const addresses = new Set(FILES.map((file) => new URL(file, self.registration.scope).href));

self.addEventListener("install", (event) => {
  event.waitUntil((async () => {
    const cache = await caches.open(NAME);
    await cache.addAll([...addresses].map((address) => new Request(address, { cache: "no-cache" })));
    await self.skipWaiting();
  })());
});

self.addEventListener("activate", (event) => {
  event.waitUntil((async () => {
    const old = (await caches.keys()).filter((name) => name.startsWith("sightline-page-") && name !== NAME);
    await Promise.all(old.map((name) => caches.delete(name)));
    await self.clients.claim();
  })());
});

self.addEventListener("fetch", (event) => {
  const { request } = event, address = request.url.split(/[?#]/)[0];
  if (request.method !== "GET") return;
  if (request.mode === "navigate" && [self.registration.scope, `${self.registration.scope}index.html`].includes(address)) {
    event.respondWith(freshOrKept(request));
  } else if (addresses.has(address)) {
    event.respondWith(kept(address).then((found) => found ?? fetch(request)));
  }
});

async function kept(address) {
  return (await caches.open(NAME)).match(address);
}

/** The page itself from the network, so that a new build is seen at once; what was kept, where that takes too long. */
async function freshOrKept(request) {
  const found = await kept(new URL("index.html", self.registration.scope).href);
  if (!found) return fetch(request);
  const late = new Promise((resolve) => setTimeout(resolve, PATIENCE, found));
  return Promise.race([fetch(request).then((answer) => (answer.ok ? answer : found)).catch(() => found), late]);
}
