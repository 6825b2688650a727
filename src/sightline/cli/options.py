"""Options that several verbs share, with one wording."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Beam = Annotated[int | None, typer.Option("--beam", help="Hypotheses kept at each step; 1 is greedy search.")]
LengthPenalty = Annotated[
    float | None, typer.Option("--length-penalty", help="Score is log-probability / length ** this; 0 favours short.")
]
MaxLength = Annotated[
    int | None, typer.Option("--max-length", help="Longest caption in tokens, start and end counted.")
]
MinLength = Annotated[int | None, typer.Option("--min-length", help="Shortest caption in tokens.")]
NoRepeat = Annotated[
    int | None, typer.Option("--no-repeat-ngram", help="No run of this many tokens occurs twice; 0 is off.")
]
Runtime = Annotated[
    str,
    typer.Option("--runtime", help="What computes: torch, onnx (an exported model) or auto: onnx where it can."),
]
Datastore = Annotated[
    str | None, typer.Option("--datastore", help="A folder of `sightline retrieval build`: kNN-augmented decoding.")
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Photos captioned at once.")]
Data = Annotated[str, typer.Option("--data", help="The dataset's folder, or a captions table.")]
Format = Annotated[str, typer.Option("--format", help="auto, flickr8k, flickr30k, coco, folder or shards.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one value of the recipe; repeatable."),
]
Metrics = Annotated[
    str | None, typer.Option("--metrics", help="Comma-separated: bleu, rouge, cider, meteor. All if not given.")
]


def given(**options: Any) -> dict[str, Any]:
    """Only the options a user gave; the model's own hold for the rest."""
    return {name: value for name, value in options.items() if value is not None}


def metric_names(text: str | None) -> list[str] | None:
    return [name.strip() for name in text.split(",") if name.strip()] if text else None
