"""An exported model: ``sightline.json``, the files it names, and its graphs opened by onnxruntime.

`docs/export.md` says what every field means; the page in the browser reads the same file. Graphs are opened safely:
they may name no code, and onnxruntime reads no file but those we give it.
"""

from __future__ import annotations

import hashlib
import os
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sightline.decoding.options import DecodingOptions, check_decoding
from sightline.errors import CheckpointError, ConfigError
from sightline.io.model_files import WEIGHTS, file_hash, read_arrays, read_json, shards
from sightline.io.preprocess import Preprocess
from sightline.tokenizers import Tokenizer, tokenizer_from_json
from sightline.tokenizers.content_words import word_groups

MANIFEST = "sightline.json"
FORMAT = "sightline-onnx-1"
GRAPHS = ("encoder", "start", "step")
SEARCH = ("beam", "length_penalty", "max_length", "min_length", "no_repeat_ngram", "no_repeat_words", "allow_unknown")
INT8_ARITHMETIC = "int8-arithmetic"
PRECISIONS = ("float32", "int8", INT8_ARITHMETIC)  # "int8" weights are computed with in float32
MOST_THREADS = 1024  # of a session, whatever OMP_NUM_THREADS says: onnxruntime starts them all
LARGEST_GRAPH = 2**31 - 1  # what the format allows a file without external data
KEYS = {
    "format", "precision", "encoder", "decoder", "parameters", "weights", "licence", "preprocess", "grid", "tokenizer",
    "decoding", "graphs",
}  # fmt: skip
WORD_GROUPS = "word_groups"  # for programs without ours: written where the model's decoding needs them

# onnxruntime 1.31 sends usage data to its maker and writes an identifier into the home folder, unless one of these is
# set before it is imported; its versions read different names. Whoever sets them to 0 gets that back.
for _name in ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED"):
    os.environ.setdefault(_name, "1")

Tensors = dict[str, tuple[str, tuple[int | str, ...]]]  # name: element type and shape, a name for each free dimension
TYPES = {"tensor(float)": "float32", "tensor(int64)": "int64"}
EXTERNAL = "weights."  # prefix of the names of external tensors in a graph
PRODUCT_OF_4 = b64decode(  # the graph y = MatMulInteger(a, b) of (1, 4) unsigned and (4, 1) signed bytes
    "CAo6XAoYCgFhCgFiEgF5Ig1NYXRNdWxJbnRlZ2VyEgFnWhMKAWESDgoMCAISCAoCCAEKAggEWhMKAWISDgoMCAMSCAoCCAQKAggBYhMKAXkSDgoM"
    "CAYSCAoCCAEKAggBQgQKABAS"
)


