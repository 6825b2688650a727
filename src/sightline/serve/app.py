"""The HTTP interface. Photos are opened in a small thread pool; the batcher's threads caption them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from http.client import responses
from typing import Any, TypeVar

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from sightline import __version__
from sightline.errors import ConfigError, ImageError
from sightline.explain import Explanation
from sightline.io.images import decoded_bytes
from sightline.serve import compatible, schemas
from sightline.serve.batching import Batcher, CaptionWork, Query
from sightline.serve.browser import BrowserModel
from sightline.serve.compatible_openapi import add_operations
from sightline.serve.middleware import (
    METRICS_TYPE,
    NOT_FOUND,
    AccessControl,
    AsciiJSON,
    Metrics,
    SecurityHeaders,
    error_response,
)
from sightline.serve.settings import Settings
from sightline.serve.site import Site
from sightline.serve.uploads import ACCEPTED, Upload, limited_body, read_form, read_json

PHOTO_THREADS = 2  # that open photos
LARGE_BYTES = 2**27  # of a photo's decoded pixels: above, one is decoded at a time, and keeps no other photo waiting
DISCONNECTED = 499  # never sent, only counted: the status nginx uses for this case

ERRORS = {404: NOT_FOUND, 405: "not with this method: see /docs"}

DESCRIPTION = """\
Describes photos in one sentence, and shows what the model attended to for each word. Send a form with files, or JSON
with base64:

```sh
curl -F photos=@dog.jpg -F beam=5 http://127.0.0.1:8000/v1/caption

printf '{"photos": ["%s"]}' "$(base64 -w0 dog.jpg)" |
  curl -H 'Content-Type: application/json' -d @- http://127.0.0.1:8000/v1/caption
```

