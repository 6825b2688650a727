"""Weights left where they are: a graph that reads its large tensors from the model.safetensors beside it.

A safetensors file is a header and raw numbers, which is just what ONNX calls external data: a file's name, an offset,
a length. So a model folder gets its graphs for a twentieth of its size, and any program that reads ONNX finds the
weights. What the exporter did to a tensor (turned it round, multiplied a norm's scale into it, made it float32) becomes
nodes with constant inputs, which every runtime computes once, when it loads the graph.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sightline.io.model_files import TensorSlice, tensor_slices
from sightline.onnx.manifest import WEIGHTS
from sightline.onnx.session import EXTERNAL

SMALL = 2**10  # numbers in a tensor that stays inside
KINDS = {"F16": "FLOAT16", "F32": "FLOAT"}  # safetensors' names, ONNX's
NEAR = 1e-6  # of a number: what rounding leaves of it when a scale is taken out and put in again


@dataclass(frozen=True)
class Origin:
    """The tensor a constant of a graph was made from, and how."""

    tensor: str
    turned: bool = False  # its two dimensions were exchanged
    scale: np.ndarray | None = None  # of each output channel: a batch norm was multiplied in


class Originals:
    """A model's large tensors, found by their numbers: the exporter renames what it changes."""

    def __init__(self, path: Path):
        data = path.read_bytes()
        self.places = {
            name: place
            for name, place in tensor_slices(path).items()
            if place.kind in KINDS and math.prod(place.shape) >= SMALL
        }
        self.tensors = {name: place.array(data) for name, place in self.places.items()}
        self.known: dict[tuple[Any, ...], Origin] = {}
        for name, values in self.tensors.items():
            if values.ndim == 2:
                self.known[_key(values.T)] = Origin(name, turned=True)
        self.known |= {_key(values): Origin(name) for name, values in self.tensors.items()}

    def find(self, name: str, values: np.ndarray) -> Origin | None:
        """Where a constant comes from; one that was scaled has kept its name."""
        if origin := self.known.get(_key(values)):
            return origin
        own = self.tensors.get(name)
        if own is None or own.shape != values.shape or own.ndim < 3:
            return None
        old, new = (tensor.reshape(len(tensor), -1).astype(np.float64) for tensor in (own, values))
        power = (old * old).sum(1)
        scale = ((old * new).sum(1) / np.where(power > 0, power, 1)).astype(np.float32)
        scale = scale.reshape(-1, *[1] * (own.ndim - 1))
        near = np.allclose(own.astype(np.float32) * scale, values, rtol=NEAR, atol=0)
        return Origin(name, scale=scale) if near else None


def leave_outside(model: Any, originals: Originals) -> tuple[Any, tuple[str, ...]]:
    """The same ONNX model with its large weights in the file beside it, and the names of those it reads there."""
    from onnx import TensorProto, helper, numpy_helper

    small = type(model)()
    small.CopyFrom(model)
    graph, nodes = small.graph, []
    external: dict[str, Any] = {}
    for constant in list(graph.initializer):
        if constant.data_type != TensorProto.FLOAT or math.prod(constant.dims) < SMALL:
            continue
        origin = originals.find(constant.name, numpy_helper.to_array(constant))
        if origin is None:
            continue
        name, place = constant.name, originals.places[origin.tensor]
        external.setdefault(origin.tensor, _reference(origin.tensor, place))
        graph.initializer.remove(constant)
        steps: list[tuple[str, list[str], dict[str, Any]]] = []
        if place.kind != "F32":
            steps.append(("Cast", [], {"to": TensorProto.FLOAT}))
        if origin.turned:
            steps.append(("Transpose", [], {"perm": [1, 0]}))
        if origin.scale is not None:
            graph.initializer.append(numpy_helper.from_array(origin.scale, f"{name}.scale"))
            steps.append(("Mul", [f"{name}.scale"], {}))
        given = EXTERNAL + origin.tensor
        for place_in_chain, (kind, more, options) in enumerate(steps or [("Identity", [], {})]):
            last = place_in_chain >= len(steps) - 1
            made = name if last else f"{name}.{kind.lower()}"
            nodes.append(helper.make_node(kind, [given, *more], [made], **options))
            given = made
    graph.initializer.extend(external.values())
    nodes += graph.node
    del graph.node[:]
    graph.node.extend(nodes)
    return small, tuple(external)


def _reference(name: str, place: TensorSlice) -> Any:
    from onnx import TensorProto

    tensor = TensorProto(
        name=EXTERNAL + name, dims=place.shape, data_type=TensorProto.DataType.Value(KINDS[place.kind])
    )
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", WEIGHTS), ("offset", place.offset), ("length", place.length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _key(values: np.ndarray) -> tuple[Any, ...]:
    numbers = np.ascontiguousarray(values, np.float32)
    return (numbers.shape, hashlib.sha256(numbers.data).digest()) if numbers.size else (numbers.shape, b"")
