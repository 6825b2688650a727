"""Two kinds of quantisation: smaller weights for files (`store_weights`), integer arithmetic for speed.

`store_weights` keeps weights in float16 or int8 wherever that is exact. With ``int8`` it also stores large matrices as
int8 with one float16 scale for every 32 numbers, and all other weights in float16. Activations stay in float32.

`int8_arithmetic` multiplies matrices in int8, activations included, which makes vision transformers more than twice as
fast. DINOv2 loses little by it, TinyViT too much (`docs/export.md`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

LARGE = 2**17  # numbers in a weight that becomes int8
LARGE_RESHAPED = 2**16  # the same for weights that are first reshaped: they make attention maps, not words
INT8_SIZE = 2**14  # numbers in a matrix that a checkpoint may store in int8
SMALL = 2**10  # a smaller one stays as it is: biases, norms and the like are a hundredth of the whole
OUTLIER = 64  # times the root mean square of activations; DINOv2 has at most 37, CLIP 156
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
        exact = int8_exactly(weight, channels) if weight.size >= INT8_SIZE else None
        if exact or (int8 and weight.size >= large and is_grouped(weight, channels)):
            whole, scale = exact or rounded(weight, channels)
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
                transposed = any(
                    option.name == "transB" and option.i for option in node.attribute
                )  # a Gemm's (outputs, inputs)
                large = LARGE_RESHAPED if node.op_type == "Reshape" else LARGE
                yield name, 0 if transposed else CHANNELS[node.op_type], large


def is_grouped(weight: np.ndarray, channels: int) -> bool:
    return weight.ndim == 2 and weight.shape[1 - channels] % GROUP == 0


def halved(weight: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # what is too large for half precision becomes infinite, and is not kept so
        return weight.astype(np.float16)


def int8_exactly(weight: np.ndarray, channels: int) -> tuple[np.ndarray, np.ndarray] | None:
    """A matrix that was stored in int8 as it was stored, with one scale for each channel; None for any other."""
    if weight.ndim != 2:
        return None
    for axis in (channels, 1 - channels):  # a tied embedding has its scales on the other side
        scale = np.abs(weight).max(1 - axis, keepdims=True) / np.float32(127)
        whole = np.rint(weight / np.where(scale > 0, scale, 1))
        if np.array_equal(whole * scale, weight):
            return whole.astype(np.int8), scale
    return None


def rounded(weight: np.ndarray, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix as int8 in groups of a channel's inputs, (rows, groups, 32) or (groups, 32, columns), and the scales."""
    rows, columns = weight.shape
    groups = weight.reshape((rows, -1, GROUP) if channels == 0 else (-1, GROUP, columns))
    scale = halved(np.abs(groups).max(2 if channels == 0 else 1, keepdims=True) / 127)  # their own rounding counts
    exact = np.where(scale > 0, scale, 1).astype(np.float32)
    return np.rint(groups / exact).clip(-127, 127).astype(np.int8), scale


def int8_arithmetic(model: Any) -> Any:
    """The same ONNX model with its MatMul and Gemm nodes computed in int8.

    Weights are quantised once, with a scale for each output channel; activations at every run, with a scale for each
    tensor. A node whose activations have outliers stays in float32: see `outlier_nodes`.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    inferred = onnx.shape_inference.infer_shapes(model)  # the quantiser asks for the types of activations
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantize_dynamic(
            inferred,
            path,
            op_types_to_quantize=["MatMul", "Gemm"],
            nodes_to_exclude=outlier_nodes(model),
            per_channel=True,
            weight_type=QuantType.QInt8,
        )
        return onnx.load(path)


def outlier_nodes(model: Any) -> list[str]:
    """The matrix products whose input has a number above `OUTLIER` times its root mean square, tried on noise.

    The greatest number sets the scale of all, so that the others would be rounded to few values. In CLIP ViT-B/16 these
    are the second layers of three middle MLPs; in int8 they cost 2.3 points of CIDEr-D on 200 val photos of COCO, and
    0.4 on 200 of Flickr8k.
    """
    from onnx import TensorProto, helper

    from sightline.onnx.exported import open_session

    tried = type(model)()
    tried.CopyFrom(model)
    constants = {tensor.name for tensor in tried.graph.initializer}
    nodes = [node for node in tried.graph.node if node.op_type in ("MatMul", "Gemm") and node.input[1] in constants]
    names = list(dict.fromkeys(node.input[0] for node in nodes))
    if not names:
        return []
    del tried.graph.output[:]
    tried.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    session, random = open_session(tried.SerializeToString()), np.random.default_rng(0)
    inputs = {}
    for value in session.get_inputs():
        shape = [side if isinstance(side, int) else 1 for side in value.shape]
        numbers = value.type == "tensor(float)"
        inputs[value.name] = random.standard_normal(shape, np.float32) if numbers else np.zeros(shape, np.int64)
    peaks = {}
    for name, values in zip(names, session.run(names, inputs)):
        typical = float(np.sqrt(np.square(values, dtype=np.float64).mean()))
        peaks[name] = float(np.abs(values).max()) / typical if typical else 0.0
    return [node.name for node in nodes if peaks[node.input[0]] > OUTLIER]