@dataclass(frozen=True)
class Graph:
    """One .onnx file: how large, which bytes, and what goes in and comes out."""

    bytes: int
    sha256: str
    inputs: Tensors
    outputs: Tensors
    external_data: tuple[str, ...] = ()  # tensors that it reads from the folder's model.safetensors

    def to_json(self) -> dict[str, Any]:
        external_data = {"external_data": list(self.external_data)} if self.external_data else {}
        return {
            "bytes": self.bytes,
            "sha256": self.sha256,
            "inputs": {name: [kind, list(shape)] for name, (kind, shape) in self.inputs.items()},
            "outputs": {name: [kind, list(shape)] for name, (kind, shape) in self.outputs.items()},
            **external_data,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Graph:
        def tensors(given: Mapping[str, Any]) -> Tensors:
            return {str(name): (str(kind), tuple(shape)) for name, (kind, shape) in given.items()}

        size, digest = values["bytes"], values["sha256"]
        if type(size) is not int or not 0 < size <= LARGEST_GRAPH or not isinstance(digest, str):
            raise ValueError(f"bytes is {size!r} and sha256 {digest!r}")
        external_data = values.get("external_data", [])
        if not isinstance(external_data, list) or any(type(name) is not str for name in external_data):
            raise ValueError(f"external_data is {str(external_data)[:40]!r}")
        return cls(size, digest, tensors(values["inputs"]), tensors(values["outputs"]), tuple(external_data))


@dataclass(frozen=True)
class Manifest:
    """What ``sightline.json`` says, checked."""

    precision: str
    encoder: str  # names, for people
    decoder: str
    parameters: int
    weights: str  # SHA-256 of the model.safetensors it was exported from
    licence: str
    preprocess: Preprocess
    grid: tuple[int, int]  # rows and columns of the cells in ``grid`` and ``attention``
    tokenizer: Tokenizer
    decoding: dict[str, Any]
    graphs: dict[str, Graph]

    @property
    def shares_weights(self) -> bool:
        """Whether the graphs read the weights' file beside them."""
        return any(graph.external_data for graph in self.graphs.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "precision": self.precision,
            "encoder": self.encoder,
            "decoder": self.decoder,
            "parameters": self.parameters,
            "weights": self.weights,
            "licence": self.licence,
            "preprocess": self.preprocess.to_json(),
            "grid": list(self.grid),
            "decoding": self.decoding,
            "graphs": {name: graph.to_json() for name, graph in self.graphs.items()},
            "tokenizer": self.tokenizer.to_json(),
            **{key: word_groups(self.tokenizer) for key in _word_groups_key(self.decoding)},
        }

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """`CheckpointError` says in one line what is wrong with the file."""
        path = folder / MANIFEST
        values = read_json(path)
        if values.get("format") != FORMAT:
            raise CheckpointError(
                f"{path}: format is {values.get('format')!r}, this version reads {FORMAT!r}; export the model again"
            )
        missing = (KEYS | _word_groups_key(values.get("decoding"))) - set(values)
        if wrong := sorted(missing | (set(values) - KEYS - {WORD_GROUPS})):
            problem = "is missing" if wrong[0] in missing else "is unknown"
            raise CheckpointError(f"{path}: {wrong[0]!r} {problem}; copy the file or export the model again")
        try:
            manifest = cls(
                **{key: values[key] for key in ("precision", "encoder", "decoder", "weights", "licence", "decoding")},
                parameters=int(values["parameters"]),
                grid=_grid(values["grid"]),
                graphs={name: Graph.from_json(values["graphs"][name]) for name in GRAPHS},
                preprocess=Preprocess.from_json(values["preprocess"]),
                tokenizer=tokenizer_from_json(values["tokenizer"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            text = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise CheckpointError(f"{path} does not describe an exported model: {text}; export it again") from None
        if manifest.precision not in PRECISIONS:
            raise CheckpointError(f"{path}: precision is {manifest.precision!r}, known are {', '.join(PRECISIONS)}")
        if fault := manifest._misfit():
            raise CheckpointError(f"{path} does not describe an exported model: {fault}; export it again")
        check_decoding(manifest.decoding, manifest.tokenizer, path)
        return manifest

    def _misfit(self) -> str:
        """Why the three graphs cannot work together, or nothing."""
        encoder, start, step = (self.graphs[name] for name in GRAPHS)
        state = {name for name in start.outputs if name.startswith(("photo.", "beam."))}
        following = {f"next.{name.removeprefix('beam.')}" for name in state if name.startswith("beam.")}
        for graph, fine, wanted in (
            ("encoder", set(encoder.inputs) == {"pixels"} and {"grid", "pooled"} <= set(encoder.outputs), "pixels"),
            ("start", set(start.inputs) <= {"grid", "pooled"} and following, "grid and pooled, and a state"),
            ("step", set(step.inputs) == {"token", *state}, "token and the state that start gives"),
            ("step", {"logits", *following} <= set(step.outputs), "logits and the next state"),
        ):
            if not fine:
                return f"the {graph} graph should take or give {wanted}"
        rows, columns = self.grid
        for what, given, found in (
            ("preprocess.size", [self.preprocess.size] * 2, list(encoder.inputs["pixels"][1][2:])),
            (f"grid is {rows} × {columns}, and its product", [rows * columns], list(encoder.outputs["grid"][1][1:2])),
        ):
            if given != found:
                return f"{what} is {given[0]}, the encoder graph has {found}"
        if step.outputs["logits"][1][-1] != self.tokenizer.size:
            return f"logits are {list(step.outputs['logits'][1])}, the tokenizer has {self.tokenizer.size} tokens"
        return ""

    def differs(self, folder: Path) -> str:
        """Which file of a model folder is not the one that was exported, if any: weights, tokenizer or options."""
        search = read_json(folder / "config.json").get("decoding", {})
        try:
            if search_options(search, self.tokenizer) != search_options(self.decoding, self.tokenizer):
                return "config.json"
        except (TypeError, ConfigError):  # loading with torch reports what is wrong there
            return "config.json"
        if read_json(folder / "tokenizer.json") != self.tokenizer.to_json():
            return "tokenizer.json"
        if shards(folder):  # only an export writes them, and `read_weights` checks their hash
            return ""
        return "" if file_hash(folder / WEIGHTS) == self.weights else WEIGHTS

    def read_weights(self, folder: Path) -> dict[str, dict[str, np.ndarray]]:
        """The external data of each graph, from the very file that was exported."""
        if not self.shares_weights:
            return {name: {} for name in self.graphs}
        path = folder / WEIGHTS
        arrays = read_arrays(folder, self.weights)
        if arrays is None:
            raise CheckpointError(
                f"{path} is not the file these graphs were made from: copy it again or run `sightline export` again"
            )
        try:
            return {
                name: {tensor: arrays[tensor] for tensor in graph.external_data} for name, graph in self.graphs.items()
            }
        except KeyError as error:
            raise CheckpointError(f"{path} has no tensor {error.args[0]!r}: run `sightline export` again") from None

    def read_graphs(self, folder: Path) -> dict[str, bytes]:
        """The graphs' files, if they are the very ones that were exported."""
        return {name: self._read_graph(folder, name) for name in self.graphs}

    def _read_graph(self, folder: Path, name: str) -> bytes:
        path, expected = folder / f"{name}.onnx", self.graphs[name]
        try:
            size = path.stat().st_size
            if size != expected.bytes:
                raise CheckpointError(f"{path} has {size:,} bytes, expected {expected.bytes:,}; copy the file again")
            data = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}; copy the file again") from None
        if hashlib.sha256(data).hexdigest() != expected.sha256:
            raise CheckpointError(f"{path} is not the file that {MANIFEST} names: copy it or export the model again")
        return data


def search_options(options: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """A model's decoding options with the defaults filled in, as a program without ours needs them."""
    chosen = DecodingOptions(**{"max_length": tokenizer.max_length, **options})
    return {name: getattr(chosen, name) for name in SEARCH}


def _word_groups_key(decoding: Any) -> set[str]:
    """Their key where these decoding options need them."""
    return {WORD_GROUPS} if isinstance(decoding, dict) and decoding.get("no_repeat_words") is True else set()


def _grid(value: Any) -> tuple[int, int]:
    height, width = value
    if type(height) is not int or type(width) is not int or min(height, width) < 1:
        raise ValueError(f"grid is {value!r}")
    return height, width


class Session:
    """An onnxruntime session together with the tensors it computes on, which must live as long."""

    def __init__(self, session: Any, weights: Mapping[str, Any]):
        self.run, self.get_inputs, self.get_outputs = session.run, session.get_inputs, session.get_outputs
        self.weights = weights


def open_session(
    data: bytes, path: str | Path = "the graph", weights: Mapping[str, Any] | None = None, threads: int = 0
) -> Session:
    """A graph ready to run; ``weights`` are its external data, as arrays or those of another session of it.

    The graph may name no code and hold no loop, and onnxruntime may read no file for it. Every external tensor of a
    graph has a "location". onnxruntime takes a tensor from us only where the graph has an external one of that name
    and shape; if there are as many of ours as there are locations, none is left to be read from a file.
    """
    try:
        import onnxruntime
    except ImportError:
        raise ConfigError("an exported model needs onnxruntime: pip install onnxruntime") from None
    weights = weights or {}
    if data.count(b"location") != len(weights):
        raise CheckpointError(f"{path} wants other files read than {MANIFEST} says: export the model again")
    check_no_loops(data, path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # faults are raised as exceptions
    options.intra_op_num_threads = threads or all_threads()
    # Three sessions have three sets of threads: those that wait in a loop take the cores from those that compute.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.load_model_format", "ONNX")
    if not exact_int8_products():  # unsigned weights are exact everywhere, and take almost twice the time
        options.add_session_config_entry("session.x64quantprecision", "1")
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


@cache
def exact_int8_products() -> bool:
    """Whether this CPU adds int8 products exactly: with AVX2 but without VNNI instructions it saturates at 16 bits."""
    import onnxruntime

    session = onnxruntime.InferenceSession(PRODUCT_OF_4, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"a": np.full((1, 4), 255, np.uint8), "b": np.full((4, 1), 127, np.int8)})
    return bool(found[0, 0] == 4 * 255 * 127)


def check_no_loops(data: bytes, path: str | Path) -> None:
    """`CheckpointError` for what our exports never hold: nodes with graphs of their own, and functions.

    A loop may run for ever, and functions that call each other twice unfold to any size, both while a file is opened.
    """
    try:
        for field, value in _protobuf(memoryview(data)):
            if field == MODEL_FUNCTIONS:
                raise CheckpointError(f"{path} holds functions, as no export does: export the model again")
            for node in _protobuf_values(value, GRAPH_NODE) if field == MODEL_GRAPH else ():
                for attribute in _protobuf_values(node, NODE_ATTRIBUTE):
                    if any(field in ATTRIBUTE_GRAPHS for field, _ in _protobuf(attribute)):
                        raise CheckpointError(f"{path} holds loops or branches, as no export does: export it again")
    except (IndexError, ValueError):
        raise CheckpointError(f"{path} is not a graph that onnxruntime can run: it is damaged") from None


# Numbers of the fields in ONNX's protobuf messages; onnxruntime has no reader for them, and onnx is not installed.
MODEL_GRAPH, MODEL_FUNCTIONS, GRAPH_NODE, NODE_ATTRIBUTE, ATTRIBUTE_GRAPHS = 7, 25, 1, 5, (6, 11)


def _protobuf_values(message: memoryview, wanted: int) -> Iterator[memoryview]:
    return (value for field, value in _protobuf(message) if field == wanted)


def _protobuf(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The number and the bytes of each field of a message that is a string or a message itself; nothing is copied."""
    position = 0

    def number() -> int:
        nonlocal position
        value = 0
        for shift in range(0, 70, 7):
            byte = message[position]
            position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number of more than ten bytes")

    while position < len(message):
        field, kind = divmod(number(), 8)
        if kind == 0:
            number()
        elif kind in (1, 5):  # 8 or 4 bytes
            position += 8 if kind == 1 else 4
        elif kind == 2:
            size = number()
            if size > len(message) - position:
                raise ValueError("a field is cut off")
            yield field, message[position : position + size]
            position += size
        else:
            raise ValueError(f"fields of kind {kind}")


def all_threads() -> int:
    """How many compute at once: one for each core, unless OMP_NUM_THREADS says otherwise.

    OpenMP allows a list there, one number for each level of nested parallelism, and ignores what is no number.
    """
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    wanted = int(first[:9]) if first.isdecimal() else 0
    return min(wanted, MOST_THREADS) or cores()


def cores() -> int:
    """How many this process may use, which in a container may be fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def tensors_of(values: Any) -> Tensors:
    """What a session takes or gives."""
    return {value.name: (TYPES.get(value.type, value.type), tuple(value.shape)) for value in values}
