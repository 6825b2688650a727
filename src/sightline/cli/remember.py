"""``sightline remember``: captioned photos as a memory that steers captions, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.console import percent
from sightline.cli.options import Data, Format, Runtime
from sightline.io.files import counted, printable


def remember(
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="The memory's folder; one that is there is replaced.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="A model folder or hub name.", show_default="the shipped one")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="train, dev, test or all.")] = "train",
    weight: Annotated[
        float | None,
        typer.Option("--weight", help="Of the memory's words, 0 to 1.", show_default="the best on dev photos"),
    ] = None,
    runtime: Runtime = "auto",
    format: Format = "auto",
) -> None:
    """Let your own captioned photos steer captions, untrained. Verbs that caption take the folder with --memory."""
    from sightline.engine.captioner import load
    from sightline.training.retrieval import remember as run

    captioner = load(*([model] if model else []), runtime=runtime)
    memory, tried = run(captioner, data, split, weight, format)
    memory.save(output)
    new = captioner.tokenizer.size
    new = memory.tokenizer(captioner.tokenizer).size - new
    typer.echo(f"{counted(len(memory), 'photo')} in {printable(output)}, {counted(new, 'word')} new to the model")
    if tried:
        scores = ", ".join(f"{each:g}: {percent(found)}" for each, found in tried.items())
        typer.echo(f"CIDEr-D on dev by weight: {scores}; taken: {memory.contents.weight:g}")
        if not memory.contents.weight:
            typer.echo("the memory does not help on these dev photos; fine-tuning may: sightline train own-photos")
