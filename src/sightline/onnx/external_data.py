"""Graphs that read their large tensors from the model.safetensors in the same folder, as ONNX external data.

ONNX describes external data by a file name, an offset and a length, and a safetensors file is a header followed by raw
numbers. So graphs and torch share one file, any program that reads ONNX finds the weights, and the default model's
graphs take 0.7 MB instead of 28 MB; loading takes the same time. The exporter changes some tensors: it transposes them,
multiplies a norm's scale into them, or converts them to float32; weights stored in int8 are multiplied by their scales,
unless they are multiplied as int8. Each such change becomes a node with constant inputs, which every runtime computes
once, when it loads the graph.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sightline.io.model_files import SCALE, WEIGHTS, TensorSlice, read_weights, tensor_slices
from sightline.onnx.exported import EXTERNAL

SMALL = 2**10  # a tensor with fewer numbers stays in the graph
KINDS = {"F16": "FLOAT16", "F32": "FLOAT", "I8": "INT8"}  # safetensors' names, ONNX's
TOLERANCE = 1e-6  # relative: the rounding error of dividing by a scale and multiplying by it again


@dataclass(frozen=True)
class Origin:
    """The saved tensor that a constant of a graph was made from, and how."""

    tensor: str
    transposed: bool = False
    scale: np.ndarray | None = None  # of each output channel, where a batch norm was multiplied in or int8 is stored


class SavedTensors:
    """A model's large tensors, found by a hash of their numbers: the exporter renames what it changes."""

    def __init__(self, folder: Path):
        data = read_weights(folder)
        whole = tensor_slices(folder, data)
        self.slices = {
            name: part for name, part in whole.items() if part.kind in KINDS and math.prod(part.shape) >= SMALL
        }
        self.tensors = {name: part.array(data) for name, part in self.slices.items()}
        self.known: dict[tuple[Any, ...], Origin] = {}
        for name, values in self.tensors.items():
            if values.ndim == 2:
                self.known[_key(values.T)] = Origin(name, transposed=True)
            if values.dtype == np.int8 and name + SCALE in whole:
                scale = whole[name + SCALE].array(data)
                floats = values.astype(np.float32) * scale
                self.known[_key(floats.T)] = Origin(name, transposed=True, scale=scale)
                self.known[_key(floats)] = Origin(name, scale=scale)
        self.known |= {_key(values): Origin(name) for name, values in self.tensors.items()}

    def find(self, name: str, values: np.ndarray) -> Origin | None:
        """The tensor a constant was made from. A scaled one has other numbers, but has kept its name."""
        if origin := self.known.get(_key(values)):
            return origin
        saved = self.tensors.get(name)
        if saved is None or saved.shape != values.shape or saved.ndim < 3:
            return None
        old, new = (tensor.reshape(len(tensor), -1).astype(np.float64) for tensor in (saved, values))
        power = (old * old).sum(1)
        scale = ((old * new).sum(1) / np.where(power > 0, power, 1)).astype(np.float32)
        scale = scale.reshape(-1, *[1] * (saved.ndim - 1))
        near = np.allclose(saved.astype(np.float32) * scale, values, rtol=TOLERANCE, atol=0)
        return Origin(name, scale=scale) if near else None


def with_external_data(model: Any, saved: SavedTensors) -> tuple[Any, tuple[str, ...]]:
    """The same ONNX model with its large weights as external data, and the names of the tensors it reads."""
    from onnx import TensorProto, helper, numpy_helper

    small = type(model)()
    small.CopyFrom(model)
    graph, nodes = small.graph, []
    external: dict[str, Any] = {}
    for constant in list(graph.initializer):
        if constant.data_type not in (TensorProto.FLOAT, TensorProto.INT8) or math.prod(constant.dims) < SMALL:
            continue
        origin = saved.find(constant.name, numpy_helper.to_array(constant))
        if origin is None:
            continue
        name, part = constant.name, saved.slices[origin.tensor]
        external.setdefault(origin.tensor, _reference(origin.tensor, part))
        graph.initializer.remove(constant)
        steps: list[tuple[str, list[str], dict[str, Any]]] = []
        if part.kind != "F32" and constant.data_type == TensorProto.FLOAT:
            steps.append(("Cast", [], {"to": TensorProto.FLOAT}))
        if origin.scale is not None:
            graph.initializer.append(numpy_helper.from_array(origin.scale, f"{name}.scale"))
            steps.append(("Mul", [f"{name}.scale"], {}))
        if origin.transposed:
            steps.append(("Transpose", [], {"perm": [1, 0]}))
        given = EXTERNAL + origin.tensor
        for number, (kind, more, options) in enumerate(steps or [("Identity", [], {})]):
            last = number >= len(steps) - 1
            made = name if last else f"{name}.{kind.lower()}"
            nodes.append(helper.make_node(kind, [given, *more], [made], **options))
            given = made
    graph.initializer.extend(external.values())
    nodes += graph.node
    del graph.node[:]
    graph.node.extend(nodes)
    return small, tuple(external)


def _reference(name: str, part: TensorSlice) -> Any:
    from onnx import TensorProto

    tensor = TensorProto(name=EXTERNAL + name, dims=part.shape, data_type=TensorProto.DataType.Value(KINDS[part.kind]))
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", WEIGHTS), ("offset", part.offset), ("length", part.length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _key(values: np.ndarray) -> tuple[Any, ...]:
    """Half precision counts as the float32 it is turned into; int8 is never taken for floats."""
    numbers = np.ascontiguousarray(values, np.int8 if values.dtype == np.int8 else np.float32)
    found = hashlib.sha256(numbers.data).digest() if numbers.size else b""
    return numbers.dtype.char, numbers.shape, found
