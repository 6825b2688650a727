"""Smaller weights in exported graphs: int8 is near, float16 exact, and the page's files caption nearly alike."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
import torch
from exporting import page_model, pictures

from sightline.engine.captioner import load
from sightline.nn.encoders import build_encoder
from sightline.onnx import exported
from sightline.onnx.export import encoder_session
from sightline.onnx.exported import open_session
from sightline.onnx.quantize import int8_arithmetic, outlier_nodes, rounded, store_weights


def test_int8_weights_are_near_and_small() -> None:
    weight = np.random.default_rng(0).standard_normal((64, 40)).astype(np.float32)
    weight[:, 7] = 0
    for channels, matrix in ((1, weight), (0, weight.T)):
        whole, scale = rounded(matrix, channels)
        assert whole.dtype == np.int8 and np.abs(whole).max() == 127
        assert scale.size == 2 * 40  # one for each group of 32
        found = (whole * scale.astype(np.float32)).reshape(matrix.shape)
        assert np.abs(found - matrix).max() <= np.abs(matrix).max() / 254 * 1.001
        assert np.abs(found - matrix).std() < 0.006


@pytest.fixture(scope="module")
def large_graph() -> onnx.ModelProto:
    """A table of words and two products, one of them the other way round, as decoders have them."""
    random = np.random.default_rng(0)
    tensors = {"table": (600, 256), "matrix": (256, 512), "turned": (300, 512), "bias": (300,), "little": (256, 4)}
    values = {name: random.standard_normal(shape).astype(np.float32) / 16 for name, shape in tensors.items()}
    node = onnx.helper.make_node
    nodes = [
        node("Gather", ["table", "token"], ["word"], axis=0),
        node("MatMul", ["word", "matrix"], ["hidden"]),
        node("Gemm", ["hidden", "turned", "bias"], ["logits"], transB=1),
        node("MatMul", ["word", "little"], ["more"]),
    ]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "words",
        [info("token", onnx.TensorProto.INT64, ["rows"])],
        [info("logits", onnx.TensorProto.FLOAT, ["rows", 300]), info("more", onnx.TensorProto.FLOAT, ["rows", 4])],
        [onnx.numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)


def test_a_shrunk_graph_gives_nearly_the_same(large_graph: onnx.ModelProto) -> None:
    small = store_weights(large_graph, int8=True)
    kinds = {tensor.name: tensor.data_type for tensor in small.graph.initializer}
    assert kinds["table.int8"] == kinds["matrix.int8"] == kinds["turned.int8"] == onnx.TensorProto.INT8
    assert kinds["little.half"] == onnx.TensorProto.FLOAT16
    assert kinds["bias"] == onnx.TensorProto.FLOAT
    assert small.ByteSize() < 0.3 * large_graph.ByteSize()
    token = {"token": np.array([3, 0, 599])}
    for found, expected in zip(
        *(open_session(graph.SerializeToString()).run(None, token) for graph in (small, large_graph))
    ):
        assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()
        assert np.abs(found - expected).max() > 0


def test_what_halves_hold_exactly_is_kept_in_them(large_graph: onnx.ModelProto) -> None:
    exact, lost = onnx.ModelProto(), onnx.ModelProto()
    for model in (exact, lost):
        model.CopyFrom(large_graph)
        for tensor in model.graph.initializer:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32)
            if model is lost and tensor.name == "table":
                values[0, 0] = 1e6  # too large for half precision
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    token = {"token": np.array([3, 0, 599])}
    for model in (exact, lost, large_graph):
        for int8 in (False, True):
            small = store_weights(model, int8)
            names = {tensor.name for tensor in small.graph.initializer}
            assert ("matrix.half" in names) == (model is not large_graph and not int8)
            assert ("table.half" in names) == (model is exact and not int8)
            results = [open_session(graph.SerializeToString()).run(None, token)[0] for graph in (small, model)]
            assert np.isfinite(results[0]).all()
            assert int8 or (results[0] == results[1]).all()
    assert store_weights(exact, int8=False).ByteSize() < 0.51 * exact.ByteSize()


def test_the_page_s_files_say_nearly_the_same(exported_folders: tuple[Path, Path]) -> None:
    model, out = exported_folders
    small = load(page_model(out))
    assert small.runtimes == ["onnxruntime, int8"]
    expected = load(model, runtime="torch").caption(pictures())
    for one, other in zip(small.caption(pictures()), expected):
        assert one.score == pytest.approx(other.score, abs=0.2)
    sizes = [sum(file.stat().st_size for file in folder.glob("*.onnx")) for folder in (page_model(out), out)]
    assert sizes[0] < 0.75 * sizes[1]


def test_int8_arithmetic_is_near_and_multiplies_integers(large_graph: onnx.ModelProto) -> None:
    quick = int8_arithmetic(large_graph)
    kinds = {node.op_type for node in quick.graph.node}
    assert "MatMulInteger" in kinds and not kinds & {"MatMul", "Gemm"}
    scales = [onnx.numpy_helper.to_array(graph) for graph in quick.graph.initializer if graph.name.endswith("_scale")]
    assert {scale.size for scale in scales} == {512, 300, 4}, "one scale for each output channel"
    token = {"token": np.array([3, 0, 599])}
    for found, expected in zip(
        *(open_session(graph.SerializeToString()).run(None, token) for graph in (quick, large_graph))
    ):
        assert 0 < np.abs(found - expected).max() < 0.03 * np.abs(expected).max()


@pytest.mark.parametrize("old", [False, True])
def test_int8_products_do_not_overflow(old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The greatest ones: on CPUs with AVX2 but without VNNI instructions two of them exceed 16 bits."""
    if old:  # as on those CPUs
        monkeypatch.setattr(exported, "exact_int8_products", lambda: False)
    ones = onnx.numpy_helper.from_array(np.ones((64, 32), np.float32), "ones")
    given, result = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, side])
        for name, side in (("x", 64), ("y", 32))
    )
    node = onnx.helper.make_node("MatMul", ["x", "ones"], ["y"], "product")
    graph = onnx.helper.make_graph([node], "graph", [given], [result], initializer=[ones])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    (found,) = open_session(int8_arithmetic(model).SerializeToString()).run(None, {"x": np.ones((1, 64), np.float32)})
    assert found == pytest.approx(np.full((1, 32), 64.0), rel=1e-3)


