"""Fixtures that several tests share: a tiny Flickr8k drawn on the spot, and the real data where it lies at hand."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side: one thread each

import pytest
from commands import Command, Outcome
from drawings import DRAWINGS, EVERY, LISTS

from sightline.io import progress


def make_flickr8k(root: Path) -> Path:
    """Flickr8k's original layout with 8 train, 2 dev and 2 test photos of five captions each."""
    images, text = root / "Flicker8k_Dataset", root / "Flickr8k_text"
    images.mkdir(parents=True)
    text.mkdir()
    rows = []
    for drawing in EVERY:
        drawing.draw().save(images / drawing.name, quality=95)
        rows += [f"{drawing.name}#{number}\t{caption}\n" for number, caption in enumerate(drawing.captions)]
    (text / "Flickr8k.token.txt").write_text("".join(rows))
    for split, drawings in DRAWINGS.items():
        (text / f"Flickr_8k.{LISTS[split]}Images.txt").write_text("".join(f"{drawing.name}\n" for drawing in drawings))
    return root


@pytest.fixture
def tiny_flickr8k(tmp_path: Path) -> Path:
    """A fresh tiny Flickr8k, free to be spoilt."""
    return make_flickr8k(tmp_path / "flickr8k")


@pytest.fixture(scope="session")
def tiny_flickr8k_kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, made once for all tests that only read it."""
    return make_flickr8k(tmp_path_factory.mktemp("data") / "flickr8k")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the real data: $SIGHTLINE_SHARED, or ``shared`` beside the repository; else a skip."""
    folder = Path(os.environ.get("SIGHTLINE_SHARED") or Path(__file__).parents[2] / "shared")
    if not folder.is_dir():
        pytest.skip("real data not found: set SIGHTLINE_SHARED to the folder that holds flickr8k/")
    return folder


@pytest.fixture(scope="session")
def real_flickr8k(shared: Path) -> Path:
    folder = shared / "flickr8k"
    if not folder.is_dir():
        pytest.skip(f"no flickr8k under {shared}")
    return folder


@pytest.fixture(scope="session")
def tiny_model(tiny_flickr8k_kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model folder, small enough to caption in milliseconds; only to be read."""
    import torch

    from sightline.data import load_dataset
    from sightline.nn.checkpoint import CaptionModel, Checkpoint, save_checkpoint
    from sightline.nn.decoders import build_decoder
    from sightline.nn.encoders import build_encoder
    from sightline.tokenizers import train_tokenizer

    torch.manual_seed(1)
    captions = load_dataset(tiny_flickr8k_kept).captions("train")
    tokenizer = train_tokenizer("word", captions, min_count=1, max_length=12)
    encoder = build_encoder("patches", image_size=32, patch_size=8, width=32, blocks=1, heads=2)
    decoder = build_decoder(
        "transformer", features=32, vocabulary=tokenizer.size, max_length=12, width=32, heads=2, blocks=1
    )
    folder = tmp_path_factory.mktemp("models") / "tiny"
    recipe = '[tokenizer]\nname = "word"\nmin_count = 1\n'
    save_checkpoint(folder, Checkpoint(CaptionModel(encoder, decoder), tokenizer, {"beam": 2}, recipe=recipe))
    return folder


@pytest.fixture
def own_model(tiny_model: Path, tmp_path: Path) -> Path:
    """A model folder free to be spoilt."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


@pytest.fixture(scope="session")
def exported_folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny model's folder and its export; only to be read."""
    from exporting import export_both

    return export_both(tmp_path_factory.mktemp("export"))


@pytest.fixture(scope="session")
def photo_bytes(tiny_flickr8k_kept: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((tiny_flickr8k_kept / "Flicker8k_Dataset").iterdir())]


@pytest.fixture
def photos(tiny_flickr8k_kept: Path) -> list[Path]:
    return sorted((tiny_flickr8k_kept / "Flicker8k_Dataset").iterdir())


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command sets logging up for the rest of its process, which here is all the other tests'."""
    package_log, root = logging.getLogger("sightline"), logging.getLogger()
    before = package_log.handlers, package_log.propagate, package_log.level, list(root.handlers)
    yield
    package_log.handlers, package_log.propagate, root.handlers = before[0], before[1], before[3]
    package_log.setLevel(before[2])
    progress.use_terminal(False)


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """The command without a new process, which would spend two seconds importing torch each time."""
    from sightline.cli import run

    for name in ("PYTHONWARNINGS", "HF_HUB_VERBOSITY", "TORCH_CPP_LOG_LEVEL", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # the command replaces it

    def call(*arguments: object) -> Outcome:
        capfd.readouterr()
        code = run(list(map(str, arguments)))
        return Outcome(code, *capfd.readouterr())

    with warnings.catch_warnings():
        yield call


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright: pip install it")
    from browsing import Chromium, find_browser, with_own_log

    path = with_own_log(find_browser(), tmp_path_factory.mktemp("browser"))
    with playwright.sync_playwright() as driver:
        running = Chromium(driver, path)
        yield running
        running.close()


@pytest.fixture(scope="session")
def site(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``sightline export --web`` writes, with a tiny model and random calibration; only to be read."""
    pytest.importorskip("onnxscript", reason="exporting needs it: pip install 'sightline-captions[onnx]'")

    from browsing import calibration
    from serving import made_once

    from sightline.serve.browser import copy_page

    def make(folder: Path) -> None:
        from sightline.onnx.export import export

        copy_page(folder)
        export(tiny_model, web=folder / "model")
        (folder / "model" / "confidence.json").write_text(json.dumps(calibration(32).to_json()))

    return made_once(tmp_path_factory, "site", make)
