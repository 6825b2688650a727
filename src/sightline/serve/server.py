"""The app on a socket: uvicorn with a timeout for request headers, errors as JSON, and a graceful stop."""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import math
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from PIL import Image
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from sightline.errors import ConfigError
from sightline.serve.app import create_app
from sightline.serve.batching import CaptionWork
from sightline.serve.middleware import HEADERS, AsciiJSON
from sightline.serve.settings import Settings

if TYPE_CHECKING:
    from sightline.engine.captioner import Captioner
    from sightline.serve.browser import BrowserModel

log = logging.getLogger(__name__)

HEADER_SECONDS = 10  # for a request's headers, and for the rest of a body that was not accepted
HEADER_BYTES = 16 * 1024


class StrictConnection(h11.Connection):
    """h11 limits headers only while they are incomplete, and reads a body whose length is given in two ways.

    Two lengths are how a request is smuggled past a proxy, which may believe the other one.
    """

    error = HTTPException(400, "this is not an HTTP request that can be read: check the client")

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            size = (
                len(event.method) + len(event.target) + sum(len(name) + len(value) + 4 for name, value in event.headers)
            )
            if size > HEADER_BYTES:
                self.error = HTTPException(431, f"the headers are larger than {HEADER_BYTES:,} bytes: send fewer")
            elif {b"content-length", b"transfer-encoding"} <= names:
                self.error = HTTPException(400, "Content-Length and Transfer-Encoding exclude each other: send one")
            else:
                return event
            raise h11.RemoteProtocolError(self.error.detail)
        return event


class TimeoutProtocol(H11Protocol):
    """uvicorn's protocol waits for the end of a request's headers without limit; this one does not."""

    timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.conn: StrictConnection = StrictConnection(h11.SERVER, HEADER_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_timer(True)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        their, our = self.conn.their_state, self.conn.our_state
        self._set_timer(their is h11.IDLE or (their is h11.SEND_BODY and our in (h11.DONE, h11.MUST_CLOSE)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_timer(False)
        super().connection_lost(exc)

    def _set_timer(self, wanted: bool) -> None:
        if wanted and self.timer is None:
            self.timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)
        elif not wanted and self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def send_400_response(self, msg: str) -> None:
        """To what is not HTTP, or what `StrictConnection` does not accept."""
        error = self.conn.error
        headers = [*HEADERS.items(), ("Content-Type", "application/json"), ("Connection", "close")]
        body = AsciiJSON({"error": error.detail}).body
        events: list[Any] = [
            h11.Response(
                status_code=error.status_code, headers=[(name.encode(), value.encode()) for name, value in headers]
            ),
            h11.Data(data=bytes(body)),
            h11.EndOfMessage(),
        ]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """Logs its address once it listens."""

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stop. uvicorn's own method would have the signal sent once more at the end."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = (sockets or [])[0].getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        log.info("listening on http://%s (the page at /, the API at /docs; Ctrl-C stops)", address)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, before the model is loaded: a port in use should be known at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        if os.name == "posix":  # where it only means that a restart need not wait
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # two sockets may be bound to one port, but only one may listen
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} of {host} is in use: choose another with --port, or 0 for any") from None
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"cannot listen on {host}:{port}: {reason.lower()}") from None
    return listener


def open_to_all(settings: Settings) -> str:
    """What it means that other machines may use the server without a token; empty where they may not."""
    if settings.is_local or settings.token is not None:
        return ""
    return (
        f"--host {settings.host} without a token: everyone on a network that reaches this machine may use the server; "
        "set SIGHTLINE_TOKEN, or leave out --host to serve this machine alone (docs/serve.md)"
    )


def serve(captioner: Captioner, settings: Settings, listener: socket.socket, name: str, page: BrowserModel) -> None:
    """Answer until SIGTERM or Ctrl-C, then finish the requests in flight; a second Ctrl-C does not wait."""
    work = CaptionWork(captioner, settings.max_pixels)
    warm_up(work)
    config = uvicorn.Config(
        create_app(work, settings, name, page),
        http=TimeoutProtocol, ws="none", loop="asyncio", lifespan="on", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_graceful_shutdown=math.ceil(settings.timeout) + 5,
    )  # fmt: skip
    if warning := open_to_all(settings):
        log.warning("%s", warning)
    Server(config).run(sockets=[listener])
    log.info("stopped; every request that had arrived was answered")


def warm_up(work: CaptionWork) -> None:
    """Caption a grey image: a model that fails does so now, and the first client does not wait for set-up."""
    grey = io.BytesIO()
    Image.new("RGB", (64, 64), "grey").save(grey, "PNG")
    for explain in (False, True):
        encoded = work.encode([work.prepare(grey.getvalue())])
        (answer,) = work.decode(encoded, work.query({}, explain))
        work.has_attention &= answer.method == "attention"
