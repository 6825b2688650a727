"""``sightline export``: a model as ONNX graphs, for onnxruntime here and in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sightline.files import printable


def export(
    model: Annotated[str, typer.Argument(help="A model folder, a shipped model's name or a hub name.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder to write.", show_default="the model's own folder")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Weights of 8 and 16 bits: two fifths of the size.")] = False,
    web: Annotated[bool, typer.Option("--web", help="Also write OUTPUT/web, the int8 files the page loads.")] = False,
    licence: Annotated[str, typer.Option("--licence", help="The model's licence, noted in sightline.json.")] = "",
) -> None:
    """Write a model as ONNX graphs; a folder that has them is run by onnxruntime, and torch need not be imported."""
    from sightline.export import export as run

    report = run(model, output, int8=int8, web=web, licence=licence)
    for folder, manifest in report.folders.items():
        sizes = {name: graph.bytes / 1e6 for name, graph in manifest.graphs.items()}
        parts = ", ".join(f"{name}.onnx {size:.1f}" for name, size in sizes.items())
        beside = " beside the weights" if any(graph.outside for graph in manifest.graphs.values()) else ""
        typer.echo(f"{printable(folder)}: {manifest.precision}, {sum(sizes.values()):.1f} MB{beside} ({parts})")
    typer.echo(f"the float graphs' logits are torch's to {report.difference:.0e}")
