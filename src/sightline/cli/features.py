"""``sightline features``: what a recipe's frozen encoder sees, computed ahead of training."""

from __future__ import annotations

from typing import Annotated

import typer

from sightline.cli.options import Data, Format, Overrides


def features(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (`sightline recipes`) or a .toml file.")],
    data: Data,
    overrides: Overrides = None,
    format: Format = "auto",
    ray: Annotated[
        str | None,
        typer.Option("--ray", metavar="[ADDRESS]", help="On a Ray cluster, or on all of this machine's devices."),
    ] = None,
) -> None:
    """Compute a frozen encoder's features ahead of training. One machine or many may do so; training finds them."""
    from sightline.bulk.features import build_features

    for folder in build_features(recipe, list(overrides or ()), data, format, ray):
        typer.echo(folder)
