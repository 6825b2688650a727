"""``sightline models``: which trained models lie at hand. Reads headers only, so it needs no torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from sightline.cli.console import complain, console, percent
from sightline.errors import CheckpointError
from sightline.io.files import models_folder, printable
from sightline.nn.hub import SHIPPED

FILES = ("config.json", "model.safetensors", "tokenizer.json")
EXPORTED = "sightline.json"


def models(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Model folders, or folders of them.", show_default="the shipped, the loaded, runs/"),
    ] = None,
) -> None:
    """List models, with sizes and scores on dev. Also: whether they know how sure they are, and what runs them."""
    from rich.table import Table

    table = Table("model", "encoder", "decoder", box=None, pad_edge=False)
    for column in ("parameters", "MB", "BLEU-4", "CIDEr-D"):
        table.add_column(column, justify="right")
    for column in ("calibrated", "runtimes"):
        table.add_column(column)
    table.add_column("folder", overflow="fold")
    failed, found = False, 0
    for given in paths or (SHIPPED, models_folder(), Path("runs")):
        folders = _folders(given)
        if not folders and paths:
            complain(f"error: {printable(given)} holds no model: a model folder has {', '.join(FILES)}")
            failed = True
        for folder in folders:
            try:
                table.add_row(*_row(folder, given))
                found += 1
            except CheckpointError as error:
                complain(f"error: {error}")
                failed = True
    if found:
        console().print(table)
    elif not failed:
        complain("no models here: train one (`sightline recipes` lists how) or name a folder")
    if failed:
        raise typer.Exit(1)


def _folders(given: Path) -> list[Path]:
    if is_model(given):
        return [given]
    if not given.is_dir():
        return []
    inside = [folder for folder in sorted(given.iterdir()) if folder.is_dir() and not folder.name.startswith(".")]
    loaded = given == models_folder()  # there they lie one deeper, under their owner's name
    owned = [model for owner in inside for model in sorted(owner.iterdir())] if loaded else []
    return [folder for folder in [*inside, *owned] if is_model(folder)]


def is_model(folder: Path) -> bool:
    return all((folder / name).is_file() for name in FILES) or (folder / EXPORTED).is_file()


def _row(folder: Path, given: Path) -> list[str]:
    config, metrics = _read(folder / "config.json"), _read(folder / "metrics.json")
    weights = folder / "model.safetensors"
    name = folder.relative_to(given).as_posix() if given != folder and folder.is_relative_to(given) else folder.name
    calibrated = "yes" if (folder / "confidence.json").is_file() else "no"
    if not weights.is_file():
        return [printable(name), *_exported(folder), "–", "–", calibrated, "onnx", printable(folder)]
    found = metrics.get("dev")
    dev = found if isinstance(found, dict) else {}
    scores = [percent(dev[key]) if isinstance(dev.get(key), int | float) else "–" for key in ("bleu_4", "cider")]
    parts = [
        str(part.get("name", "?")) if isinstance(part := config.get(key), dict) else "?"
        for key in ("encoder", "decoder")
    ]
    size = f"{weights.stat().st_size / 1e6:.1f}"
    counted, parameters = _numbers(weights), metrics.get("parameters")  # the file also holds batch norms' statistics
    shown = parameters if isinstance(parameters, int) and parameters <= counted else counted
    runtimes = "onnx, torch" if (folder / EXPORTED).is_file() else "torch"
    return [printable(name), *parts, f"{shown:,}", size, *scores, calibrated, runtimes, printable(folder)]


def _exported(folder: Path) -> list[str]:
    """What there is to say of graphs without the weights they were made from."""
    manifest = _read(folder / EXPORTED)
    parts = [printable(str(manifest.get(key, "?"))) for key in ("encoder", "decoder")]
    shown = manifest.get("parameters")
    size = sum(file.stat().st_size for file in folder.glob("*.onnx")) / 1e6
    return [*parts, f"{shown:,}" if isinstance(shown, int) else "?", f"{size:.1f}"]


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{printable(path)} cannot be read: {error}; copy the file again") from None
    return value if isinstance(value, dict) else {}


def _numbers(path: Path) -> int:
    """How many numbers a safetensors file holds, from its header."""
    from sightline.io.model_files import tensor_slices

    return sum(math.prod(place.shape) for place in tensor_slices(path).values())