def test_the_product_that_tells_whether_int8_is_exact() -> None:
    make, kinds = onnx.helper, onnx.TensorProto
    tensors = {
        name: make.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (("a", kinds.UINT8, [1, 4]), ("b", kinds.INT8, [4, 1]), ("y", kinds.INT32, [1, 1]))
    }
    node = make.make_node("MatMulInteger", ["a", "b"], ["y"])
    graph = make.make_graph([node], "g", [tensors["a"], tensors["b"]], [tensors["y"]])
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 18)], ir_version=10)
    assert model.SerializeToString() == exported.PRODUCT_OF_4


@pytest.mark.parametrize(("precision", "nearest", "farthest"), [("float32", 0.0, 1e-5), ("int8", 1e-5, 0.05)])
def test_an_encoder_runs_in_onnxruntime(precision: Literal["float32", "int8"], nearest: float, farthest: float) -> None:
    torch.manual_seed(0)
    encoder = build_encoder("patches", image_size=32, patch_size=8, width=32, heads=2, blocks=2).train()
    pixels = np.random.default_rng(0).standard_normal((3, 3, 32, 32)).astype(np.float32)
    grid, pooled = encoder_session(encoder, precision, threads=1)(pixels)
    assert encoder.training
    expected = encoder.eval()(torch.from_numpy(pixels))
    for found, exact in ((grid, expected.grid.detach().numpy()), (pooled, expected.pooled.detach().numpy())):
        assert found.shape == exact.shape
        assert nearest <= np.abs(found - exact).max() / np.abs(exact).max() < farthest


def test_a_product_with_an_outlier_among_its_activations_stays_in_float() -> None:
    make, random = onnx.helper, np.random.default_rng(1)
    large = np.ones((128, 64), np.float32)
    large[5, 3] = 1e4
    weights = {name: random.standard_normal((64, 64)).astype(np.float32) for name in ("first", "second")}
    constants = [onnx.numpy_helper.from_array(value, name) for name, value in (weights | {"large": large}).items()]
    nodes = [
        make.make_node("MatMul", ["pixels", "first"], ["middle"], name="one"),
        make.make_node("Mul", ["middle", "large"], ["uneven"]),
        make.make_node("MatMul", ["uneven", "second"], ["out"], name="two"),
    ]
    ends = [make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["B", 128, 64]) for name in ("pixels", "out")]
    graph = make.make_graph(nodes, "uneven", ends[:1], ends[1:], constants)
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 20)], ir_version=10)
    assert outlier_nodes(model) == ["two"]
    operators = [node.op_type for node in int8_arithmetic(model).graph.node]
    assert operators.count("MatMulInteger") == operators.count("MatMul") == 1
