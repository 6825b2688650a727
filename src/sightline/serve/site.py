"""The page at ``/``, its files and its model's, and the API's documentation at ``/docs``: all from this machine."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import escape
from os import PathLike, stat_result
from pathlib import Path

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from sightline.errors import ConfigError
from sightline.io.files import printable
from sightline.io.html import MARK, STYLESHEET
from sightline.serve.browser import BUILD_COMMAND, MODEL_FILES, PAGE, BrowserModel, is_built

SWAGGER_UI = Path(__file__).parent / "swagger-ui"  # copied by the page's build, so that /docs works offline
WAITING = "The model for your browser is being made: this page changes to it in a minute."
FAILED = "The model for your browser could not be made: the server's log says why."
NOT_BUILT = f"<!doctype html><title>Sightline</title><p>The page is not built: {BUILD_COMMAND}. <a href=docs>API</a>"

# Two marks in the page's index.html that the server replaces.
ENGINE = '<meta name="sightline-engine" content="browser">'
LINKS = "<!-- server -->"

KINDS = {  # the files that are served, and their types: the system's own table differs from machine to machine
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
    ".safetensors": "application/octet-stream",
}
PLAIN_NAME = re.compile(r"(\w[\w.-]*/)*\w[\w.-]*", re.ASCII)  # nothing hidden
POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'; "
    "img-src 'self' blob: data:; style-src 'self'; font-src 'self'; manifest-src 'self'; "
)
PAGE_POLICY = POLICY + "worker-src 'self' blob:; script-src 'self' 'wasm-unsafe-eval'"  # blob: ONNX Runtime's threads
CAMERA = "camera=(self), geolocation=(), microphone=()"
REVALIDATE = {"Cache-Control": "no-cache"}  # cached, but the browser asks each time whether it is still valid


class PageFiles(StaticFiles):
    """Static files of known kinds with plain names, each with its content security policy."""

    def lookup_path(self, path: str) -> tuple[str, stat_result | None]:
        name = Path(path)
        if not PLAIN_NAME.fullmatch(name.as_posix()) or name.suffix not in KINDS:
            return "", None
        return super().lookup_path(path)

    def is_not_modified(self, response_headers: Headers, request_headers: Headers) -> bool:
        """Also where If-None-Match is a list, on one line or on several."""
        if given := ",".join(request_headers.getlist("if-none-match")):
            tags = {tag.strip().removeprefix("W/") for tag in given.split(",")}
            return "*" in tags or response_headers["etag"] in tags
        return super().is_not_modified(response_headers, request_headers)

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        kind = KINDS[Path(full_path).suffix]
        headers = REVALIDATE | ({} if response.status_code == 304 else {"Content-Type": kind})
        if kind == KINDS[".js"]:  # a worker takes the policy of its own script
            headers["Content-Security-Policy"] = PAGE_POLICY
        response.headers.update(headers)
        return response


class ModelFiles(PageFiles):
    """Of a model's folder only what the page reads."""

    def lookup_path(self, path: str) -> tuple[str, stat_result | None]:
        return super().lookup_path(path) if path in MODEL_FILES else ("", None)


class Site:
    """Adds the page to an app. While the model for the browser is missing, the page has the server caption."""

    def __init__(self, app: FastAPI, model: BrowserModel, page: Path = PAGE):
        self.app, self.model, self.page = app, model, page
        self.index = ""
        if not is_built(page):
            self.index = NOT_BUILT
        elif model.is_ready:
            self._use_browser_model()
        else:
            self.index = self._server_index(WAITING if model.source else model.reason, pending=bool(model.source))
        if is_built(page):
            app.router.default = PageFiles(directory=page)  # after all routes: a wrong method is still a 405
        app.mount("/swagger-ui", PageFiles(directory=SWAGGER_UI))
        for path, endpoint in (("/", self.get_index), ("/index.html", self.get_index), ("/docs", get_docs)):
            app.add_route(path, endpoint, methods=["GET"], include_in_schema=False)

    async def get_index(self, request: Request) -> Response:
        headers = REVALIDATE | {"Content-Security-Policy": PAGE_POLICY, "Permissions-Policy": CAMERA}
        return HTMLResponse(self.index, headers=headers)

    @asynccontextmanager
    async def exporting(self) -> AsyncIterator[None]:
        """Meanwhile the model for the browser is exported, if it has to be."""
        if self.model.source is None or not is_built(self.page):
            yield
            return
        task = asyncio.create_task(self._export())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _export(self) -> None:
        if await self.model.export():
            self._use_browser_model()
        else:
            self.index = self._server_index(FAILED)

    def _use_browser_model(self) -> None:
        folder = self.model.folder
        if folder is None or not folder.is_dir():
            raise ConfigError(f"{printable(folder)} is not a folder: name the one with the page's model files")
        self.app.mount("/model", ModelFiles(directory=folder))
        self.index = self._read_index()

    def _server_index(self, note: str, pending: bool = False) -> str:
        mark = f'<meta name="sightline-engine" content="server" data-note="{escape(note)}"'
        return self._read_index().replace(ENGINE, mark + (" data-pending>" if pending else ">"))

    def _read_index(self) -> str:
        html = (self.page / "index.html").read_text(encoding="utf-8")
        return html.replace(LINKS, '<nav aria-label="More"><a href="docs">API</a></nav>')


DOCS_STYLE = """
.swagger-ui.swagger-ui,
.swagger-ui.swagger-ui :is(.title, .opblock-tag, .btn, .tab, p, li, label, h2, h3, h4, h5, th, td) {
  font-family: var(--font);
}
html.dark-mode, html.dark-mode .swagger-ui.swagger-ui { background: var(--background); }
.swagger-ui .wrapper { max-width: 84rem; padding: 0 var(--side); }
.swagger-ui .info { margin: 1rem 0 2rem; }
.swagger-ui :is(.opblock, section.models, .model-container) { border-radius: 1rem; box-shadow: none; }
.swagger-ui .btn { border-radius: 2rem; box-shadow: none; }
.swagger-ui .btn.execute { background: var(--button); border-color: var(--button); color: var(--on-button); }
"""
DARK = 'document.documentElement.classList.toggle("dark-mode", matchMedia("(prefers-color-scheme: dark)").matches);'


async def get_docs(request: Request) -> Response:
    """FastAPI's Swagger UI page in the design of the others. The policy allows its inline script and style by hash."""
    html = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="Sightline’s API",
        swagger_js_url="swagger-ui/swagger-ui-bundle.js",
        swagger_css_url="swagger-ui/swagger-ui.css",
        swagger_favicon_url="icon.svg",
        swagger_ui_parameters={"validatorUrl": None},  # no badge from another host
    ).body
    style = STYLESHEET.read_text(encoding="utf-8") + DOCS_STYLE
    header = f'<header class="top"><a class="mark" href="./">{MARK}</a></header>'
    page = bytes(html).decode("utf-8").replace("<script>", f"<script>{DARK}")
    page = page.replace("</head>", f"<style>{style}</style></head>").replace("<body>", f"<body>{header}")
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    policy = (
        POLICY.replace("style-src 'self'", f"style-src 'self' {_hash(style)}") + f"script-src 'self' {_hash(script)}"
    )
    return HTMLResponse(page, headers=REVALIDATE | {"Content-Security-Policy": policy})


def _hash(inline: str) -> str:
    """As a content security policy names a script or a style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}'"
