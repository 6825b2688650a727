"""``sightline load``: a model from the hub, checked and kept here, so that it is used without a network."""

from __future__ import annotations

from typing import Annotated

import typer

from sightline.io.files import printable


def load(
    name: Annotated[str, typer.Argument(metavar="OWNER/MODEL", help="The model's name on the Hugging Face hub.")],
    revision: Annotated[
        str | None, typer.Option("--revision", help="A branch, tag or commit.", show_default="the newest")
    ] = None,
) -> None:
    """Fetch a model from the Hugging Face hub. Then every verb takes --model OWNER/MODEL, offline too."""
    from sightline.nn.hub import load_from_hub

    checkpoint = load_from_hub(name, revision)
    every, _ = checkpoint.model.count()
    typer.echo(f"{name}: {every:,} parameters, {checkpoint.tokenizer.size:,} tokens, in {printable(checkpoint.folder)}")
