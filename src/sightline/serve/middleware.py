"""What every request passes and every response gets: access control, security headers, metrics, errors as JSON.

Plain ASGI, since Starlette's middleware base class hides a client's disconnect from the handlers.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sightline.serve.settings import Settings

log = logging.getLogger(__name__)

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}
PROTECTED = ("/v1/", "/api/", "/metrics")  # what needs the token; the page, its files and /healthz do not
OPENAI = ("/v1/chat/", "/v1/responses", "/v1/models")  # paths whose errors have OpenAI's form
ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
NOT_FOUND = "there is nothing here: / has the page, /docs the API"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)


# -- JSON and errors --------------------------------------------------------------------------------------------------


class AsciiJSON(JSONResponse):
    """JSON escaped to ASCII, so that any text can be sent, even a file name that is no valid UTF-8; never cached."""

    def __init__(self, content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None):
        super().__init__(content, status_code, {"Cache-Control": "no-store", **(headers or {})})

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")


def error_response(error: HTTPException, path: str) -> Response:
    """Every error is ``{"error": "what happened, which value, what to do"}``; for OpenAI's clients it is an object."""
    content: Any = error.detail
    if path.startswith(OPENAI):
        kind = ERROR_TYPES.get(
            error.status_code, "server_error" if error.status_code >= 500 else "invalid_request_error"
        )
        content = {"message": error.detail, "type": kind, "param": None, "code": None}
    return AsciiJSON({"error": content}, error.status_code, error.headers)


# -- metrics ----------------------------------------------------------------------------------------------------------


class Metrics:
    """For Prometheus. A registry of its own, so that two servers in one process do not count for each other."""

    def __init__(self, paths: frozenset[str], in_flight: Callable[[], int], upload_bytes: Callable[[], int]):
        self.paths = paths
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        here: Any = {"registry": self.registry}
        self.requests = Counter("sightline_requests", "Requests answered.", ["path", "status"], **here)
        duration = "From a request's headers to the end of its response."
        self.seconds = Histogram("sightline_request_seconds", duration, ["path"], buckets=SECONDS, **here)
        self.photos = Counter("sightline_photos", "Photos captioned.", **here)
        self.batches = Histogram("sightline_batch_photos", "Photos in one batch.", buckets=BATCH_SIZES, **here)
        self.computing = Counter("sightline_model_seconds", "Time the model's threads were busy.", **here)
        self.disconnects = Counter("sightline_disconnects", "Clients that disconnected before their response.", **here)
        gauge = Gauge("sightline_in_flight_photos", "Photos waiting or being captioned.", **here)
        gauge.set_function(in_flight)
        gauge = Gauge("sightline_upload_bytes", "Bytes of the requests that are arriving or in flight.", **here)
        gauge.set_function(upload_bytes)

    def observe_request(self, path: str, status: int, seconds: float) -> None:
        label = path if path in self.paths else "other"  # unknown paths must not add labels
        self.requests.labels(label, str(status)).inc()
        self.seconds.labels(label).observe(seconds)

    def observe_batch(self, count: int, seconds: float) -> None:
        self.photos.inc(count)
        self.batches.observe(count)
        self.computing.inc(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)


# -- middleware -------------------------------------------------------------------------------------------------------


class SecurityHeaders:
    """Outermost: every response gets these headers, unless it has set its own."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, send_with_headers)


class AccessControl:
    """Checks host, origin and token, counts requests, and answers 500 where a handler failed."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics):
        self.app, self.metrics = app, metrics
        self.token_hash = None if settings.token is None else _hash(settings.token.get_secret_value().encode())
        self.origins = settings.cors_origins
        self.any_host = self.token_hash is not None or not settings.is_local
        self.hosts = {"localhost", "127.0.0.1", "[::1]", settings.host, *settings.allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if any(character < " " or character == "\x7f" for character in scope["path"]):
                raise HTTPException(404, NOT_FOUND)  # a route's pattern would accept a line break at the end
            self.check(scope["path"], Headers(scope=scope))
            await self.app(scope, receive, send_and_note)
        except HTTPException as error:
            await error_response(error, scope["path"])(scope, receive, send_and_note)
        except Exception:
            log.exception("a request failed")
            if not status:
                failure = HTTPException(500, "the server failed: its log says why")
                await error_response(failure, scope["path"])(scope, receive, send_and_note)
        finally:
            self.metrics.observe_request(scope["path"], status, time.perf_counter() - began)

    def check(self, path: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if not self._is_allowed_host(host):
            raise HTTPException(
                421, "this server does not have that host name: use its address, or start it with --allow-host"
            )
        origin = headers.get("origin")
        if origin is not None and not self._is_allowed_origin(origin, host):
            raise HTTPException(
                403, "requests from other sites are off: start the server with --cors-origin to allow one"
            )
        if self.token_hash and path.startswith(PROTECTED) and not self._has_token(headers.get("authorization", "")):
            raise HTTPException(
                401, "a token is needed: send Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"}
            )

    def _is_allowed_host(self, host: str) -> bool:
        """Against DNS rebinding: a server for this machine alone, without a token, answers to its own names only."""
        if self.any_host:
            return True
        name = host.lower() if host.endswith("]") else host.lower().rpartition(":")[0] or host.lower()
        return name in self.hosts

    def _is_allowed_origin(self, origin: str, host: str) -> bool:
        allowed = self.origins
        return "*" in allowed or origin in allowed or origin.partition("://")[2].lower() == host.lower() != ""

    def _has_token(self, header: str) -> bool:
        scheme, _, token = header.partition(" ")
        return (
            hmac.compare_digest(_hash(token.strip().encode("latin-1")), self.token_hash or b"")
            and scheme.lower() == "bearer"
        )


def _hash(token: bytes) -> bytes:
    """Of one length, so that the time of a comparison says nothing about the token's."""
    return hashlib.sha256(token).digest()
