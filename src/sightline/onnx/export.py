"""From a model folder to one that onnxruntime runs: in Python without torch, and in the browser.

What is written is described in `docs/export.md`. The float graphs are compared with torch before anything is written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from sightline.errors import CheckpointError, ConfigError, require
from sightline.io.files import atomic_path, user_path, write_atomically
from sightline.io.model_files import read_json, weights_hash, write_shards
from sightline.nn.checkpoint import Checkpoint, load_checkpoint
from sightline.nn.encoders import Encoder
from sightline.nn.hub import resolve
from sightline.onnx.exported import (
    GRAPHS,
    INT8_ARITHMETIC,
    MANIFEST,
    Graph,
    Manifest,
    Session,
    open_session,
    search_options,
    tensors_of,
)
from sightline.onnx.external_data import SavedTensors, with_external_data
from sightline.onnx.graphs import encoder_graph, export_graphs, quietly
from sightline.onnx.quantize import int8_arithmetic as in_int8
from sightline.onnx.quantize import store_weights

TOLERANCE = 1e-4  # of a logit, or of the greatest one where that is above 1
SIDECARS = ("README.md", "recipe.toml", "confidence.json")  # copied with the graphs


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how far the float graphs are from torch."""

    folders: dict[Path, Manifest]
    difference: float  # the greatest of any logit


def export(
    model: str | Path,
    output: str | Path | None = None,
    *,
    int8: bool = False,
    int8_arithmetic: bool = False,
    shards: bool = False,
    web: str | Path | None = None,
    licence: str = "",
) -> ExportReport:
    """Write ``model`` (a folder or name) as ONNX graphs to ``output``, or to its own folder, sharing its weights.

    ``int8`` makes the weights two fifths as large. ``int8_arithmetic`` also multiplies the encoder's matrices in int8.
    ``shards`` replaces the folder's weights by compressed files below 50 MB each. ``web`` is a folder for the int8
    files of the page; without ``output`` only that is written.
    """
    require("onnx", "exporting")
    if shards and (output or int8 or web):
        raise ConfigError("shards divide a model folder's own weights: leave out --output, --int8 and --web")
    source = resolve(model)
    target = user_path(output) if output else source
    site = user_path(web) if web else None
    checkpoint = load_checkpoint(source)
    graphs = export_graphs(checkpoint.model)
    difference = compare(checkpoint, _files(graphs, False, None))
    if int8_arithmetic:
        with quietly():
            graphs["encoder"] = in_int8(graphs["encoder"])
    folders: dict[Path, tuple[str, dict[str, GraphFile]]] = {}
    if output or site is None:
        same = target.resolve() == source.resolve() and not int8
        precision = INT8_ARITHMETIC if int8_arithmetic else "int8" if int8 else "float32"
        folders[target] = precision, _files(graphs, int8, source if same else None)
    if site:
        folders[site] = INT8_ARITHMETIC if int8_arithmetic else "int8", _files(graphs, True, None)
    written = {folder: _write(folder, checkpoint, files, kind, licence) for folder, (kind, files) in folders.items()}
    if shards:
        write_shards(target)
    return ExportReport(written, difference)


