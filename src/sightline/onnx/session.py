"""Exported graphs run by onnxruntime, in the shape of a `CaptionModel`: an encoder, a decoder, and no torch.

The graphs hold no beam: rows are reordered outside, by the one search in `sightline.decoding`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sightline.decoding.steps import StepDecoder
from sightline.engine.confidence import Confidence
from sightline.errors import CheckpointError, ConfigError
from sightline.io.images import Preprocess
from sightline.io.model_files import read_json
from sightline.onnx.manifest import MANIFEST, Manifest, Tensors
from sightline.tokenizers import Tokenizer
from sightline.types import DecoderState, ImageFeatures

TYPES = {"tensor(float)": "float32", "tensor(int64)": "int64"}
AT_ONCE = 4  # photos: 16 take a tenth more time each and 110 MB more memory, for they fall out of the cache
ALONE = 1  # with a single thread, where four only take 80 MB more memory
OUTSIDE = "weights."  # before a tensor's name: the input of a graph that stands for it


class OnnxEncoder:
    """``look`` as every encoder has it; called like one, it takes torch's tensors too."""

    def __init__(self, session: Any, preprocess: Preprocess, grid: tuple[int, int], at_once: int = AT_ONCE):
        self.session, self.preprocess, self.grid, self.at_once = session, preprocess, grid, at_once

    def encode(self, pixels: np.ndarray) -> ImageFeatures:
        parts = [pixels[start : start + self.at_once] for start in range(0, len(pixels), self.at_once)]
        seen = [self.session.run(["grid", "pooled"], {"pixels": part}) for part in parts]
        whole: list[Any] = [np.concatenate(values) for values in zip(*seen)]
        return ImageFeatures(whole[0], whole[1], *self.grid)

    def __call__(self, pixels: Any) -> ImageFeatures:
        return self.encode(np.asarray(pixels))


class OnnxDecoder(StepDecoder):
    """``start`` and ``step`` as every decoder has them, on arrays. What a state holds, the graphs' names say."""

    def __init__(self, start: Any, step: Any):
        self.graphs = start, step
        self.features, state, self.outputs = (
            [value.name for value in values] for values in (start.get_inputs(), start.get_outputs(), step.get_outputs())
        )
        self.photo = [name for name in state if name.startswith("photo.")]
        self.beam = [name for name in state if name.startswith("beam.")]

    def start(self, features: ImageFeatures) -> DecoderState:
        given = {name: getattr(features, name) for name in self.features}
        found = dict(zip([*self.photo, *self.beam], self.graphs[0].run([*self.photo, *self.beam], given)))
        return DecoderState({name: found[name] for name in self.photo}, {name: found[name] for name in self.beam})

    def step(self, tokens: np.ndarray, state: DecoderState) -> tuple[np.ndarray, DecoderState, dict[str, np.ndarray]]:
        values = self.graphs[1].run(self.outputs, {"token": tokens, **state.photo, **state.beam})
        found = dict(zip(self.outputs, values))
        beam = {name: found.pop(f"next.{name.removeprefix('beam.')}") for name in self.beam}
        return found.pop("logits"), DecoderState(state.photo, beam), found


class OnnxModel:
    """An encoder and a decoder, as `CaptionModel` is."""

    def __init__(self, encoder: OnnxEncoder, decoder: OnnxDecoder, parameters: int):
        self.encoder, self.decoder, self.parameters = encoder, decoder, parameters

    def to(self, device: Any) -> OnnxModel:
        if str(device) != "cpu":
            raise ConfigError(f"device is {str(device)!r} but an exported model runs on the CPU; use runtime='torch'")
        return self

    def eval(self) -> OnnxModel:
        return self

    def count(self) -> tuple[int, int]:
        """All parameters, and those that are trained: none."""
        return self.parameters, 0


