"""What computes a model: the `Backend` protocol, and its implementation by onnxruntime, which needs no torch.

`TorchBackend` in ``torch_backend.py`` is the other one. `Captioner` works with either, or with several at once. The
exported graphs hold no beam: rows are reordered outside, by the one search in `sightline.decoding`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sightline.decoding.hypotheses import DecoderState, StepDecoder
from sightline.errors import CheckpointError
from sightline.io.images import Preprocess
from sightline.onnx.exported import INT8_ARITHMETIC, MANIFEST, Manifest, Session, all_threads, open_session, tensors_of
from sightline.tokenizers import Tokenizer
from sightline.types import ImageFeatures

BATCH = 4  # photos encoded at once: 16 take a tenth more time each and 110 MB more memory, for want of cache


class Backend(StepDecoder, Protocol):
    """One model in one runtime: ``encode`` gives features, ``start`` and ``step`` decode them."""

    runtime: str  # for people: "torch" or "onnxruntime, int8"
    device: str
    preprocess: Preprocess
    tokenizer: Tokenizer
    decoding: dict[str, Any]  # the model's decoding options, where they differ from the defaults
    folder: Path | None  # None for a model that was never saved
    dimension: int  # of the pooled vector
    parameters: int
    batch_size: int  # photos that ``encode`` computes at once; larger batches gain nothing

    def signature(self) -> str:
        """A short name for exactly these weights in this runtime; empty for a model that was never saved."""
        ...

    def encode(self, pixels: np.ndarray) -> ImageFeatures:
        """Features of (B, 3, S, S) normalised pixels."""
        ...

    def with_threads(self, threads: int) -> Backend | None:
        """The same model, computed by so many threads per call; None where the runtime divides the cores by itself."""
        ...


class OnnxDecoder(StepDecoder):
    """The graphs ``start`` and ``step`` as a search calls them. What a state holds, the names of their tensors say."""

    def __init__(self, start: Session, step: Session) -> None:
        self._start, self._step = start, step
        self._features = [value.name for value in start.get_inputs()]
        state = [value.name for value in start.get_outputs()]
        self._encoder_cache = [name for name in state if name.startswith("photo.")]
        self._hypotheses = [name for name in state if name.startswith("beam.")]
        self._outputs = [value.name for value in step.get_outputs()]

    def start(self, features: ImageFeatures) -> DecoderState:
        names = [*self._encoder_cache, *self._hypotheses]
        given = {name: getattr(features, name) for name in self._features}
        found = dict(zip(names, self._start.run(names, given)))
        return DecoderState(
            {name: found[name] for name in self._encoder_cache}, {name: found[name] for name in self._hypotheses}
        )

    def step(self, tokens: np.ndarray, state: DecoderState) -> tuple[np.ndarray, DecoderState, dict[str, np.ndarray]]:
        given = {"token": tokens, **state.encoder_cache, **state.hypotheses}
        found = dict(zip(self._outputs, self._step.run(self._outputs, given)))
        hypotheses = {name: found.pop(f"next.{name.removeprefix('beam.')}") for name in self._hypotheses}
        return found.pop("logits"), DecoderState(state.encoder_cache, hypotheses), found


class OnnxBackend(OnnxDecoder, Backend):
    """An exported folder, every file of it checked against its manifest; nothing in it is ever executed as code."""

    device = "cpu"

    def __init__(
        self,
        folder: str | Path,
        manifest: Manifest | None = None,
        threads: int = 0,
        weights: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """``threads`` is how many compute one call, 0 for one per core; ``weights`` are another backend's, shared."""
        self.folder: Path = Path(folder).expanduser()
        if not (self.folder / MANIFEST).is_file():
            raise CheckpointError(
                f"{str(self.folder)!r} holds no exported model: {MANIFEST} is missing; run `sightline export`"
            )
        self.manifest = manifest = manifest or Manifest.read(self.folder)
        self.runtime = f"onnxruntime, {manifest.precision}"
        self.preprocess, self.tokenizer, self.decoding = manifest.preprocess, manifest.tokenizer, manifest.decoding
        self.dimension = int(manifest.graphs["encoder"].outputs["pooled"][1][-1])
        self.parameters = manifest.parameters
        threads = threads or all_threads()
        # With one thread a batch gains nothing and takes memory. In int8 arithmetic activations are scaled by a batch's
        # greatest, and a photo's features must not depend on its neighbours.
        alone = threads == 1 or manifest.precision == INT8_ARITHMETIC
        self.batch_size = 1 if alone else BATCH
        self.sessions = self._open(weights or manifest.read_weights(self.folder), threads)
        super().__init__(self.sessions["start"], self.sessions["step"])

    def _open(self, weights: Mapping[str, Mapping[str, Any]], threads: int) -> dict[str, Session]:
        sessions = {}
        for name, data in self.manifest.read_graphs(self.folder).items():
            path, graph = self.folder / f"{name}.onnx", self.manifest.graphs[name]
            session = open_session(data, path, weights[name], threads)
            if (tensors_of(session.get_inputs()), tensors_of(session.get_outputs())) != (graph.inputs, graph.outputs):
                raise CheckpointError(
                    f"{path} takes or gives other tensors than {MANIFEST} says: export the model again"
                )
            sessions[name] = session
        return sessions

    def signature(self) -> str:
        """The weights it was exported from, and the precision."""
        return f"{self.manifest.weights[:12]}/onnx-{self.manifest.precision}"

    def encode(self, pixels: np.ndarray) -> ImageFeatures:
        parts = [pixels[start : start + self.batch_size] for start in range(0, len(pixels), self.batch_size)]
        outputs = [self.sessions["encoder"].run(["grid", "pooled"], {"pixels": part}) for part in parts]
        features: list[Any] = [np.concatenate(values) for values in zip(*outputs)]
        return ImageFeatures(features[0], features[1], *self.manifest.grid)

    def with_threads(self, threads: int) -> OnnxBackend:
        """The weights are not loaded again."""
        weights = {name: session.weights for name, session in self.sessions.items()}
        return OnnxBackend(self.folder, self.manifest, threads, weights)


def as_array(value: Any) -> np.ndarray:
    """A tensor of torch or an array, as an array of float32."""
    return value if isinstance(value, np.ndarray) else value.float().cpu().numpy()
