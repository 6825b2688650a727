"""``sightline push``: a model folder to the hub, with its card."""

from __future__ import annotations

from typing import Annotated

import typer


def push(
    model: Annotated[str, typer.Argument(help="A model folder, or a shipped model's name.")],
    name: Annotated[str, typer.Argument(metavar="OWNER/MODEL", help="What it is to be called on the hub.")],
    private: Annotated[bool, typer.Option("--private", help="Only for you, if the repository is new.")] = False,
    message: Annotated[str | None, typer.Option("--message", help="Of the commit there.")] = None,
) -> None:
    """Publish a model on the Hugging Face hub. Log in first, with its own `hf auth login`."""
    from sightline.nn.hub import push as run
    from sightline.nn.hub import resolve

    pushed = run(resolve(model), name, private, message)
    typer.echo(f"{pushed.name}: {pushed.address}")
