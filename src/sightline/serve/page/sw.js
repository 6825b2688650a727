// Caches the page's files for offline use: all of one build or none. The page itself caches the model.
"use strict";
const VERSION = "7b866d044fe0e349", FILES = ["assets/captioner-Dml6ERag.js","assets/index-BAjemr0V.js","assets/index-DG77LY4s.css","assets/ort-1.30.0.bin","assets/ort-1.30.0.js","assets/worker-DqqLfP5-.js","examples/README.txt","examples/cat-small.jpg","examples/cat.jpg","examples/coffee-small.jpg","examples/coffee.jpg","examples/dog-small.jpg","examples/dog.jpg","examples/photographer-small.jpg","examples/photographer.jpg","icon.svg","index.html","manifest.webmanifest"];
const NAME = `sightline-page-${VERSION}`, TIMEOUT = 3000; // milliseconds
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
    event.respondWith(networkFirst(request));
  } else if (addresses.has(address)) {
    event.respondWith(cached(address).then((found) => found ?? fetch(request)));
  }
});

async function cached(address) {
  return (await caches.open(NAME)).match(address);
}

/** From the network, so that a new build is used at once; from the cache where that takes too long. */
async function networkFirst(request) {
  const found = await cached(new URL("index.html", self.registration.scope).href);
  if (!found) return fetch(request);
  const late = new Promise((resolve) => setTimeout(resolve, TIMEOUT, found));
  return Promise.race([fetch(request).then((response) => (response.ok ? response : found)).catch(() => found), late]);
}
