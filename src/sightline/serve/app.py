"""The HTTP interface: what is answered where. Photos are opened in a small pool, captions computed in a few others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from sightline import __version__
from sightline.errors import ConfigError, ImageError
from sightline.serve import schemas
from sightline.serve.batching import Batcher, CaptionWork, Query
from sightline.serve.docs import docs_page
from sightline.serve.guard import Guard, SecurityHeaders
from sightline.serve.http_errors import Refusal, as_json, json_response
from sightline.serve.metrics import CONTENT_TYPE, Metrics
from sightline.serve.openapi import openapi_document
from sightline.serve.page_model import PageModel
from sightline.serve.settings import Settings
from sightline.serve.site import Site
from sightline.serve.slots import Places
from sightline.serve.static import StaticFile
from sightline.serve.uploads import ACCEPTED, Upload, limited, read_form, read_json

OPENERS = 2  # threads that open photos
HUNG_UP = 499  # never sent, only counted: the status nginx gave this case

Answer = TypeVar("Answer")


class Service:
    """One model, its threads, the pool that feeds them, and who is in the house."""

    def __init__(self, work: CaptionWork, settings: Settings, paths: frozenset[str]):
        self.work, self.settings = work, settings
        self.batcher = Batcher(work, settings.batch)
        self.places = Places(settings.queue, self.batcher)
        self.metrics = Metrics(paths, lambda: self.places.taken)
        self.batcher.note = self.metrics.computed
        self.pool = ThreadPoolExecutor(OPENERS, "sightline-photos")

    async def answer(self, request: Request, maps: bool) -> Response:
        """From a request to its captions or explanations, within the limits and no longer than anyone listens."""
        with self.places.take() as place:
            arrived = False
            try:
                async with asyncio.timeout(self.settings.timeout):
                    upload = await self.read(request, maps)
                    arrived = True
                    place.widen(len(upload.photos))
                    return await unless_hung_up(request, self.describe(upload, maps))
            except TimeoutError:
                seconds = f"{self.settings.timeout:g} seconds"
                if not arrived:
                    raise Refusal(408, f"the request did not arrive within {seconds}: send it again") from None
                wait = str(self.batcher.seconds_for(self.places.taken))
                reason = f"no answer within {seconds}: try again later, or with fewer photos"
                raise Refusal(503, reason, {"Retry-After": wait}) from None
            except (ClientDisconnect, HungUp):
                self.metrics.hung_up.inc()
                return Response(status_code=HUNG_UP)

    async def read(self, request: Request, maps: bool) -> Upload:
        settings = self.settings
        if request.url.query:
            raise Refusal(422, "options go into the body, not after a question mark: send them as fields")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            form = schemas.ExplainOptions if maps else schemas.Options
            return await read_form(request, form, settings.max_bytes, settings.max_photos)
        if kind == "application/json":
            body = b"".join([piece async for piece in limited(request, settings.max_bytes)])
            model = schemas.ExplainBody if maps else schemas.CaptionBody
            return await self.in_pool(read_json, body, model, settings.max_photos)
        raise Refusal(415, f"the content type is {kind or 'missing'!r}: send {ACCEPTED}")

    async def describe(self, upload: Upload, maps: bool) -> dict[str, Any]:
        try:
            query = self.work.query(upload.options, maps)
        except ConfigError as error:
            raise Refusal(422, str(error)) from None
        answers = await together(
            self.describe_one(f"photo {number}: " if len(upload.photos) > 1 else "", data, name, query)
            for number, (data, name) in enumerate(zip(upload.photos, upload.names), 1)
        )
        named = [
            replace(answer, caption=replace(answer.caption, source=name))
            for answer, name in zip(answers, upload.names)
        ]  # fmt: skip
        if not maps:
            return {"captions": [explanation.caption.as_dict() for explanation in named]}
        return {"explanations": [await self.in_pool(explanation.as_dict) for explanation in named]}

    async def describe_one(self, which: str, data: bytes, name: str, query: Query) -> Any:
        try:
            photo = await self.in_pool(self.work.prepare, data, name)
        except ImageError as error:
            raise Refusal(422, f"{which}{error}") from None
        return await asyncio.wrap_future(self.batcher.submit(photo, query))

    async def in_pool(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self.pool, function, *arguments)


class HungUp(Exception):
    """The client went away before its answer was ready."""


async def unless_hung_up(request: Request, work: Coroutine[Any, Any, dict[str, Any]]) -> Response:
    """The work's answer; if the client leaves first, the work is dropped at once."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(_left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HungUp
        return json_response(working.result())
    finally:
        await _drop([working, leaving])


async def together(works: Iterable[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """All answers, or the first failure, and then none of the others goes on."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _drop(tasks)


async def _drop(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def create_app(work: CaptionWork, settings: Settings, name: str, page: PageModel | None = None) -> FastAPI:
    """The app around one model, called ``name`` to the outside; ``page`` is the model of the page in the browser."""
    paths = frozenset({"/", "/v1/caption", "/v1/explain", "/healthz", "/metrics", "/docs", "/openapi.json"})
    service = Service(work, settings, paths)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.batcher.start()
        async with site.growing():
            yield
        await asyncio.to_thread(service.batcher.stop)
        service.pool.shutdown()

    app = FastAPI(
        title="Sightline", version=__version__, openapi_url=None, redirect_slashes=False,
        lifespan=lifespan, description="Says in a sentence what a photo shows, and where the model looked.",
    )  # fmt: skip
    app.state.service = service

    @app.post("/v1/caption", response_model=schemas.CaptionsOut, tags=["captions"])
    async def caption(request: Request) -> Response:
        """Caption one or more photos."""
        return await service.answer(request, maps=False)

    @app.post("/v1/explain", response_model=schemas.ExplanationsOut, tags=["captions"])
    async def explain(request: Request) -> Response:
        """Caption one or more photos, and say for each word where the model looked and what else it considered."""
        return await service.answer(request, maps=True)

    @app.get("/healthz", response_model=schemas.HealthOut, tags=["service"])
    async def health() -> Response:
        """Whether the server works, which model it has, and what it accepts."""
        if not service.batcher.alive:
            raise Refusal(503, "one of the model's threads has ended: restart the server")
        limits = {name: getattr(settings, name) for name in schemas.LimitsOut.model_fields}
        return json_response(
            {
                "status": "ok", "model": name, "version": __version__,
                "token_required": settings.token is not None, "limits": limits,
            }
        )  # fmt: skip

    @app.get("/metrics", response_class=Response, tags=["service"])
    async def metrics() -> Response:
        """Counters and times for Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE, headers={"Cache-Control": "no-store"})

    document = openapi_document(app, settings)
    site = Site(app, page or PageModel())
    site.put({"/openapi.json": StaticFile(as_json(document), "application/json"), "/docs": docs_page(document)})
    _add_refusals(app)
    app.add_middleware(Guard, settings=settings, metrics=service.metrics)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.cors_origins, allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"], expose_headers=["Retry-After"],
        )  # fmt: skip
    app.add_middleware(SecurityHeaders)
    return app


def _add_refusals(app: FastAPI) -> None:
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        return error.response()

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        reason = {404: "there is nothing here: / has the page, /docs the rest", 405: "not with this method: see /docs"}
        return Refusal(error.status_code, reason.get(error.status_code, error.detail), error.headers).response()

    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(HTTPException, unknown)
