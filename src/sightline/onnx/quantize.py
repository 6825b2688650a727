"""How an exported graph keeps its weights: no larger than need be, or smaller still with a little loss.

Always: what half precision holds exactly is kept in it, so a model saved in halves stays as small as it was. With
``int8``: large weights as whole numbers of 8 bits, a scale for every 32 of them; the scales and all others in halves.
Large weights are where the bytes are; small ones, the convolutions above all, are where the harm is.

Only weights: what flows between layers stays in float32. Computing in whole numbers, too, is faster by a sixth and was
tried (`docs/export.md`): the activations of a network like TinyViT do not bear it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

LARGE = 2**17  # numbers in a weight that becomes int8
LARGE_ASIDE = 2**16  # the same, of weights that are first reshaped: they tell where a transformer looked, no word
SMALL = 2**10  # in one that stays as it is: biases, norms and the like are a hundredth of the whole
GROUP = 32  # neighbours among a channel's inputs that share a scale
# What takes weights, and which dimension of a matrix holds the channels: its outputs, or the words of a vocabulary.
CHANNELS = {"MatMul": 1, "Gemm": 1, "Gather": 0, "Conv": 0, "LSTM": 1, "Reshape": 0}


def store_weights(model: Any, int8: bool) -> Any:
    """The same ONNX model with smaller weights, which its first nodes turn back into float32.

    These nodes have constant inputs, so every runtime computes them once, when it loads the graph.
    """
    from onnx import TensorProto, helper, numpy_helper

    small = type(model)()
    small.CopyFrom(model)
    graph = small.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[Any] = []

    def keep(values: np.ndarray, name: str) -> str:
        graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    for name, channels, large in list(weights_of(graph)):
        weight = numpy_helper.to_array(tensors[name])
        half = halved(weight)
        if int8 and weight.size >= large and is_grouped(weight, channels):
            whole, scale = rounded(weight, channels)
            parts = {"int8": whole, "scale": scale, "shape": np.array(weight.shape)}
            given = [keep(values, f"{name}.{kind}") for kind, values in parts.items()]
            nodes.append(helper.make_node("Cast", given[:1], [f"{name}.whole"], to=TensorProto.FLOAT))
            nodes.append(helper.make_node("Cast", given[1:2], [f"{name}.scales"], to=TensorProto.FLOAT))
            nodes.append(helper.make_node("Mul", [f"{name}.whole", f"{name}.scales"], [f"{name}.groups"]))
            nodes.append(helper.make_node("Reshape", [f"{name}.groups", given[2]], [name]))
        elif (int8 and np.isfinite(half).all()) or np.array_equal(weight, half):
            nodes.append(helper.make_node("Cast", [keep(half, f"{name}.half")], [name], to=TensorProto.FLOAT))
        else:
            continue
        graph.initializer.remove(tensors[name])
    nodes += graph.node
    del graph.node[:]
    graph.node.extend(nodes)
    return small


def weights_of(graph: Any) -> Iterator[tuple[str, int, int]]:
    """Names of the weights worth making smaller, the dimension of their channels, and how many numbers become int8."""
    floats = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == tensor.FLOAT}
    for node in graph.node:
        for name in node.input:
            if node.op_type in CHANNELS and name in floats and np.prod(floats.pop(name).dims) >= SMALL:
                turned = any(own.name == "transB" and own.i for own in node.attribute)  # a Gemm's (outputs, inputs)
                large = LARGE_ASIDE if node.op_type == "Reshape" else LARGE
                yield name, 0 if turned else CHANNELS[node.op_type], large


def is_grouped(weight: np.ndarray, channels: int) -> bool:
    return weight.ndim == 2 and weight.shape[1 - channels] % GROUP == 0


def halved(weight: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # what is too large for half precision becomes infinite, and is not kept so
        return weight.astype(np.float16)


def rounded(weight: np.ndarray, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix as int8 in groups of a channel's inputs, (rows, groups, 32) or (groups, 32, columns), and the scales."""
    rows, columns = weight.shape
    groups = weight.reshape((rows, -1, GROUP) if channels == 0 else (-1, GROUP, columns))
    scale = halved(np.abs(groups).max(2 if channels == 0 else 1, keepdims=True) / 127)  # their own rounding counts
    exact = np.where(scale > 0, scale, 1).astype(np.float32)
    return np.rint(groups / exact).clip(-127, 127).astype(np.int8), scale
