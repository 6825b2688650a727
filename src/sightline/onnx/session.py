"""A graph opened by onnxruntime, safely: it may name no code, and has no file read but those we give it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import CheckpointError, ConfigError
from sightline.onnx.manifest import MANIFEST, Tensors

TYPES = {"tensor(float)": "float32", "tensor(int64)": "int64"}
EXTERNAL = "weights."  # prefix of the names of external tensors in a graph


class Session:
    """An onnxruntime session together with the tensors it computes on, which must live as long."""

    def __init__(self, session: Any, weights: Mapping[str, Any]):
        self.run, self.get_inputs, self.get_outputs = session.run, session.get_inputs, session.get_outputs
        self.weights = weights


def open_session(
    data: bytes, path: str | Path = "the graph", weights: Mapping[str, Any] | None = None, threads: int = 0
) -> Session:
    """A graph ready to run; ``weights`` are its external data, as arrays or those of another session of it.

    The graph may name no code, and onnxruntime may read no file for it. Every external tensor of a graph has a
    "location". onnxruntime takes a tensor from us only where the graph has an external one of that name and shape; if
    there are as many of ours as there are locations, none is left to be read from a file.
    """
    try:
        import onnxruntime
    except ImportError:
        raise ConfigError("an exported model needs onnxruntime: pip install onnxruntime") from None
    weights = weights or {}
    if data.count(b"location") != len(weights):
        raise CheckpointError(f"{path} wants other files read than {MANIFEST} says: export the model again")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # faults are raised as exceptions
    options.intra_op_num_threads = threads or all_threads()
    # Three sessions have three sets of threads: those that wait in a loop take the cores from those that compute.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        values = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in weights.items()
        }
        options.add_external_initializers([EXTERNAL + name for name in values], list(values.values()))
        return Session(onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]), values)
    except Exception as error:  # onnxruntime has a dozen classes of exceptions
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
