"""``sightline calibrate``: teach a model what its probabilities are worth, and which photos are strange to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.console import console, percent
from sightline.cli.options import BatchSize, Data, Format
from sightline.io.files import printable

ROWS = {"words": "words", "content_words": "content words", "captions": "captions"}


def calibrate(
    model: Annotated[str, typer.Argument(help="A model folder, or a shipped model's name.")],
    data: Data,
    photos: Annotated[int | None, typer.Option("--photos", min=1, help="Of dev.", show_default="all")] = None,
    train_photos: Annotated[
        int | None, typer.Option("--train-photos", min=1, help="Of train.", show_default="five per feature")
    ] = None,
    batch_size: BatchSize = 16,
    format: Format = "auto",
) -> None:
    """Fit a model's confidence on dev photos. It is written to the model's folder, as confidence.json."""
    from rich.table import Table

    from sightline.data import load_dataset
    from sightline.engine.captioner import load
    from sightline.evaluation.calibration import calibrate as run
    from sightline.nn.hub import resolve

    folder = resolve(model)
    captioner = load(folder, runtime="torch")
    confidence = run(captioner, load_dataset(data, format), photos, train_photos, batch_size)
    confidence.save(folder)

    found = confidence.record["check"]
    table = Table("chance that it is right", title=printable(Path(folder).name), title_justify="left")
    for column in ("right, %", "ECE before", "after", "Brier before", "after"):
        table.add_column(column, justify="right")
    for key, name in ROWS.items():
        before, after = found[key]["before"], found[key]["after"]
        numbers = (after["rate"], before["ece"], after["ece"], before["brier"], after["brier"])
        table.add_row(f"{name} ({after['count']:,})", *map(percent, numbers))
    console().print(table)
    typer.echo(f"{percent(found['marked'])} % of dev photos are marked unsure; each half was judged by the other's fit")
    typer.echo(f"written to {printable(Path(folder) / 'confidence.json')}")