Clients of OpenAI's and of Ollama's API can use this server, too: they need only its address."""

Value = TypeVar("Value")


class Slots:
    """The limits of photos in flight and of the bytes that requests hold. HTTP 429 where one is reached.

    A photo takes a slot when it has arrived. A body that is still arriving takes its bytes and no slot: a client that
    announces a body and does not send it keeps nobody else out. Used from the event loop only, so that nothing needs
    a lock.
    """

    def __init__(self, limit: int, max_bytes: int, batcher: Batcher):
        self.limit, self.max_bytes, self.batcher = limit, max_bytes, batcher
        self.in_flight = self.bytes = 0

    @contextmanager
    def request(self) -> Iterator[Hold]:
        """What one request holds until it ends, however it ends. While no slot is free it need not send its body."""
        hold = Hold(self)
        try:
            if self.in_flight >= self.limit:
                raise self.full_queue()
            yield hold
        finally:
            self.in_flight -= hold.photos
            self.bytes -= hold.bytes

    def full_queue(self) -> HTTPException:
        return self.full("1 photo is" if self.in_flight == 1 else f"{self.in_flight} photos are")

    def full(self, what: str) -> HTTPException:
        retry = {"Retry-After": str(self.batcher.seconds_for(self.in_flight))}
        return HTTPException(429, f"{what} in flight already: try again later", retry)


@dataclass
class Hold:
    """The bytes and the slots of one request."""

    slots: Slots
    bytes: int = 0
    photos: int = 0

    def add_bytes(self, count: int) -> None:
        if self.slots.bytes + count > self.slots.max_bytes:
            raise self.slots.full(f"uploads of {self.slots.bytes:,} bytes are")
        self.slots.bytes += count
        self.bytes += count

    def add_photos(self, count: int) -> None:
        if self.slots.in_flight + count > self.slots.limit:
            raise self.slots.full_queue()
        self.slots.in_flight += count
        self.photos += count


class Service:
    """One model, its threads, the thread pool for photos, and the limit of photos in flight."""

    def __init__(self, work: CaptionWork, settings: Settings, paths: frozenset[str]):
        self.work, self.settings = work, settings
        self.batcher = Batcher(work, settings.batch)
        self.slots = Slots(settings.queue, settings.upload_bytes, self.batcher)
        self.metrics = Metrics(paths, lambda: self.slots.in_flight, lambda: self.slots.bytes)
        self.batcher.on_batch = self.metrics.observe_batch
        self.pool = ThreadPoolExecutor(PHOTO_THREADS, "sightline-photos")
        self.large_pool = ThreadPoolExecutor(1, "sightline-large-photos")

    async def answer(self, request: Request, explain: bool) -> Response:
        """From a request to its captions or explanations."""

        async def read(hold: Hold) -> Upload:
            return await self.read(request, explain, hold)

        async def work(upload: Upload) -> Response:
            return await self.caption(upload, explain)

        return await self.limited(request, read, work)

    async def limited(
        self,
        request: Request,
        read: Callable[[Hold], Coroutine[Any, Any, Upload]],
        work: Callable[[Upload], Coroutine[Any, Any, Response]],
    ) -> Response:
        """Read a request and work on it, within the limits and until the client disconnects."""
        with self.slots.request() as hold:
            arrived = False
            try:
                async with asyncio.timeout(self.settings.timeout):
                    upload = await read(hold)
                    arrived = True
                    hold.add_photos(len(upload.photos))
                    return await unless_disconnected(request, work(upload))
            except TimeoutError:
                seconds = f"{self.settings.timeout:g} seconds"
                if not arrived:
                    raise HTTPException(408, f"the request did not arrive within {seconds}: send it again") from None
                wait = str(self.batcher.seconds_for(self.slots.in_flight))
                reason = f"no answer within {seconds}: try again later, or with fewer photos"
                raise HTTPException(503, reason, {"Retry-After": wait}) from None
            except (ClientDisconnect, Disconnected):
                self.metrics.disconnects.inc()
                return Response(status_code=DISCONNECTED)

    async def read(self, request: Request, explain: bool, hold: Hold) -> Upload:
        settings = self.settings
        if request.url.query:
            raise HTTPException(422, "options go into the body, not after a question mark: send them as fields")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        chunks = limited_body(request, settings.max_bytes, hold.add_bytes)
        if kind == "multipart/form-data":
            form = schemas.ExplainOptions if explain else schemas.CaptionOptions
            return await read_form(request.headers, chunks, form, settings.max_photos)
        if kind == "application/json":
            body = b"".join([chunk async for chunk in chunks])
            model = schemas.ExplainBody if explain else schemas.CaptionBody
            return await self.in_pool(read_json, body, model, settings.max_photos)
        raise HTTPException(415, f"the content type is {kind or 'missing'!r}: send {ACCEPTED}")

    async def caption(self, upload: Upload, explain: bool) -> Response:
        """One photo that cannot be read is an HTTP error, one of several has an error of its own."""
        outcomes = await self.outcomes(upload, explain)
        if len(outcomes) == 1 and isinstance(outcomes[0], ImageError):
            raise HTTPException(422, str(outcomes[0]))
        rows = [await self.row(outcome, name, explain) for outcome, name in zip(outcomes, upload.names)]
        return AsciiJSON({"explanations" if explain else "captions": rows})

    async def outcomes(self, upload: Upload, explain: bool = False) -> list[Explanation | ImageError]:
        """For each photo what the model makes of it, or why it cannot be opened, which costs the others nothing."""
        try:
            query = self.work.query(upload.options, explain)
        except ConfigError as error:
            raise HTTPException(422, str(error)) from None
        return await gather(
            self.caption_one(data, name or f"photo {number}", query)
            for number, (data, name) in enumerate(zip(upload.photos, upload.names), 1)
        )

    async def caption_one(self, photo: bytes | ImageError, name: str, query: Query) -> Explanation | ImageError:
        if isinstance(photo, ImageError):
            return photo
        try:
            is_large = await self.in_pool(decoded_bytes, photo) > LARGE_BYTES
            prepared = await self.in_pool(self.work.prepare, photo, name, pool=self.large_pool if is_large else None)
        except ImageError as error:
            return error
        found = await asyncio.wrap_future(self.batcher.submit(prepared, query))
        return replace(found, caption=replace(found.caption, neighbours=()))  # a datastore's photos are its owner's

    async def row(self, outcome: Explanation | ImageError, name: str, explain: bool) -> dict[str, Any]:
        """One photo's part of the response."""
        if isinstance(outcome, ImageError):
            return {"source": name, "error": str(outcome).removeprefix(name).lstrip()}  # as the CLI's JSON has it
        named = replace(outcome, caption=replace(outcome.caption, source=name))
        return await self.in_pool(named.as_dict) if explain else named.caption.as_dict()

    async def in_pool(
        self, function: Callable[..., Value], *arguments: Any, pool: ThreadPoolExecutor | None = None
    ) -> Value:
        return await asyncio.get_running_loop().run_in_executor(pool or self.pool, function, *arguments)


