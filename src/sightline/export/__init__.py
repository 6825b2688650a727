"""From a model folder to one that onnxruntime runs: in Python without torch, and in the browser.

What is written is described in `docs/export.md`. The float graphs are compared with torch before anything is written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sightline.captioner import resolve
from sightline.checkpoint import Checkpoint, load_checkpoint
from sightline.decoding import DecodingOptions
from sightline.decoding.torch_steps import TorchSteps
from sightline.errors import CheckpointError, ConfigError
from sightline.export.graphs import export_graphs
from sightline.export.weights import store_weights
from sightline.exported.manifest import MANIFEST, Graph, Manifest
from sightline.exported.runtime import OnnxDecoder, OnnxEncoder, open_session, tensors_of
from sightline.files import write_atomically
from sightline.model_files import file_hash

log = logging.getLogger(__name__)
TOLERANCE = 1e-4  # of a logit, or of the greatest one where that is above 1
BESIDE = ("README.md", "recipe.toml", "confidence.json")  # what else belongs to a model goes with it
SEARCH = ("beam", "length_penalty", "max_length", "min_length", "no_repeat_ngram", "allow_unknown")


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how far the float graphs are from torch."""

    folders: dict[Path, Manifest]
    difference: float  # the greatest of any logit


def export(
    model: str | Path, output: str | Path | None = None, *, int8: bool = False, web: bool = False, licence: str = ""
) -> ExportReport:
    """Write ``model`` (a folder or name) as ONNX graphs to ``output``, or beside its own weights.

    ``int8`` makes the weights a third as large; ``web`` also writes ``output/web``, the int8 files for the page.
    """
    if missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]:
        raise ConfigError(f"exporting needs {' and '.join(missing)}: pip install 'sightline[onnx]'")
    folder = resolve(model)
    target = Path(output).expanduser() if output else folder
    checkpoint = load_checkpoint(folder)
    graphs = export_graphs(checkpoint.model)
    difference = compare(checkpoint, graphs)
    wanted = {target: int8, **({target / "web": True} if web else {})}
    folders = {folder: _write(folder, checkpoint, graphs, small, licence) for folder, small in wanted.items()}
    return ExportReport(folders, difference)


@torch.no_grad()
def compare(checkpoint: Checkpoint, graphs: dict[str, Any]) -> float:
    """The greatest difference of a logit to torch's, on noise, five words along; too great a one is an error."""
    model = checkpoint.model
    sessions = {name: open_session(graph.SerializeToString()) for name, graph in graphs.items()}
    encoder = OnnxEncoder(sessions["encoder"], model.encoder.preprocess, (model.encoder.height, model.encoder.width))
    theirs, ours = TorchSteps(model.decoder), OnnxDecoder(sessions["start"], sessions["step"])
    random, size, beams = np.random.default_rng(0), model.encoder.preprocess.size, 2
    pixels = random.standard_normal((3, 3, size, size), np.float32)
    states = [theirs.start(model.encoder.look(pixels)), ours.start(encoder.look(pixels))]
    rows = np.arange(len(pixels)).repeat(beams)
    states = [state.reorder(rows) for state in states]
    worst = 0.0
    for _ in range(min(5, model.decoder.max_length - 1)):
        tokens = random.integers(0, model.decoder.vocabulary, len(rows))
        expected, states[0], _ = theirs.step(tokens, states[0])
        found, states[1], _ = ours.step(tokens, states[1])
        worst = max(worst, float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max())))
    if not worst <= TOLERANCE:
        raise CheckpointError(f"the exported graphs differ from torch by {worst:.1e}, more than {TOLERANCE:.0e}")
    return worst


def _write(folder: Path, checkpoint: Checkpoint, graphs: dict[str, Any], int8: bool, licence: str) -> Manifest:
    """The graphs, then the manifest that names them: a folder half written is seen as such."""
    model, source = checkpoint.model, checkpoint.folder
    if source is None:
        raise ConfigError("only a model that was saved can be exported")
    contents = {name: store_weights(graph, int8).SerializeToString() for name, graph in graphs.items()}
    options = DecodingOptions(**{"max_length": checkpoint.tokenizer.max_length, **checkpoint.decoding})
    manifest = Manifest(
        precision="int8" if int8 else "float32",
        encoder=model.encoder.name,
        decoder=model.decoder.spec["name"],
        parameters=model.count()[0],
        weights=file_hash(source / "model.safetensors"),
        licence=licence,
        preprocess=model.encoder.preprocess,
        grid=(model.encoder.height, model.encoder.width),
        tokenizer=checkpoint.tokenizer,
        decoding={name: getattr(options, name) for name in SEARCH},
        graphs={name: _describe(data) for name, data in contents.items()},
    )
    for name, data in contents.items():
        write_atomically(folder / f"{name}.onnx", data)
    for name in BESIDE:
        if (source / name).is_file() and source.resolve() != folder.resolve():
            shutil.copyfile(source / name, folder / name)
    write_atomically(folder / MANIFEST, json.dumps(manifest.to_json(), ensure_ascii=False, indent=1) + "\n")
    return manifest


def _describe(data: bytes) -> Graph:
    session = open_session(data)
    return Graph(
        len(data), hashlib.sha256(data).hexdigest(), tensors_of(session.get_inputs()), tensors_of(session.get_outputs())
    )
