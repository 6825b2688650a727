"""The model for the page in the browser: found where it lies ready, or made while the server already works."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.errors import CheckpointError
from sightline.io.files import cache_folder, printable
from sightline.io.model_files import file_hash
from sightline.onnx.manifest import MANIFEST, Manifest

if TYPE_CHECKING:
    from sightline.engine.captioner import Captioner

log = logging.getLogger(__name__)
TOOLS = ("onnx", "onnxscript", "onnxruntime")
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class PageModel:
    """``folder`` holds the files, or will once ``make`` is done; without one, ``why`` says what is missing."""

    folder: Path | None = None
    source: Path | None = None  # the model it is to be made from; None: it is ready
    why: str = ""

    @property
    def is_ready(self) -> bool:
        return self.folder is not None and self.source is None

    async def make(self) -> bool:
        """Export in a process of its own, with a lower priority: half a minute's work, once for each model."""
        assert self.folder is not None
        command = ["export", str(self.source), "--output", str(self.folder), "--int8"]
        log.info("making the page's model, once; until then the page asks this server")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sightline", *command,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            preexec_fn=_yielding if os.name == "posix" else None,
        )  # fmt: skip
        try:
            _, told = await process.communicate()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise
        if process.returncode == 0 and _fits(self.folder, self.source):
            log.info("the page now captions in the browser")
            return True
        reason = told.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        log.warning("the page's model could not be made: %s", printable(reason[0]))
        return False


def find_page_model(captioner: Captioner) -> PageModel:
    """An exported int8 folder of these very weights: the model's own, or one in the cache, or what it would take."""
    if len(captioner.folders) != 1 or captioner.folders[0] is None:
        return PageModel(why="Several models together run on the server alone.")
    own = captioner.folders[0]
    if _fits(own, own) and Manifest.read(own).precision == "int8":
        return PageModel(own)
    if not (own / WEIGHTS).is_file():
        return PageModel(own)  # exported in floats, and nothing to make smaller files from
    kept = cache_folder() / "page" / _key(own)
    if _fits(kept, own):
        return PageModel(kept)
    if missing := [name for name in TOOLS if find_spec(name) is None]:
        named = ", ".join(missing)
        return PageModel(why=f"{named} missing on the server: pip install onnx onnxscript and start it again.")
    return PageModel(kept, own)


def _key(folder: Path) -> str:
    """Of the weights and all that goes with them into an export."""
    names = ("config.json", "tokenizer.json", "confidence.json")
    digest = hashlib.sha256(file_hash(folder / WEIGHTS).encode())
    for name in names:
        digest.update((folder / name).read_bytes() if (folder / name).is_file() else b"none")
    return digest.hexdigest()[:20]


def _fits(folder: Path, model: Path | None) -> bool:
    """Whether a folder holds a whole export of a model's weights."""
    if not (folder / MANIFEST).is_file():
        return False
    try:
        manifest = Manifest.read(folder)
        whole = all((folder / f"{name}.onnx").stat().st_size == graph.bytes for name, graph in manifest.graphs.items())
    except (CheckpointError, OSError):
        return False
    if model is None or not (model / WEIGHTS).is_file():
        return whole
    return whole and manifest.weights == file_hash(model / WEIGHTS)


def _yielding() -> None:
    os.nice(5)
