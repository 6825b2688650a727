"""``sightline export``: a model as ONNX graphs, for onnxruntime here and in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sightline.io.files import printable


def export(
    model: Annotated[str, typer.Argument(help="A model folder, a shipped model's name or a hub name.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder to write.", show_default="the model's own folder")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Weights of 8 and 16 bits: two fifths of the size.")] = False,
    web: Annotated[
        Path | None,
        typer.Option("--web", help="Write a page that captions in the browser: a folder for any web server."),
    ] = None,
    licence: Annotated[str, typer.Option("--licence", help="The model's licence, noted in sightline.json.")] = "",
) -> None:
    """Write a model as ONNX graphs. A folder that has them is run by onnxruntime, and torch need not be imported."""
    from sightline.serve.built import copy_page

    site = web and web.expanduser()
    if site:
        copy_page(site)  # first: it says at once where it cannot be

    from sightline.onnx.export import export as run

    report = run(model, output, int8=int8, web=site and site / "model", licence=licence)
    for folder, manifest in report.folders.items():
        sizes = {name: graph.bytes / 1e6 for name, graph in manifest.graphs.items()}
        parts = ", ".join(f"{name}.onnx {size:.1f}" for name, size in sizes.items())
        beside = " beside the weights" if any(graph.outside for graph in manifest.graphs.values()) else ""
        typer.echo(f"{printable(folder)}: {manifest.precision}, {sum(sizes.values()):.1f} MB{beside} ({parts})")
    if site:
        typer.echo(f"{printable(site)}: the page; to see it: python3 -m http.server -d {printable(site)}")
    typer.echo(f"the float graphs' logits are torch's to {report.difference:.0e}")