@dataclass(frozen=True)
class Exported:
    """What an exported folder holds, as `Checkpoint` is what a model folder holds."""

    model: OnnxModel
    tokenizer: Tokenizer
    decoding: dict[str, Any]
    folder: Path
    manifest: Manifest
    confidence: Confidence | None = None  # None: nobody calibrated these weights

    @property
    def runtime(self) -> str:
        return f"onnxruntime, {self.manifest.precision}"

    def signature(self) -> str:
        """The weights it was exported from, and into what."""
        return f"{self.manifest.weights[:12]}/onnx-{self.manifest.precision}"

    def with_threads(self, threads: int) -> Exported:
        """The same, computed by so many threads; the weights are not loaded again."""
        start, step = self.model.decoder.graphs
        sessions = {"encoder": self.model.encoder.session, "start": start, "step": step}
        weights = {name: session.weights for name, session in sessions.items()}
        return replace(self, model=_open_model(self.folder, self.manifest, weights, threads))


def load_exported(folder: str | Path, manifest: Manifest | None = None) -> Exported:
    """An exported folder, every file of it checked against its manifest; nothing in it is ever executed as code."""
    folder = Path(folder).expanduser()
    if not (folder / MANIFEST).is_file():
        raise CheckpointError(f"{str(folder)!r} holds no exported model: {MANIFEST} is missing; run `sightline export`")
    manifest = manifest or Manifest.read(folder)
    model = _open_model(folder, manifest, manifest.read_weights(folder), all_threads())
    path, dimension = folder / "confidence.json", manifest.graphs["encoder"].outputs["pooled"][1][-1]
    confidence = Confidence.from_json(read_json(path), int(dimension)) if path.is_file() else None
    return Exported(model, manifest.tokenizer, manifest.decoding, folder, manifest, confidence)


def _open_model(folder: Path, manifest: Manifest, weights: Mapping[str, Mapping[str, Any]], threads: int) -> OnnxModel:
    sessions = {}
    for name, graph in manifest.graphs.items():
        path = folder / f"{name}.onnx"
        session = open_session(manifest.read_graph(folder, name), path, weights[name], threads)
        if (tensors_of(session.get_inputs()), tensors_of(session.get_outputs())) != (graph.inputs, graph.outputs):
            raise CheckpointError(f"{path} takes or gives other tensors than {MANIFEST} says: export the model again")
        sessions[name] = session
    at_once = AT_ONCE if threads > 1 else ALONE
    encoder = OnnxEncoder(sessions["encoder"], manifest.preprocess, manifest.grid, at_once)
    return OnnxModel(encoder, OnnxDecoder(sessions["start"], sessions["step"]), manifest.parameters)


class Session:
    """An onnxruntime session together with the tensors it computes on, which must live as long."""

    def __init__(self, session: Any, weights: Mapping[str, Any]):
        self.run, self.get_inputs, self.get_outputs = session.run, session.get_inputs, session.get_outputs
        self.weights = weights


def open_session(
    data: bytes, path: str | Path = "the graph", weights: Mapping[str, Any] | None = None, threads: int = 0
) -> Session:
    """A graph ready to run; ``weights`` are the tensors it has outside, as arrays or those of another session of it.

    It may name no code, and have no file read. Whatever a graph wants from a file says "location". onnxruntime takes a
    tensor from us only where the graph has one of that name and shape outside; if there are as many as there are
    locations, none is left to be read by it.
    """
    try:
        import onnxruntime
    except ImportError:
        raise ConfigError("an exported model needs onnxruntime: pip install onnxruntime") from None
    weights = weights or {}
    if data.count(b"location") != len(weights):
        raise CheckpointError(f"{path} wants other files read than {MANIFEST} says: export the model again")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what matters comes as an exception
    options.intra_op_num_threads = threads or all_threads()
    # Three sessions have three sets of threads: those that wait in a loop take the cores from those that compute.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        values = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in weights.items()
        }
        options.add_external_initializers([OUTSIDE + name for name in values], list(values.values()))
        return Session(onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]), values)
    except Exception as error:  # onnxruntime has a dozen of its own
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path} is not a graph that onnxruntime can run: {reason}") from None


def all_threads() -> int:
    """How many compute at once: one for each core, unless OMP_NUM_THREADS says otherwise."""
    return int(os.environ.get("OMP_NUM_THREADS") or 0) or cores()


def cores() -> int:
    """How many this process may use, which in a container may be fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def tensors_of(values: Any) -> Tensors:
    """What a session takes or gives."""
    return {value.name: (TYPES.get(value.type, value.type), tuple(value.shape)) for value in values}
