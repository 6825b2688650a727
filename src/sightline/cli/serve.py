"""``sightline serve``: captions over HTTP, and a page to try them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.console import Datastore, Models
from sightline.errors import ConfigError, require
from sightline.io.files import printable

if TYPE_CHECKING:
    from sightline.engine.captioner import Captioner
    from sightline.serve.browser import BrowserModel


def serve(
    model: Models = None,
    datastore: Datastore = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0 takes any free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", help="Ask for the bearer token in this file.", show_default="SIGHTLINE_TOKEN, if set"
        ),
    ] = None,
    max_bytes: Annotated[int, typer.Option("--max-bytes", help="Largest request, in bytes.")] = 20 * 2**20,
    max_pixels: Annotated[
        int, typer.Option("--max-pixels", help="Largest photo, in pixels that are decoded.")
    ] = 65_000_000,
    max_photos: Annotated[int, typer.Option("--max-photos", help="Most photos in one request.")] = 16,
    queue: Annotated[int, typer.Option("--queue", help="Photos in flight at once; beyond that clients get 429.")] = 64,
    batch: Annotated[int, typer.Option("--batch", help="Photos captioned at once.")] = 16,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds for a request, upload included.")] = 30,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option("--cors-origin", help="Allow pages of this site, e.g. https://example.org; repeatable."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="Another host name of this server, e.g. behind a proxy; repeatable."),
    ] = None,
    page_model: Annotated[
        Path | None,
        typer.Option(
            "--page-model",
            help="The exported folder that the page runs in the browser.",
            show_default="made from the model, once, and kept in the cache",
        ),
    ] = None,
    server_page: Annotated[
        bool, typer.Option("--server-page", help="The page sends photos to this server; no model in the browser.")
    ] = False,
) -> None:
    """Caption photos over HTTP, with a page at /. Only this machine can reach it unless --host says otherwise."""
    require("serve", "sightline serve")

    from sightline.serve.settings import make_settings

    settings = make_settings(
        host=host, port=port, token=_token(token_file), max_bytes=max_bytes, max_pixels=max_pixels,
        max_photos=max_photos, queue=queue, batch=batch, timeout=timeout,
        cors_origins=tuple(cors_origin or ()), allowed_hosts=tuple(name.lower() for name in allow_host or ()),
    )  # fmt: skip

    from sightline.io import progress
    from sightline.io.images import keep_stderr_apart
    from sightline.serve.server import listen
    from sightline.serve.server import serve as run

    sockets = listen(settings.host, settings.port)

    from sightline.engine.captioner import load

    progress.use_terminal(False)  # the model's thread draws no bars
    keep_stderr_apart()
    captioner = load(*(model or ()), datastore=datastore)
    name = " + ".join(printable(folder.name) for folder in captioner.folders if folder) or "unnamed"
    run(captioner, settings, sockets, name, _page(captioner, page_model, server_page or datastore is not None))


def _page(captioner: Captioner, chosen: Path | None, on_server: bool) -> BrowserModel:
    from sightline.serve.browser import BrowserModel, find_browser_model

    if chosen is not None:
        return BrowserModel(chosen)
    return BrowserModel(reason="") if on_server else find_browser_model(captioner)


def _token(file: Path | None) -> str | None:
    """Never from the command line, where every user of the machine could read it."""
    if file is None:
        return os.environ.get("SIGHTLINE_TOKEN")
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"--token-file {printable(file)} cannot be read: {reason}") from None