def encoder_session(
    encoder: Encoder, precision: Literal["float32", "int8"] = "int8", threads: int = 0
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """A torch encoder run by onnxruntime: pixels (B, 3, S, S) in, grid (B, N, D) and pooled (B, D) out.

    "int8" multiplies matrices in int8, which makes a vision transformer more than twice as fast. ``threads`` is how
    many threads compute one call; 0 means one for each core.
    """
    require("onnx", "an encoder in onnxruntime")
    training, device = encoder.training, next(encoder.parameters()).device
    graph, _ = encoder_graph(encoder.eval().cpu())
    encoder.to(device).train(training)
    if precision == "int8":
        with quietly():
            graph = in_int8(graph)
    session = open_session(graph.SerializeToString(), f"the graph of {encoder.name}", threads=threads)

    def encode(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        grid, pooled = session.run(["grid", "pooled"], {"pixels": np.asarray(pixels, np.float32)})
        return grid, pooled

    return encode


@dataclass(frozen=True)
class GraphFile:
    """What one .onnx file will hold, and its external data."""

    data: bytes
    weights: dict[str, np.ndarray]

    def open(self) -> Session:
        return open_session(self.data, weights=self.weights)


def _files(graphs: dict[str, Any], int8: bool, folder: Path | None) -> dict[str, GraphFile]:
    """Graphs as they are written: with all weights in them, or large ones read from ``folder``'s model.safetensors."""
    if folder is None:
        return {name: GraphFile(store_weights(graph, int8).SerializeToString(), {}) for name, graph in graphs.items()}
    saved, files = SavedTensors(folder), {}
    for name, graph in graphs.items():
        rest, read = with_external_data(graph, saved)
        weights = {tensor: saved.tensors[tensor] for tensor in read}
        files[name] = GraphFile(store_weights(rest, int8=False).SerializeToString(), weights)
    return files


@torch.inference_mode()
def compare(checkpoint: Checkpoint, files: dict[str, GraphFile]) -> float:
    """The greatest difference of a logit to torch's, on noise, over five steps; too great a one is an error."""
    model = checkpoint.model
    encoder, start, step = (files[name].open() for name in GRAPHS)
    random, size, beams = np.random.default_rng(0), model.encoder.preprocess.size, 2
    pixels = random.standard_normal((3, 3, size, size), np.float32)
    rows = np.arange(len(pixels)).repeat(beams)
    torch_state = model.decoder.start(model.encoder(torch.from_numpy(pixels))).reorder(rows)
    features = dict(zip(("grid", "pooled"), encoder.run(["grid", "pooled"], {"pixels": pixels})))
    state = run(start, {value.name: features[value.name] for value in start.get_inputs()})
    state = {name: value[rows] if name.startswith("beam.") else value for name, value in state.items()}
    worst = 0.0
    for _ in range(min(5, model.decoder.max_length - 1)):
        tokens = random.integers(0, model.decoder.vocabulary, len(rows))
        logits, torch_state, _ = model.decoder.step(torch.from_numpy(tokens), torch_state)
        reference = logits.numpy()
        outputs = run(step, {"token": tokens, **state})
        state |= {name: outputs[f"next.{name.removeprefix('beam.')}"] for name in state if name.startswith("beam.")}
        difference = np.abs(outputs["logits"] - reference).max() / max(1.0, np.abs(reference).max())
        worst = max(worst, float(difference))
    if not worst <= TOLERANCE:
        raise CheckpointError(f"the exported graphs differ from torch by {worst:.1e}, more than {TOLERANCE:.0e}")
    return worst


def run(session: Session, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every output of a graph, by its name."""
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, inputs)))


def _write(folder: Path, checkpoint: Checkpoint, files: dict[str, GraphFile], precision: str, licence: str) -> Manifest:
    """The graphs, then the manifest that names them: without it, a folder counts as incomplete."""
    model, source = checkpoint.model, checkpoint.folder
    if source is None:
        raise ConfigError("only a model that was saved can be exported")
    manifest = Manifest(
        precision=precision,
        encoder=model.encoder.name,
        decoder=model.decoder.spec["name"],
        parameters=model.count()[0],
        weights=weights_hash(source),
        licence=licence or _licence(folder),
        preprocess=model.encoder.preprocess,
        grid=(model.encoder.height, model.encoder.width),
        tokenizer=checkpoint.tokenizer,
        decoding=search_options(checkpoint.decoding, checkpoint.tokenizer),
        graphs={name: _describe(file) for name, file in files.items()},
    )
    described = json.dumps(manifest.to_json(), ensure_ascii=False, indent=1) + "\n"
    with ExitStack() as renames:  # all is written before the first file of an earlier export is replaced
        for name, content in [
            (MANIFEST, described.encode()),
            *((f"{name}.onnx", one.data) for name, one in files.items()),
        ]:
            renames.enter_context(atomic_path(folder / name)).write_bytes(content)
        if source.resolve() != folder.resolve():
            for name in SIDECARS:
                if (source / name).is_file():
                    write_atomically(folder / name, (source / name).read_bytes())
            if not (source / "confidence.json").is_file():  # an earlier export's model may have been calibrated
                (folder / "confidence.json").unlink(missing_ok=True)
        (folder / MANIFEST).unlink(missing_ok=True)  # it comes back last: the stack renames in reverse order
    return manifest


def _licence(folder: Path) -> str:
    """The licence of an earlier export into the same folder."""
    return str(read_json(folder / MANIFEST).get("licence", "")) if (folder / MANIFEST).is_file() else ""


def _describe(file: GraphFile) -> Graph:
    session, digest = file.open(), hashlib.sha256(file.data).hexdigest()
    inputs, outputs = tensors_of(session.get_inputs()), tensors_of(session.get_outputs())
    return Graph(len(file.data), digest, inputs, outputs, tuple(file.weights))
