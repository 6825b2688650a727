"""What every request passes and every answer gets: names, origins and token checked; headers set; requests counted.

Plain ASGI, since Starlette's own middleware base would hide from the handlers that a client hung up.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sightline.serve.http_errors import Refusal
from sightline.serve.metrics import Metrics
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
GUARDED = ("/v1/", "/metrics")  # what the token is asked for: the rest is the page, its files, and whether we live


class SecurityHeaders:
    """Outermost: whoever answers, these go along, unless the answer chose its own."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, with_headers)


class Guard:
    """Refuses who may not ask, counts, and answers for handlers that failed."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics):
        self.app, self.settings, self.metrics = app, settings, metrics
        self.digest = None if settings.token is None else _digest(settings.token.get_secret_value().encode())
        self.names = {"localhost", "127.0.0.1", "[::1]", settings.host, *settings.allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if refusal := self.refusal(scope["path"], Headers(scope=scope)):
                await refusal.response()(scope, receive, noting)
            else:
                await self.app(scope, receive, noting)
        except Exception:
            log.exception("a request failed")
            if not status:
                await Refusal(500, "the server failed: its log says why").response()(scope, receive, noting)
        finally:
            self.metrics.answered(scope["path"], status, time.perf_counter() - began)

    def refusal(self, path: str, headers: Headers) -> Refusal | None:
        host = headers.get("host", "")
        if not self._is_our_name(host):
            return Refusal(421, "this server does not go by that name: use its address, or start it with --allow-host")
        origin = headers.get("origin")
        if origin is not None and not self._is_our_origin(origin, host):
            return Refusal(403, "requests from other sites are off: start the server with --cors-origin to allow one")
        if self.digest and path.startswith(GUARDED) and not self._knows_token(headers.get("authorization", "")):
            return Refusal(401, "a token is needed: send Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})
        return None

    def _is_our_name(self, host: str) -> bool:
        """Against DNS rebinding: a server for this machine alone, without a token, answers to its own names only."""
        if self.digest or not self.settings.is_local:
            return True
        name = host.lower() if host.endswith("]") else host.lower().rpartition(":")[0] or host.lower()
        return name in self.names

    def _is_our_origin(self, origin: str, host: str) -> bool:
        allowed = self.settings.cors_origins
        return "*" in allowed or origin in allowed or origin.partition("://")[2].lower() == host.lower() != ""

    def _knows_token(self, header: str) -> bool:
        scheme, _, token = header.partition(" ")
        return (
            hmac.compare_digest(_digest(token.strip().encode("latin-1")), self.digest or b"")
            and scheme.lower() == "bearer"
        )


def _digest(token: bytes) -> bytes:
    """Of one length, so that comparing says nothing about the token's."""
    return hashlib.sha256(token).digest()
