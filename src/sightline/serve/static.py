"""The page at ``/`` and its files: read once at start into a fixed map, so that no request's path reaches the disk."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from string import Template

from starlette.requests import Request
from starlette.responses import Response

from sightline.errors import ConfigError
from sightline.io.files import printable
from sightline.serve.built import BUILD, BUILT, is_built

HERE = Path(__file__).parent
MOST_BYTES = 512 * 2**20
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".webp": "image/webp",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".wasm": "application/wasm",
    ".onnx": "application/octet-stream",
    ".bin": "application/octet-stream",
}
STRICT = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "connect-src 'self'; img-src 'self' blob: data:"
)
BUILT_ALSO = "; font-src 'self'; manifest-src 'self'; worker-src 'self' blob:"  # for ONNX Runtime's threads
CAMERA = "camera=(self), geolocation=(), microphone=()"
MORE = '<nav aria-label="More"><a href="docs">API</a></nav>'  # what only a server has
PLAIN = re.compile(r"(\w[\w.-]*/)*\w[\w.-]*", re.ASCII)
INLINE = re.compile(r"<(script|style)(\s[^>]*)?>(.*?)</\1>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class StaticFile:
    body: bytes
    type: str
    policy: str | None = None
    permissions: str | None = None

    @cached_property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.body).hexdigest()[:24]}"'

    async def answer(self, request: Request) -> Response:
        headers = {"ETag": self.tag, "Cache-Control": "no-cache"}  # kept, but asked for anew whether it is still valid
        if self.policy:
            headers["Content-Security-Policy"] = self.policy
        if self.permissions:
            headers["Permissions-Policy"] = self.permissions
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        return Response(self.body, headers=headers, media_type=self.type)


def page(html: str, built: bool = False) -> StaticFile:
    """A page whose policy allows its own inline scripts and styles, by their hashes; a built one also has files."""
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    if built:
        allowed = {"script": ["'self'", "'wasm-unsafe-eval'"], "style": ["'self'"]}
    for kind, _, content in INLINE.findall(html):
        if content.strip():
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            allowed[kind.lower()].append(f"'sha256-{digest}'")
    sources = [f"; {kind}-src {' '.join(chosen)}" for kind, chosen in allowed.items() if chosen]
    policy = STRICT + (BUILT_ALSO if built else "") + "".join(sources)
    return StaticFile(html.encode(), TYPES[".html"], policy, CAMERA if built else None)


def static_files(built: Path | None = BUILT, model: Path | None = None, note: str = "") -> dict[str, StaticFile]:
    """Every address and what lies there: the built page if there is one, else the plain page; the model's files.

    Without ``built`` it is the plain page, and ``note`` says there how to get the other one.
    """
    files = {}
    if built is not None and is_built(built):
        files = {f"/{name}": _read(path) for name, path in _walk(built)}
        files["/"] = files["/index.html"]
    else:
        files["/"] = fallback(note or f"To build it: {BUILD}")
    if model is not None:
        if not model.is_dir():
            raise ConfigError(f"{printable(model)} is not a folder: name the one with the page's model files")
        files |= {f"/model/{name}": _read(path) for name, path in _walk(model)}
    return files


def fallback(note: str = "", waiting: bool = False) -> StaticFile:
    """The plain page, one file: it asks this server for captions and needs nothing else."""
    from sightline.explain.heatmap import COLOUR, COLOUR_MAP, SPREAD

    scale = base64.b64encode(COLOUR_MAP.tobytes()).decode()
    script = web("page.js").replace("$SCALE", scale).replace("$SPREAD", str(SPREAD)).replace("$COLOUR", str(COLOUR))
    told = {"note": escape(note), "waiting": " data-waiting" if waiting else ""}
    return page(Template(web("page.html")).substitute(told, style=web("base.css") + web("page.css"), script=script))


def web(name: str) -> str:
    return (HERE / "web" / name).read_text(encoding="utf-8")


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Files of known kinds and plain names, with the address they get; nothing hidden, no links."""
    total = 0
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if PLAIN.fullmatch(name) and path.suffix in TYPES and path.is_file() and not path.is_symlink():
            total += path.stat().st_size
            if total > MOST_BYTES:
                raise ConfigError(f"{printable(folder)} holds more than {MOST_BYTES >> 20} MB: name a smaller folder")
            yield name, path


def _read(path: Path) -> StaticFile:
    kind = TYPES[path.suffix]
    if kind == TYPES[".html"]:
        return page(path.read_text(encoding="utf-8").replace("<!-- server -->", MORE), built=True)
    worker = page("", built=True).policy  # a script that becomes a worker brings its own policy
    return StaticFile(path.read_bytes(), kind, worker if kind == TYPES[".js"] else None)
