"""``sightline models``, ``load``, ``push`` and ``export``: list models, get and publish them, write them as ONNX.

Listing reads the files' headers only, so it needs no torch.
"""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli.console import complain, console, percent
from sightline.errors import CheckpointError, require
from sightline.io.files import models_folder, printable, user_path
from sightline.io.model_files import SCALE, WEIGHTS, has_weights, tensor_slices, weights_size
from sightline.types import METRIC_NAMES

if TYPE_CHECKING:
    from sightline.onnx.exported import Manifest

FILES = ("config.json", WEIGHTS, "tokenizer.json")
EXPORTED = "sightline.json"
VAL_SCORES = ("bleu_4", "cider")


def models(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Model folders, or folders that hold them.", show_default="shipped and loaded models, runs/"
        ),
    ] = None,
) -> None:
    """List models, with sizes and scores on val. Also: the dataset of these scores, whether they are calibrated, and
    which installed runtimes run them."""
    from sightline.nn.hub import SHIPPED, large_folders

    rows: list[list[str]] = []
    failed = False
    listed = set[Path]()
    clones = dict.fromkeys(folder.parent.resolve() for folder in large_folders()[:-1])
    for given in paths or (SHIPPED, *clones, models_folder(), Path("runs")):
        folders = _folders(given)
        if not folders and paths:
            complain(f"error: {printable(given)} holds no model: a model folder has {', '.join(FILES)}")
            failed = True
        for folder in folders:
            if folder.resolve() in listed:
                continue
            listed.add(folder.resolve())
            try:
                rows.append(_row(folder, given))
            except CheckpointError as error:
                complain(f"error: {error}")
                failed = True
    if rows:
        _show(rows)
    elif not failed:
        complain("no models here: train one (`sightline recipes` lists how) or name a folder")
    if failed:
        raise typer.Exit(1)


def load(
    name: Annotated[str, typer.Argument(metavar="OWNER/MODEL", help="The model's name on the Hugging Face hub.")],
    revision: Annotated[
        str | None, typer.Option("--revision", help="A branch, tag or commit.", show_default="the newest")
    ] = None,
) -> None:
    """Fetch a model from the Hugging Face hub. Then every verb takes --model OWNER/MODEL, offline too."""
    require("train", "sightline load, which checks the whole model,")

    from sightline.nn.hub import load_from_hub

    checkpoint = load_from_hub(name, revision)
    every, _ = checkpoint.model.count()
    typer.echo(f"{name}: {every:,} parameters, {checkpoint.tokenizer.size:,} tokens, in {printable(checkpoint.folder)}")


def push(
    model: Annotated[str, typer.Argument(help="A model folder, or default.")],
    name: Annotated[str, typer.Argument(metavar="OWNER/MODEL", help="The model's name on the hub.")],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    message: Annotated[str | None, typer.Option("--message", help="The commit message.")] = None,
) -> None:
    """Publish a model on the Hugging Face hub. Log in first with `hf auth login`."""
    require("train", "sightline push, which checks the whole model,")

    from sightline.nn.hub import push as run
    from sightline.nn.hub import resolve

    pushed = run(resolve(model), name, private, message)
    typer.echo(f"{pushed.name}: {pushed.address}")


def export(
    model: Annotated[str, typer.Argument(help="A model folder or hub name, or default.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder to write.", show_default="the model's own folder")
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Store weights in 8 and 16 bits, at two fifths of the size.")
    ] = False,
    int8_arithmetic: Annotated[
        bool,
        typer.Option(
            "--int8-arithmetic",
            help="Multiply the encoder's matrices in int8: vision transformers are twice as fast and lose little.",
        ),
    ] = False,
    shards: Annotated[
        bool, typer.Option("--shards", help="Divide the folder's weights into compressed files below 50 MB each.")
    ] = False,
    web: Annotated[
        Path | None,
        typer.Option(
            "--web", help="Also write a page that captions in the browser to this folder, for any web server."
        ),
    ] = None,
    licence: Annotated[str, typer.Option("--licence", help="The model's licence, written to sightline.json.")] = "",
) -> None:
    """Write a model as ONNX graphs. onnxruntime then runs it, without torch."""
    from sightline.nn.hub import resolve
    from sightline.serve.browser import copy_model, copy_page, has_small_graphs

    site = user_path(web) if web else None
    plain = not (output or int8 or int8_arithmetic or shards or licence)
    copied = site and plain and has_small_graphs(resolve(model))
    if not copied:
        require("onnx", "sightline export")
    if site:
        copy_page(site)  # first: a page that cannot be written is reported before the export
    if site and copied:
        _report_export(site / "model", copy_model(site / "model", resolve(model)))
        _report_page(site)
        return

    from sightline.engine.backend import note_tried
    from sightline.onnx.export import export as run

    report = run(
        model,
        output,
        int8=int8,
        int8_arithmetic=int8_arithmetic,
        shards=shards,
        web=site and site / "model",
        licence=licence,
    )
    for folder, manifest in report.folders.items():
        note_tried(folder)
        _report_export(folder, manifest)
    if site:
        _report_page(site)
    typer.echo(f"the float graphs' logits are torch's to {report.difference:.0e}")


