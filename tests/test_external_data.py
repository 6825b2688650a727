"""Graphs that read their weights from the model.safetensors of their folder, and from no other file."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from exporting import pictures, tiny_checkpoint
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from safetensors.torch import save_file

from sightline.cli import run
from sightline.engine.captioner import load
from sightline.errors import CheckpointError
from sightline.io.model_files import tensor_slices
from sightline.nn.checkpoint import save_checkpoint
from sightline.onnx import Manifest
from sightline.onnx.exported import EXTERNAL, open_session
from sightline.onnx.external_data import SavedTensors, with_external_data


@pytest.fixture(scope="module", params=["float32", "float16"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with its graphs in the same folder."""
    model = tmp_path_factory.mktemp("beside") / "model"
    save_checkpoint(model, tiny_checkpoint(), precision=request.param)
    assert run(["export", str(model)]) == 0
    return model


def test_graphs_with_external_data_caption_as_torch_does(folder: Path) -> None:
    expected, found = (load(folder, runtime=runtime).caption(pictures(), candidates=2) for runtime in ("torch", "auto"))
    assert load(folder).runtimes == ["onnxruntime, float32"]
    assert [caption.text for caption in found] == [caption.text for caption in expected]
    assert len({caption.text for caption in found}) > 1
    for one, other in zip(found, expected):
        assert one.score == pytest.approx(other.score, abs=1e-4)
        np.testing.assert_allclose(one.words[0].attention, other.words[0].attention, atol=1e-5)


def test_large_weights_are_in_one_file_only(folder: Path) -> None:
    header = tensor_slices(folder)
    large = {name for name, found in header.items() if np.prod(found.shape) >= 2**10}
    read = {name for graph in Manifest.read(folder).graphs.values() for name in graph.external_data}
    assert read == large
    for name in ("encoder", "start", "step"):
        graph = onnx.load(folder / f"{name}.onnx", load_external_data=False).graph
        assert max((len(tensor.raw_data) for tensor in graph.initializer), default=0) < 4 * 2**10


@pytest.mark.parametrize("arithmetic", [False, True], ids=["stored", "computed"])
def test_weights_stored_in_int8_stay_so_in_every_file(arithmetic: bool, tmp_path: Path) -> None:
    model = tmp_path / "model"
    save_checkpoint(model, tiny_checkpoint(width=256), precision="int8")
    options = ["--int8-arithmetic"] if arithmetic else []
    assert run(["export", str(model), *options]) == 0
    assert run(["export", str(model), "-o", str(tmp_path / "whole"), *options]) == 0
    weights = (model / "model.safetensors").stat().st_size
    assert sum(path.stat().st_size for path in model.glob("*.onnx")) < weights / 4
    assert sum(path.stat().st_size for path in (tmp_path / "whole").glob("*.onnx")) < weights * 1.25
    expected = load(model, runtime="torch").caption(pictures())
    for folder in (model, tmp_path / "whole"):
        captioner = load(folder)
        assert captioner.runtimes == ["onnxruntime, int8-arithmetic" if arithmetic else "onnxruntime, float32"]
        found = captioner.caption(pictures())
        for one, other in zip(found, expected):
            assert one.score == pytest.approx(other.score, abs=0.05 if arithmetic else 1e-4)
    operators = {node.op_type for node in onnx.load(model / "encoder.onnx", load_external_data=False).graph.node}
    assert ("MatMulInteger" in operators) == arithmetic


def test_int8_arithmetic_encodes_a_photo_alike_in_any_company(tmp_path: Path) -> None:
    model = tmp_path / "model"
    save_checkpoint(model, tiny_checkpoint(width=256), precision="int8")
    assert run(["export", str(model), "--int8-arithmetic"]) == 0
    pixels = np.random.default_rng(0).standard_normal((3, 3, 32, 32), np.float32)
    pixels[2] *= 5
    backend = load(model).backends[0].with_threads(2)
    together, alone = backend.encode(pixels), backend.encode(pixels[:1])
    np.testing.assert_array_equal(together.grid[0], alone.grid[0])


def test_any_program_that_reads_onnx_finds_them(folder: Path) -> None:
    onnx.checker.check_model(str(folder / "encoder.onnx"), full_check=True)
    pixels = np.random.default_rng(0).standard_normal((2, 3, 32, 32), np.float32)
    reference = onnxruntime.InferenceSession(str(folder / "encoder.onnx")).run(None, {"pixels": pixels})
    features = load(folder).backends[0].encode(pixels)
    np.testing.assert_allclose(features.grid, reference[0], atol=1e-6)


