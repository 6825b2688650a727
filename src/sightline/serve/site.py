"""The page and other fixed files at their addresses; the page in the browser may join them while the server works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from sightline.serve.built import BUILT, is_built
from sightline.serve.page_model import PageModel
from sightline.serve.static import StaticFile, fallback, static_files

WAITING = "It is being made ready: this page changes to it in a minute."
FAILED = "It could not be made here: the server's log says why."


class Site:
    """``/`` is the page in the browser where it is built and has a model, else the plain one that asks this server."""

    def __init__(self, app: FastAPI, page: PageModel, built: Path = BUILT):
        self.app, self.page, self.built = app, page, built
        self.files: dict[str, StaticFile] = {}
        if page.is_ready:
            self.put(static_files(built, page.folder))
        elif self.will_grow:
            self.put({"/": fallback(WAITING, waiting=True)})
        else:
            self.put(static_files(None, note=page.why if is_built(built) else ""))

    @property
    def will_grow(self) -> bool:
        return is_built(self.built) and self.page.source is not None

    def put(self, files: Mapping[str, StaticFile]) -> None:
        for address in sorted(files.keys() - self.files.keys()):
            self.app.add_route(address, self.answer, methods=["GET"], include_in_schema=False)
        self.files |= files

    async def answer(self, request: Request) -> Response:
        return await self.files[request.scope["path"]].answer(request)

    @asynccontextmanager
    async def growing(self) -> AsyncIterator[None]:
        """Meanwhile the page's model is made, if it has to be."""
        if not self.will_grow:
            yield
            return
        making = asyncio.create_task(self._grow())
        try:
            yield
        finally:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)

    async def _grow(self) -> None:
        if await self.page.make():
            self.put(await asyncio.to_thread(static_files, self.built, self.page.folder))
        else:
            self.put({"/": fallback(FAILED)})
