"""``sightline search``: photos by their captions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.console import Models, complain
from sightline.errors import ConfigError
from sightline.io.files import counted, printable, write_atomically


def search(
    query: Annotated[str, typer.Argument(help="Words of the captions; words in double quotes must follow each other.")],
    captions: Annotated[
        str, typer.Argument(help="A table of captions (.csv, .tsv, .json, .jsonl, .parquet), or a folder of photos.")
    ],
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many photos.")] = 20,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write a page with the photos.")
    ] = None,
    model: Models = None,
) -> None:
    """Find photos by their captions, best match first.

    Prints path<TAB>caption<TAB>score. A folder of photos is captioned first, into the cache; the next search in it
    captions only what is new. Exit code 1: nothing was found.
    """
    from sightline.bulk.search import as_given, caption_folder, find_table, query_phrases, render_page
    from sightline.bulk.search import search as find

    query_phrases(query)  # a query without words is reported before any photo is captioned
    if html is not None and html.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--html {printable(html)}: the page is a .html file")
    table = find_table(captions)
    is_folder = table is None
    if table is None:
        from sightline.engine.captioner import load

        table = caption_folder(captions, load(*(model or ())))
    found = find(query, table, limit)
    if is_folder:
        found = [replace(one, source=as_given(one.source, captions)) for one in found]
    for one in found:
        typer.echo(f"{printable(one.source)}\t{one.sentence()}\t{one.score:.2f}")
    if html is not None:
        write_atomically(html, render_page(query, found, table, html))
        complain(f"{counted(len(found), 'photo')} on the page {printable(html)}")
    if not found:
        complain(f"no caption in {printable(captions)} matches {query!r}: try fewer or other words")
        raise typer.Exit(1)
