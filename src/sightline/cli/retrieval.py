"""``sightline retrieval``: captioned photos as a datastore for kNN-augmented decoding, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.console import Data, Format, Runtime, percent
from sightline.io.files import counted, printable

retrieval = typer.Typer(name="retrieval", help="Build a retrieval datastore of your own captioned photos.")


@retrieval.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@retrieval.command()
def build(
    data: Data,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the datastore to this folder; an existing one is replaced.")
    ],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="A model folder or hub name.", show_default="the default model")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="Use this split: train, val, test or all.")] = "train",
    weight: Annotated[
        float | None,
        typer.Option("--weight", help="Weight of the neighbours' captions, 0 to 1.", show_default="the best on val"),
    ] = None,
    runtime: Runtime = "auto",
    format: Format = "auto",
) -> None:
    """Build a datastore of captioned photos. Verbs that caption take its folder with --datastore."""
    from sightline.engine.captioner import load
    from sightline.training.retrieval import build_datastore

    captioner = load(*([model] if model else []), runtime=runtime)
    datastore, scores = build_datastore(captioner, data, split, weight, format)
    datastore.save(output)
    new = datastore.tokenizer(captioner.tokenizer).size - captioner.tokenizer.size
    typer.echo(f"{counted(len(datastore), 'photo')} in {printable(output)}, {counted(new, 'word')} new to the model")
    if scores:
        listed = ", ".join(f"{each:g}: {percent(found)}" for each, found in scores.items())
        typer.echo(f"CIDEr-D on val by weight: {listed}; chosen: {datastore.contents.weight:g}")
        if not datastore.contents.weight:
            typer.echo("retrieval does not help on these val photos; fine-tuning may: sightline train own-photos")