def test_other_weights_are_never_taken_for_them(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = shutil.copytree(folder, tmp_path / "model")
    data = bytearray((model / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (model / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match="is not the file these graphs were made from"):
        load(model, runtime="onnx")
    assert load(model).runtimes == ["torch"]
    assert "model.safetensors has changed since the export" in caplog.text
    (model / "config.json").unlink()  # graphs and weights are all that is left to run
    with pytest.raises(CheckpointError, match="is not the file these graphs were made from"):
        load(model)
    shutil.copyfile(folder / "model.safetensors", model / "model.safetensors")
    assert load(model).runtimes == ["onnxruntime, float32"]


def test_a_folder_that_is_only_linked_to_works(folder: Path, tmp_path: Path) -> None:
    """As the hub's client keeps models: every file a link to another folder."""
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    assert load(tmp_path, runtime="onnx").caption(pictures()[0]).text == load(folder).caption(pictures()[0]).text


@pytest.mark.parametrize("entry", ["weights.decoder.blocks.0.cross_attention.key_value.weight", "stranger"])
def test_no_other_file_is_read(folder: Path, tmp_path: Path, entry: str) -> None:
    """Neither in place of a tensor that the manifest names, nor besides them."""
    model = shutil.copytree(folder, tmp_path / "model")
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(2**20))
    graph = onnx.load(model / "start.onnx", load_external_data=False)
    tensor_entry = next(
        tensor
        for tensor in graph.graph.initializer
        if tensor.name == "weights.decoder.blocks.0.cross_attention.key_value.weight"
    )
    other = onnx.TensorProto()
    other.CopyFrom(tensor_entry)
    other.name = entry
    other.external_data[0].value = "../secret"
    if entry == tensor_entry.name:
        tensor_entry.CopyFrom(other)
    else:
        graph.graph.initializer.append(other)
        graph.graph.node.append(make_node("Shape", [entry], ["unused"]))
    data = graph.SerializeToString()
    (model / "start.onnx").write_bytes(data)
    values = json.loads((model / "sightline.json").read_text())
    values["graphs"]["start"] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (model / "sightline.json").write_text(json.dumps(values))
    if entry == tensor_entry.name:  # the name of the file is never read: the tensor comes from us
        assert load(model).caption(pictures()[0]).text == load(folder).caption(pictures()[0]).text
    else:
        with pytest.raises(CheckpointError, match=r"wants other files read than sightline.json says"):
            load(model)
        values["graphs"]["start"]["external_data"].append("decoder.output.weight")  # the count fits, the name does not
        (model / "sightline.json").write_text(json.dumps(values))
        with pytest.raises(CheckpointError, match=r"not a graph that onnxruntime can run: .*decoder.output.weight"):
            load(model)


def test_what_the_exporter_did_to_a_tensor_is_done_again(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    tensors = {
        name: random.standard_normal(shape).astype(np.float16)
        for name, shape in {"matrix": (48, 64), "kernel": (40, 16, 3, 3), "table": (64, 32), "full": (8, 200)}.items()
    }
    saved = {name: torch.from_numpy(value) for name, value in tensors.items()}
    save_file({**saved, "full": saved["full"].float() + 1e-5}, tmp_path / "model.safetensors")
    scale = random.standard_normal((40, 1, 1, 1)).astype(np.float32)
    scale[3] = 0  # a channel that the norm switched off
    constants = {
        "val_1": tensors["matrix"].T.astype(np.float32),
        "kernel": tensors["kernel"].astype(np.float32) * scale,
        "table": tensors["table"].astype(np.float32),
        "val_2": tensors["table"].T.astype(np.float32),  # tied to it
        "full": tensors["full"].astype(np.float32) + np.float32(1e-5),
        "foreign": random.standard_normal((64, 32)).astype(np.float32),
        "changed": tensors["kernel"].astype(np.float32) + 1,
    }
    outputs = [make_tensor_value_info(f"{name}.out", onnx.TensorProto.FLOAT, v.shape) for name, v in constants.items()]
    graph = make_graph(
        [make_node("Add", [name, "zero"], [f"{name}.out"]) for name in constants],
        "constants",
        [make_tensor_value_info("zero", onnx.TensorProto.FLOAT, [1])],
        outputs,
        [onnx.numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in constants.items()],
    )
    model = make_model(graph, opset_imports=[make_opsetid("", 20)], ir_version=10)
    saved = SavedTensors(tmp_path)
    small, read = with_external_data(model, saved)
    assert set(read) == {"matrix", "kernel", "table", "full"}
    inside = {tensor.name for tensor in small.graph.initializer if not tensor.name.startswith(EXTERNAL)}
    assert inside == {"kernel.scale", "foreign", "changed"}
    session = open_session(small.SerializeToString(), weights={name: saved.tensors[name] for name in read})
    for name, value in zip(constants, session.run(None, {"zero": np.zeros(1, np.float32)})):
        np.testing.assert_allclose(value, constants[name], rtol=1e-6, err_msg=name)


HEADERS = {
    "too long": b"\xff" * 8 + b"{}",
    "no json": (4).to_bytes(8, "little") + b"{{{{",
    "outside": b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
    "before": b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [-99, -91]}}',
    "misshapen": b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 4]}}',
    "negative": b'{"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}',
    "no list": b'{"a": 3}',
}


@pytest.mark.parametrize("fault", HEADERS)
def test_a_spoilt_header_is_one_line(tmp_path: Path, fault: str) -> None:
    header = HEADERS[fault]
    data = len(header).to_bytes(8, "little") + header + bytes(4) if header.startswith(b"{") else header
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model.safetensors cannot be read: .*; copy the file again") as error:
        tensor_slices(tmp_path)
    assert "\n" not in str(error.value)
