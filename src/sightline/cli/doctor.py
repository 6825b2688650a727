"""``sightline doctor``: checks the installation, a dataset, and whether a model's captions depend on the photo."""

from __future__ import annotations

import importlib.metadata
import platform
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.console import failure_line
from sightline.errors import EXTRAS, SightlineError, install_command, missing_packages
from sightline.io.files import counted
from sightline.types import Failure

if TYPE_CHECKING:
    from sightline.data import Dataset

NEEDED = ("onnxruntime", "numpy", "pillow", "pillow-heif", "safetensors", "pydantic", "typer", "rich", "tomli-w")
PHOTOS = 50  # of the val split, captioned to see whether captions depend on the photo

Finding = tuple[str, str]  # "ok", "note" or "fault", and a line


def doctor(
    data: Annotated[str | None, typer.Option("--data", help="Check this dataset, every photo included.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Check this model; with --data on val photos.")
    ] = None,
) -> None:
    """Find out what is installed and what works.

    A dataset or a model that is named comes first. Exit code 1 when there is a fault. A note is none: training leaves
    out what a dataset lacks, and goes on.
    """
    dataset: list[Dataset] = []
    faults = _print(complete(data, dataset)) if data is not None else 0
    named = data is not None or model is not None
    if named:
        faults += _print(varied(model, dataset[0] if dataset else None, hint=data is None))
        typer.echo("\nthe installation:")
    faults += sum(_print(check()) for check in (installed, works, caches))
    if not named:
        faults += _print(varied(None, None, hint=True))
    if faults:
        raise typer.Exit(1)


def _print(findings: Iterator[Finding]) -> int:
    """Print findings as they come; returns how many are faults."""
    faults = 0
    try:
        for kind, text in findings:
            faults += kind == "fault"
            typer.echo(f"{kind:6}{text}")
    except SightlineError as error:
        faults += 1
        typer.echo(f"{'fault':6}{error}")
    return faults


def installed() -> Iterator[Finding]:
    """Versions of the packages that are always needed, then of each extra's, or what an extra would bring."""
    yield "ok", f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    for name in NEEDED:
        version = _version(name)
        yield ("ok", f"{name} {version}") if version else ("fault", f"{name} is not installed: pip install {name}")
    for extra, (purpose, packages) in EXTRAS.items():
        if missing := missing_packages(extra):
            lacks = ", ".join(missing)
            yield "note", f"extra {extra} is not installed ({lacks}): {purpose}; {install_command(extra)}"
        else:
            names = [package.partition("[")[0] for package in packages.values()]
            yield "ok", f"extra {extra}: " + ", ".join(f"{name} {_version(name)}" for name in names)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def works() -> Iterator[Finding]:
    """The imports that break most often, a caption from a tiny untrained model, and METEOR's tables."""
    if not missing_packages("train"):
        yield from _torch_works()
    if missing_packages("metrics"):
        return
    from sightline.evaluation.metrics.meteor_data import find_source

    try:
        find_source()
        yield "ok", "METEOR's tables are here"
    except SightlineError as error:
        yield "note", f"METEOR is left out of scores: {error}"


def _torch_works() -> Iterator[Finding]:
    for label, module in (
        ("torchvision", "sightline.nn.torchvision_import"),
        ("timm", "timm"),
    ):
        try:
            importlib.import_module(module)
            yield "ok", f"{label} can be imported"
        except Exception as error:  # whatever a broken installation raises
            yield "fault", f"{label} cannot be imported: {type(error).__name__}: {str(error).splitlines()[0]}"
    try:
        device = _tiny_caption()
        yield "ok", f"a tiny model captions a picture on {device}"
    except Exception as error:
        yield "fault", f"a tiny model cannot caption a picture: {type(error).__name__}: {error}"
    from sightline.nn.encoders import ENCODERS

    yield "ok", f"encoders: {', '.join(ENCODERS)}, any timm model by its name there, and several joined by +"


def _tiny_caption() -> str:
    import torch
    from PIL import Image

    from sightline.engine.captioner import Captioner
    from sightline.engine.torch_backend import TorchBackend
    from sightline.nn.checkpoint import CaptionModel, Checkpoint
    from sightline.nn.decoders import build_decoder
    from sightline.nn.encoders import build_encoder
    from sightline.tokenizers import train_tokenizer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = train_tokenizer("word", ["a small test"], min_count=1, max_length=8)
    encoder = build_encoder("patches", image_size=16, patch_size=8, width=8, blocks=1, heads=1)
    decoder = build_decoder(
        "transformer", features=8, vocabulary=tokenizer.size, max_length=8, width=8, heads=1, blocks=1
    )
    captioner = Captioner([TorchBackend(Checkpoint(CaptionModel(encoder, decoder), tokenizer), device)])
    captioner.caption(Image.new("RGB", (20, 20), "red"))
    return device


def caches() -> Iterator[Finding]:
    """The size of the cache folder."""
    from sightline.io.files import cache_folder

    folder = cache_folder()
    files = [file for file in folder.rglob("*") if file.is_file()] if folder.is_dir() else []
    # Sparse files of a cache that is being filled take less space than their length.
    size = sum(getattr(file.stat(), "st_blocks", 0) * 512 or file.stat().st_size for file in files)
    yield "ok", f"{folder} holds {size / 1e6:,.0f} MB of features and tables; it may be deleted, they are made again"


def complete(path: str, found: list[Dataset]) -> Iterator[Finding]:
    """Problems of a dataset on loading, and photos that do not open."""
    from sightline.data import load_dataset, verify_images
    from sightline.io.progress import meter

    dataset = load_dataset(path)
    found.append(dataset)
    yield "ok" if dataset.report.ok else "note", dataset.report.without_notes()
    with meter("opening photos") as update:
        failures = verify_images(dataset, update)
    for failure in failures[:20]:
        yield "fault", failure_line(failure)
    if len(failures) > 20:
        yield "fault", f"… and {counted(len(failures) - 20, 'more photo')}"
    if not failures:
        yield "ok", f"all {sum(map(len, dataset.splits.values())):,} photos open"


def varied(model: str | None, dataset: Dataset | None, hint: bool) -> Iterator[Finding]:
    """Whether a model loads and gives different photos different captions."""
    from sightline.engine.captioner import load
    from sightline.nn.hub import DEFAULT_MODEL

    if model is None and not Path(DEFAULT_MODEL).is_dir():
        yield "note", "no model came with this installation: train one, `sightline recipes` lists how"
        return
    captioner = load(*([model] if model else []))
    every = sum(backend.parameters for backend in captioner.backends)
    name, size = model or "the default model", captioner.tokenizer.size
    yield "ok", f"{name} loads: {every:,} parameters, {size:,} tokens; run by {captioner.runtimes[0]}"
    if dataset is None:
        if hint:
            yield "note", "give --data to check it on photos, too"
        return
    photos = [example.image for example in dataset.examples("val")[:PHOTOS]]
    if not photos:
        yield "fault", "there are no val photos: put some photos in the val split, training needs them"
        return
    results = captioner.stream(photos, want_attention=False)
    captions = Counter(result.text for result in results if not isinstance(result, Failure))
    total = captions.total()
    if not total:
        yield "fault", "no val photo could be captioned"
        return
    common, times = captions.most_common(1)[0]
    line = f"{counted(len(captions), 'different caption')} of {counted(total, 'photo')}"
    if total > 1 and times > total / 2:
        yield "fault", f"{line}; {times} times {common!r}: the model has collapsed and hardly depends on the photo"
    elif not common:
        yield "fault", f"{line}; {times} are empty"
    else:
        yield "ok", line
