"""``sightline score``: anyone's captions in COCO's results format, scored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.evaluate import show_scores
from sightline.cli.options import Format, Metrics, given, metric_names


def score(
    results: Annotated[Path, typer.Argument(help='A JSON list of {"image_id": …, "caption": …}.')],
    references: Annotated[
        str, typer.Option("--references", help="A dataset's folder, or a COCO annotations file (.json).")
    ],
    split: Annotated[str, typer.Option("--split", help="Of the dataset: train, dev or test.")] = "test",
    metrics: Metrics = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for captions.json and scores.json.")
    ] = None,
    format: Format = "auto",
) -> None:
    """Score ready captions, whoever made them."""
    from sightline.evaluation.scoring import score_results

    result = score_results(results, references, split, format=format, **given(metrics=metric_names(metrics)))
    if output is not None:
        result.save(output)
    show_scores(result, str(results))