def _report_export(folder: Path, manifest: Manifest) -> None:
    sizes = {name: graph.bytes / 1e6 for name, graph in manifest.graphs.items()}
    parts = ", ".join(f"{name}.onnx {size:.1f}" for name, size in sizes.items())
    weights = f" and {weights_size(folder) / 1e6:.1f} MB of external weights" if manifest.shares_weights else ""
    typer.echo(f"{printable(folder)}: {manifest.precision}, {sum(sizes.values()):.1f} MB ({parts}){weights}")


def _report_page(site: Path) -> None:
    typer.echo(f"{printable(site)}: the page; to see it: python3 -m http.server -d {printable(site)}")


def _folders(given: Path) -> list[Path]:
    if is_model(given):
        return [given]
    if not given.is_dir():
        return []
    inside = [folder for folder in sorted(given.iterdir()) if folder.is_dir() and not folder.name.startswith(".")]
    loaded = given == models_folder()  # one folder deeper, under the owner's name
    owned = [model for owner in inside for model in sorted(owner.iterdir())] if loaded else []
    return [folder for folder in [*inside, *owned] if is_model(folder)]


def is_model(folder: Path) -> bool:
    needed = [name for name in FILES if name != WEIGHTS]
    try:
        whole = all((folder / name).is_file() for name in needed) and has_weights(folder)
    except CheckpointError:
        return True  # a shard is missing: whoever reads it will say so
    return whole or (folder / EXPORTED).is_file()


def _show(rows: list[list[str]]) -> None:
    """One table, or where the terminal is too narrow for it a paragraph for each model: no path is broken."""
    from rich.table import Table

    numbers = ("parameters", "MB", *(f"val {METRIC_NAMES[key]}" for key in VAL_SCORES))
    names = ("model", "encoder", "decoder", *numbers, "val of", "calibrated", "runtimes", "folder")
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    printer = console()
    needed = printer.measure(table, options=printer.options.update(width=100_000)).maximum
    if needed <= printer.width or not printer.is_terminal:
        printer.width = max(needed, printer.width)
        printer.print(table)
        return
    for number, (model, *values) in enumerate(rows):
        typer.echo(("\n" if number else "") + model)
        for name, value in zip(names[1:], values):
            typer.echo(f"  {name:<{max(map(len, names))}}  {value}")


def _row(folder: Path, given: Path) -> list[str]:
    from sightline.nn.hub import model_size

    config, metrics = _read(folder / "config.json"), _read(folder / "metrics.json")
    name = folder.relative_to(given).as_posix() if given != folder and folder.is_relative_to(given) else folder.name
    size = f"{model_size(folder) / 1e6:.1f}"
    calibrated = "yes" if (folder / "confidence.json").is_file() else "no"
    if not has_weights(folder):
        return [
            printable(name),
            *_exported(folder),
            size,
            "–",
            "–",
            "–",
            calibrated,
            _runtimes("onnx"),
            printable(folder),
        ]
    found = metrics.get("val", metrics.get("dev"))
    val = found if isinstance(found, dict) else {}
    scores = [percent(val[key]) if isinstance(val.get(key), int | float) else "–" for key in VAL_SCORES]
    parts = [
        str(part.get("name", "?")) if isinstance(part := config.get(key), dict) else "?"
        for key in ("encoder", "decoder")
    ]
    counted, parameters = _numbers(folder), metrics.get("parameters")  # the file also holds batch norms' statistics
    shown = parameters if isinstance(parameters, int) and parameters <= counted else counted
    scores.append(_dataset(str(metrics.get("signature", ""))) if val else "–")
    runtimes = _runtimes("onnx", "torch") if (folder / EXPORTED).is_file() else _runtimes("torch")
    return [printable(name), *parts, f"{shown:,}", size, *scores, calibrated, runtimes, printable(folder)]


def _dataset(signature: str) -> str:
    """The dataset of an evaluation's signature, "sightline 0.1.0|flickr8k:test|…"."""
    _, _, rest = signature.partition("|")
    name, is_split, _ = rest.partition(":")
    return printable(name) if is_split else "–"


def _runtimes(*names: str) -> str:
    """Those of the runtimes that are installed, or else what is missing."""
    packages = {"onnx": "onnxruntime", "torch": "torch"}
    installed = [name for name in names if find_spec(packages[name])]
    return ", ".join(installed) or f"none: {packages[names[0]]} is not installed"


def _exported(folder: Path) -> list[str]:
    """Encoder, decoder and parameters of graphs that come without their weights."""
    manifest = _read(folder / EXPORTED)
    parts = [printable(str(manifest.get(key, "?"))) for key in ("encoder", "decoder")]
    shown = manifest.get("parameters")
    return [*parts, f"{shown:,}" if isinstance(shown, int) else "?"]


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{printable(path)} cannot be read: {error}; copy the file again") from None
    return value if isinstance(value, dict) else {}


def _numbers(folder: Path) -> int:
    """How many numbers the weights are, from their header."""
    slices = tensor_slices(folder)
    scales = {name + SCALE for name, found in slices.items() if found.kind == "I8"}
    return sum(math.prod(found.shape) for name, found in slices.items() if name not in scales)
