"""What computes a model: the `Backend` protocol, and its implementation by onnxruntime, which needs no torch.

`TorchBackend` in ``torch_backend.py`` is the other one. `Captioner` works with either, or with several at once. The
exported graphs hold no beam: rows are reordered outside, by the one search in `sightline.decoding`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sightline.decoding.hypotheses import DecoderState, StepDecoder
from sightline.errors import CheckpointError, SightlineError
from sightline.io.files import cache_folder, printable, user_path, write_atomically
from sightline.io.model_files import file_hash
from sightline.io.preprocess import Preprocess
from sightline.nn.hub import CLONE, SHIPPED
from sightline.onnx.exported import INT8_ARITHMETIC, MANIFEST, Manifest, Session, all_threads, open_session, tensors_of
from sightline.tokenizers import Tokenizer
from sightline.types import ImageFeatures

BATCH = 4  # photos encoded at once: 16 take a tenth more time each and 110 MB more memory, for want of cache
TRIAL_SECONDS = 30  # of processor time, to open a folder from elsewhere
TRIAL_BYTES = 4 * 2**30  # of memory for that, beside eight times the folder's size


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
        tried: bool = False,
    ) -> None:
        """``threads`` is how many compute one call, 0 for one per core; ``weights`` are another backend's, shared.

        ``tried``: the graphs are opened here at once, without `try_graphs`.
        """
        self.folder: Path = user_path(folder)
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
        self.sessions = self._open(weights or manifest.read_weights(self.folder), threads, bool(weights) or tried)
        super().__init__(self.sessions["start"], self.sessions["step"])

    def _open(self, weights: Mapping[str, Mapping[str, Any]], threads: int, tried: bool) -> dict[str, Session]:
        sessions = {}
        graphs = self.manifest.read_graphs(self.folder)
        if not tried:
            try_graphs(self.folder)
        for name, data in graphs.items():
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


# -- folders from elsewhere -------------------------------------------------------------------------------------------


def try_graphs(folder: Path) -> None:
    """Open a folder that is new here in a process of its own, which may take only so much time and memory.

    Opening a graph computes what follows from its constants. A file of 500 bytes may ask for hours of that, or for more
    memory than there is. A folder that has passed is not tried again: see `note_tried`.
    """
    if folder.resolve().parent in (SHIPPED, CLONE) or _note(folder).exists():
        return
    source = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # each reserves memory
    too_much = f"{printable(folder)} takes more than {TRIAL_SECONDS} s or too much memory to open: export it again"
    code = "from sightline.engine.backend import run_trial; run_trial()"
    command = [sys.executable, "-P", "-c", code, str(folder), str(TRIAL_SECONDS)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths, **one_thread}, timeout=20 * TRIAL_SECONDS,
        )  # fmt: skip
    except OSError:  # no process can be started here
        return
    except subprocess.TimeoutExpired:
        raise CheckpointError(too_much) from None
    if done.returncode:
        message = done.stdout.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise CheckpointError(message[0] if message else too_much)
    note_tried(folder)


def note_tried(folder: Path) -> None:
    """Note that a folder opens: by the hash of its manifest, which holds the hashes of its graphs and weights."""
    with suppress(SightlineError):  # then it is tried again
        write_atomically(_note(folder), "")


def _note(folder: Path) -> Path:
    return cache_folder() / "opened" / file_hash(folder / MANIFEST)


def run_trial() -> None:
    """In the process of its own: open the folder and run each graph once. What goes wrong is printed."""
    folder, seconds = Path(sys.argv[1]), int(sys.argv[2])
    if os.name == "posix":
        import resource

        size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (TRIAL_BYTES + 8 * size, TRIAL_BYTES + 8 * size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        backend = OnnxBackend(folder, threads=1, tried=True)
        features = backend.encode(np.zeros((1, 3, backend.preprocess.size, backend.preprocess.size), np.float32))
        backend.step(np.zeros(1, np.int64), backend.start(features))
    except SightlineError as error:
        print(error)
        sys.exit(1)
    except Exception as error:  # onnxruntime has a dozen classes of exceptions
        reason = " ".join(str(error).split())[:200]
        print(f"{printable(folder)} cannot be run by onnxruntime: {reason or type(error).__name__}")
        sys.exit(1)


def as_array(value: Any) -> np.ndarray:
    """A tensor of torch or an array, as an array of float32."""
    return value if isinstance(value, np.ndarray) else value.float().cpu().numpy()