class Disconnected(Exception):
    """The client closed the connection before its response was ready."""


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The result of ``work``; if the client disconnects first, the work is cancelled at once."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Disconnected
        return working.result()
    finally:
        await _cancel([working, waiting])


async def gather(works: Iterable[Coroutine[Any, Any, Value]]) -> list[Value]:
    """All results, or the first exception, and then the others are cancelled."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def create_app(work: CaptionWork, settings: Settings, name: str, page: BrowserModel | None = None) -> FastAPI:
    """The app around one model, shown as ``name``; ``page`` is the model that the page runs in the browser."""
    paths = frozenset(
        {"/", "/v1/caption", "/v1/explain", "/healthz", "/metrics", "/docs", "/openapi.json", *compatible.PATHS}
    )
    service = Service(work, settings, paths)
    defaults = {path: work.query({}, path == "/v1/explain").options for path in schemas.BODIES}

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.batcher.start()
        async with site.exporting():
            yield
        await asyncio.to_thread(service.batcher.stop)
        service.pool.shutdown()
        service.large_pool.shutdown()

    app = FastAPI(
        title="Sightline", version=__version__, openapi_url=None, redirect_slashes=False,
        lifespan=lifespan, description=DESCRIPTION,
    )  # fmt: skip
    app.state.service = service

    @app.post("/v1/caption", response_model=schemas.CaptionsOut, tags=["captions"])
    async def caption(request: Request) -> Response:
        """Caption one or more photos."""
        return await service.answer(request, explain=False)

    @app.post("/v1/explain", response_model=schemas.ExplanationsOut, tags=["captions"])
    async def explain(request: Request) -> Response:
        """Caption one or more photos, with a heat map and the alternatives for each word."""
        return await service.answer(request, explain=True)

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", response_model=schemas.HealthOut, tags=["service"])
    async def health() -> Response:
        """Whether the server works, which model it has, and its limits."""
        if not service.batcher.alive:
            raise HTTPException(503, "one of the model's threads has ended: restart the server")
        limits = {name: getattr(settings, name) for name in schemas.LimitsOut.model_fields}
        return AsciiJSON(
            {
                "status": "ok", "model": name, "version": __version__,
                "token_required": settings.token is not None, "limits": limits,
                "beam": defaults["/v1/caption"].beam,
            }
        )  # fmt: skip

    @app.head("/metrics", include_in_schema=False)
    @app.get("/metrics", response_class=Response, tags=["service"])
    async def metrics() -> Response:
        """Counters and durations for Prometheus."""
        return Response(service.metrics.text(), media_type=METRICS_TYPE, headers={"Cache-Control": "no-store"})

    document = schemas.openapi_document(app, settings, defaults, partial(add_operations, model=name))

    @app.head("/openapi.json", include_in_schema=False)
    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return AsciiJSON(document)

    compatible.Compatible(app, service, name)
    site = Site(app, page or BrowserModel())
    app.add_exception_handler(HTTPException, _answer_error)
    app.add_middleware(AccessControl, settings=settings, metrics=service.metrics)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.cors_origins, allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"], expose_headers=["Retry-After"],
        )  # fmt: skip
    app.add_middleware(SecurityHeaders)
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.detail == responses[error.status_code]:  # from Starlette, which found no route or no file
        error.detail = ERRORS.get(error.status_code, error.detail)
    return error_response(error, request.url.path)
