"""The page that captions in the browser: the build of ``web/``, a copy of it for any web server, and its model.

Nothing here needs the server's packages: ``sightline export --web`` works without them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.errors import CheckpointError, ConfigError, install_command, missing_packages
from sightline.io.files import cache_folder, make_folder, printable, writing
from sightline.io.model_files import WEIGHTS, file_hash, shards, weights_size
from sightline.onnx.exported import GRAPHS, MANIFEST, Manifest

if TYPE_CHECKING:
    from sightline.engine.captioner import Captioner

log = logging.getLogger(__name__)
PAGE = Path(__file__).parent / "page"
BUILD_INFO = "build.json"  # a hash of the sources; only our page has this file
BUILD_COMMAND = "cd web && npm ci && npm run build"
EXPORT = "import sightline.serve.browser as b; b.run_for_server(); from sightline.__main__ import main; main()"
MODEL_FILES = (MANIFEST, "confidence.json", *(f"{name}.onnx" for name in GRAPHS), WEIGHTS)  # what the page reads


# -- the page ---------------------------------------------------------------------------------------------------------


def is_built(page: Path = PAGE) -> bool:
    return (page / "index.html").is_file()


def copy_page(folder: Path, page: Path = PAGE) -> None:
    """Copy the page into ``folder``, replacing an older copy of it; its model belongs into ``folder/model``."""
    if not is_built(page):
        raise ConfigError(f"the page is not built here: in a clone of the repository, {BUILD_COMMAND}")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--web {printable(folder)} is a file: name a new folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / BUILD_INFO).is_file():
        raise ConfigError(f"--web {printable(folder)} holds other files: name a new folder")
    with writing(folder):
        shutil.rmtree(folder / "assets", ignore_errors=True)  # names change with every build
        shutil.copytree(page, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("model"))


# -- its model --------------------------------------------------------------------------------------------------------


def has_small_graphs(model: Path) -> bool:
    """Whether a model's folder holds graphs with int8 weights: the page runs them as they are.

    Graphs that share the weights of a model in float32 have none, even where they compute in int8.
    """
    if not _is_export_of(model, model):
        return False
    manifest = Manifest.read(model)
    small = not manifest.shares_weights or weights_size(model) < 2 * manifest.parameters
    return manifest.precision != "float32" and small


def copy_model(folder: Path, model: Path) -> Manifest:
    """Copy a model's graphs and their weights into ``folder``."""
    manifest = Manifest.read(model)
    with writing(folder):
        make_folder(folder)
        for name in (*MODEL_FILES, "README.md"):
            if (model / name).is_file() and (name != WEIGHTS or manifest.shares_weights):
                shutil.copyfile(model / name, folder / name)
        if not (model / "confidence.json").is_file():  # an earlier model may have been calibrated, this one is not
            (folder / "confidence.json").unlink(missing_ok=True)
    return manifest


@dataclass(frozen=True)
class BrowserModel:
    """The exported model that the page runs: ready in ``folder``, still to be exported from ``source``, or neither."""

    folder: Path | None = None
    source: Path | None = None  # the model folder to export; None where ``folder`` is ready
    reason: str = ""  # why there is none

    @property
    def is_ready(self) -> bool:
        return self.folder is not None and self.source is None

    async def export(self) -> bool:
        """Export in a process of its own with a lower priority: half a minute's work, once for each model."""
        assert self.folder is not None
        log.info("exporting the model for the browser, once; until then the server captions the page's photos")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-c", EXPORT, "export", str(self.source), "--output", str(self.folder), "--int8",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stderr is not None
        try:  # not communicate(), which would close the pipe that tells the process to go on
            errors = await process.stderr.read()
            await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise
        if process.returncode == 0 and _is_export_of(self.folder, self.source):
            log.info("the page now captions in the browser")
            return True
        reason = errors.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        log.warning("the model for the browser could not be exported: %s", printable(reason[0]))
        return False


def find_browser_model(captioner: Captioner) -> BrowserModel:
    """The model that the page runs: the captioner's own graphs, an int8 export in the cache, or one still to be made.

    Graphs in float32 are used where they cannot be made smaller.
    """
    if len(captioner.folders) != 1 or captioner.folders[0] is None:
        return BrowserModel(reason="Several models together run on the server alone.")
    folder = captioner.folders[0]
    if shards(folder):
        return BrowserModel(
            reason="This model's weights are in shards, which the page cannot read: it runs on the server alone."
        )
    if has_small_graphs(folder) or not (folder / WEIGHTS).is_file():
        return BrowserModel(folder)
    cached = cache_folder() / "page" / _cache_key(folder)
    if _is_export_of(cached, folder):
        return BrowserModel(cached)
    missing = ", ".join(missing_packages("onnx"))
    if missing and _is_export_of(folder, folder):
        return BrowserModel(folder)
    if missing:
        return BrowserModel(reason=f"The server lacks {missing}: {install_command('onnx')}, and start it again.")
    return BrowserModel(cached, folder)


def _cache_key(folder: Path) -> str:
    """A hash of the weights and everything else that goes into an export."""
    digest = hashlib.sha256(file_hash(folder / WEIGHTS).encode())
    for name in ("config.json", "tokenizer.json", "confidence.json"):
        digest.update((folder / name).read_bytes() if (folder / name).is_file() else b"none")
    return digest.hexdigest()[:20]


def _is_export_of(folder: Path, model: Path | None) -> bool:
    """Whether a folder holds a complete export of a model's weights."""
    if not (folder / MANIFEST).is_file():
        return False
    try:
        manifest = Manifest.read(folder)
        sizes = [(folder / f"{name}.onnx").stat().st_size == graph.bytes for name, graph in manifest.graphs.items()]
        hashes = {
            file_hash(parent / WEIGHTS)
            for parent in (folder, model)
            if parent is not None and (parent / WEIGHTS).is_file()
        }
    except (CheckpointError, OSError):
        return False
    return all(sizes) and hashes <= {manifest.weights} and (not manifest.shares_weights or (folder / WEIGHTS).is_file())


def run_for_server() -> None:
    """In the process that exports: a lower priority, and an end when the server's end of standard input closes.

    It closes however the server ends, even by a kill.
    """
    if os.name == "posix":
        os.nice(5)

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
