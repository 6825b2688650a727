"""Exported folders as they are loaded: which runtime is taken, and damaged or foreign files are rejected."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
import torch
from commands import Command
from exporting import pictures, tiny_checkpoint

from sightline.bulk import job
from sightline.bulk.ray import choose_actors
from sightline.engine import backend
from sightline.engine import captioner as captioner_module
from sightline.engine.captioner import load
from sightline.errors import CheckpointError, ConfigError
from sightline.nn.checkpoint import save_checkpoint
from sightline.nn.hub import DEFAULT_MODEL

# Which runtime


def test_a_folder_with_both_takes_onnxruntime_if_it_is_of_the_same_weights(
    exported_folders: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    both = tmp_path / "both"
    for folder in exported_folders:
        shutil.copytree(folder, both, dirs_exist_ok=True)
    assert load(both).runtimes == ["onnxruntime, float32"]
    assert load(both).signatures()[0] == f"{load(both, runtime='torch').signatures()[0]}/onnx-float32"
    assert load(both, device=torch.device("cpu")).runtimes == ["onnxruntime, float32"]
    assert load(both, runtime="torch").runtimes == ["torch"]
    with monkeypatch.context() as without:
        without.setattr(captioner_module, "find_spec", lambda name: None)
        assert load(both).runtimes == ["torch"]
    config = both / "config.json"
    config.write_text(config.read_text().replace('"beam": 2', '"beam": 3'))
    assert load(both).runtimes == ["torch"]
    assert "config.json has changed since the export: torch is used; run `sightline export`" in caplog.text
    save_checkpoint(both, tiny_checkpoint(seed=1))
    assert load(both).runtimes == ["torch"]
    assert "model.safetensors has changed since the export" in caplog.text
    assert load(both, runtime="onnx").runtimes == ["onnxruntime, float32"]  # it has weights of its own


def test_unless_told_otherwise_every_core_computes(
    exported_folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "all_threads", lambda: 2)
    assert backend.OnnxBackend(exported_folders[1]).batch_size == backend.BATCH
    assert backend.OnnxBackend(exported_folders[1], threads=1).batch_size == 1


def test_what_cannot_run_is_reported_in_one_line(
    exported_folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = exported_folders
    with pytest.raises(CheckpointError, match=r"sightline.json is missing; run `sightline export`"):
        load(model, runtime="onnx")
    with pytest.raises(ConfigError, match=r"runtime is 'onxx' \(did you mean 'onnx'\?\); give auto, torch, onnx"):
        load(model, runtime="onxx")
    with pytest.raises(CheckpointError, match=r"config.json, model.safetensors, tokenizer.json missing"):
        load(out, runtime="torch")
    only = (
        "device is 'cuda' but an exported model runs on the CPU; this folder has no weights for torch: use device='cpu'"
    )
    with pytest.raises(ConfigError, match=only):
        load(out, device="cuda")
    both = shutil.copytree(model, tmp_path / "both")
    shutil.copy(out / "sightline.json", both)
    with pytest.raises(
        ConfigError, match="device is 'cuda' but an exported model runs on the CPU; use runtime='torch'"
    ):
        load(both, device="cuda", runtime="onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match="needs onnxruntime: pip install onnxruntime"):
        load(out)


def test_an_exported_model_captions_without_torch(exported_folders: tuple[Path, Path], tmp_path: Path) -> None:
    pictures()[0].save(tmp_path / "noise.png")
    script = (
        "import sys\nfrom sightline.cli import run\n"
        f"code = run(['caption', {str(tmp_path / 'noise.png')!r}, '--model', {str(exported_folders[1])!r}])\n"
        "heavy = [name for name in ('torch', 'torchvision', 'timm', 'onnx', 'safetensors') if name in sys.modules]\n"
        "sys.exit(code or ' '.join(heavy) or 0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(captioner_module.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == load(exported_folders[0]).caption(tmp_path / "noise.png").sentence()


@pytest.fixture
def folder_of_one_photo(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    pictures()[0].save(tmp_path / "photos" / "noise.png")
    os.utime(tmp_path / "photos" / "noise.png", (0, 0))
    return tmp_path / "photos"


@pytest.mark.parametrize("verb", [["bulk"], ["watch", "--once"]])
@pytest.mark.parametrize("has_gpu", [False, True])
def test_jobs_of_onnxruntime_do_not_import_torch(
    folder_of_one_photo: Path, exported_folders: tuple[Path, Path], tmp_path: Path, verb: list[str], has_gpu: bool
) -> None:
    """With a GPU torch runs the default model, which has a checkpoint; a folder of graphs alone runs on the CPU."""
    model = exported_folders[1] if has_gpu else DEFAULT_MODEL
    arguments = [*verb, str(folder_of_one_photo), "-o", str(tmp_path / "out.csv"), "--model", str(model)]
    script = (
        "import sys\nfrom sightline.bulk import job\nfrom sightline.cli import run\n"
        f"job.may_have_gpu = lambda: {has_gpu}\n"
        f"sys.exit(run({arguments!r}) or 'torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(captioner_module.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 2


@pytest.mark.parametrize("verb", [["bulk"], ["watch", "--once"]])
@pytest.mark.parametrize("runtime", ["auto", "onnx"])
def test_beside_a_gpu_graphs_run_on_the_cpu(
    command: Command,
    folder_of_one_photo: Path,
    exported_folders: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: list[str],
    runtime: str,
) -> None:
    monkeypatch.setattr(job, "may_have_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    table = tmp_path / "out.csv"
    outcome = command(
        *verb, folder_of_one_photo, "-o", table, "--model", exported_folders[1], "--runtime", runtime, "--workers", 0
    )
    assert outcome.code == 0, outcome.err
    assert len(table.read_text().splitlines()) == 2


def test_auto_is_the_gpu_where_every_model_has_a_checkpoint(
    exported_folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "may_have_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    trained, exported = exported_folders
    assert job.choose_device("auto", [trained], "auto") == "cuda"
    assert job.choose_device("auto", [], "auto") == "cuda"  # the default model
    assert job.choose_device("auto", [trained], "onnx") == "cpu"
    assert job.choose_device("auto", [trained, exported], "auto") == "cpu"


@pytest.mark.parametrize(("runtime", "device"), [("auto", "cuda"), ("onnx", "cpu")])
def test_a_cluster_gives_its_gpus_to_checkpoints_only(
    exported_folders: tuple[Path, Path], runtime: str, device: str
) -> None:
    cluster = SimpleNamespace(cluster_resources=lambda: {"GPU": 2, "CPU": 8})
    options = job.BulkOptions(runtime=runtime)
    assert choose_actors(cluster, exported_folders[:1], options, 4)[1] == device
    assert choose_actors(cluster, exported_folders[1:], options, 4)[1] == "cpu"


# Files that are broken, or not ours


def _reworded(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        values = json.loads((folder / "sightline.json").read_text())
        change(values)
        (folder / "sightline.json").write_text(json.dumps(values))

    return spoil


def _cut(folder: Path) -> None:
    (folder / "step.onnx").write_bytes((folder / "step.onnx").read_bytes()[:-100])


def _flipped(folder: Path) -> None:
    data = bytearray((folder / "step.onnx").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "step.onnx").write_bytes(data)


def _foreign(data: bytes) -> Callable[[Path], None]:
    """A file in place of a graph, with a manifest that knows it."""

    def spoil(folder: Path) -> None:
        (folder / "step.onnx").write_bytes(data)
        new = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        _reworded(lambda values: values["graphs"]["step"].update(new))(folder)

    return spoil


def _with_external_data() -> bytes:
    tensor = onnx.helper.make_tensor("weight", onnx.TensorProto.FLOAT, [1], [0.0])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["weight"], ["logits"])], "g", [], [], [tensor])
    return onnx.helper.make_model(graph).SerializeToString()


def _other_graph() -> bytes:
    info = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", info[:1], info[1:])
    opset = [onnx.helper.make_opsetid("", 20)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()


def _with_loop() -> bytes:
    """2^62 rounds, which onnxruntime would compute while the file is opened, since nothing in them is an input."""
    make = onnx.helper
    kinds = {"i": onnx.TensorProto.INT64, "go": onnx.TensorProto.BOOL, "x": onnx.TensorProto.FLOAT}
    infos = {name: make.make_tensor_value_info(name, kind, []) for name, kind in kinds.items()}
    results = [make.make_tensor_value_info("goes", onnx.TensorProto.BOOL, []), make.make_tensor_value_info("y", 1, [])]
    nodes = [make.make_node("Identity", ["go"], ["goes"]), make.make_node("Sin", ["x"], ["y"])]
    inner = make.make_graph(nodes, "body", [infos["i"], infos["go"], infos["x"]], results)
    constants = [make.make_tensor("rounds", 7, [], [2**62]), make.make_tensor("true", 9, [], [True])]
    constants.append(make.make_tensor("zero", 1, [], [0.0]))
    loop = make.make_node("Loop", ["rounds", "true", "zero"], ["logits"], body=inner)
    graph = make.make_graph([loop], "g", [], [make.make_tensor_value_info("logits", 1, [])], constants)
    opset = [make.make_opsetid("", 20)]
    return make.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()


def _with_functions(depth: int = 60) -> bytes:
    """Each function calls the next one twice: 2^60 nodes."""
    make, opset = onnx.helper, [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("own", 1)]
    functions = []
    for number in range(depth):
        name, domain = (f"f{number + 1}", "own") if number + 1 < depth else ("Sin", "")
        nodes = [make.make_node(name, [a], [b], domain=domain) for a, b in (("x", "h"), ("h", "y"))]
        functions.append(make.make_function("own", f"f{number}", ["x"], ["y"], nodes, opset))
    info = [make.make_tensor_value_info(name, 1, [1]) for name in ("x", "y")]
    graph = make.make_graph([make.make_node("f0", ["x"], ["y"], domain="own")], "g", info[:1], info[1:])
    model = make.make_model(graph, opset_imports=opset, ir_version=10, functions=functions)
    return model.SerializeToString()


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (_cut, "step.onnx has .* bytes, expected .*; copy the file again"),
    "flipped": (_flipped, "step.onnx is not the file that sightline.json names"),
    "gone": (lambda folder: (folder / "step.onnx").unlink(), "step.onnx cannot be read: No such file"),
    "pickle": (_foreign(b"\x80\x04\x95" * 20), "step.onnx is not a graph that onnxruntime can run"),
    "other files": (_foreign(_with_external_data()), "step.onnx wants other files read than sightline.json says"),
    "no such weights": (
        _reworded(lambda values: values["graphs"]["step"].update(external_data=["a"])),
        "the weights cannot be read: No such file",
    ),
    "external data": (
        _reworded(lambda values: values["graphs"]["step"].update(external_data="a")),
        "external_data is 'a'",
    ),
    "a loop": (_foreign(_with_loop()), "step.onnx holds loops or branches"),
    "functions": (_foreign(_with_functions()), "step.onnx holds functions"),
    "no message": (_foreign(b"\x0b" * 50), "step.onnx is not a graph that onnxruntime can run"),
    "a large grid": (_reworded(lambda values: values.update(grid=[10**9, 10**9])), "grid is 1000000000 × 1000000000"),
    "another size": (
        _reworded(lambda values: values["preprocess"].update(size=4096, resize=4096)),
        "preprocess.size is 4096",
    ),
    "another graph": (_foreign(_other_graph()), "step.onnx takes or gives other tensors than sightline.json says"),
    "no json": (lambda folder: (folder / "sightline.json").write_text("{"), "sightline.json cannot be read"),
    "format": (_reworded(lambda values: values.update(format="x")), "format is 'x', this version reads"),
    "missing": (_reworded(lambda values: values.pop("grid")), "'grid' is missing; copy the file"),
    "unknown": (_reworded(lambda values: values.update(code="x")), "'code' is unknown; copy the file"),
    "precision": (_reworded(lambda values: values.update(precision="int4")), "precision is 'int4', known are"),
    "grid": (_reworded(lambda values: values.update(grid=[0, 4])), "does not describe an exported model: grid is"),
    "size": (_reworded(lambda values: values["graphs"]["step"].update(bytes=2**40)), "bytes is 1099511627776"),
    "no step": (_reworded(lambda values: values["graphs"].pop("step")), "'step' is missing"),
    "words": (_reworded(lambda values: values["tokenizer"]["tokens"].append("more")), "logits are"),
    "state": (
        _reworded(lambda values: values["graphs"]["step"]["inputs"].pop("beam.past")),
        "the step graph should take or give token and the state",
    ),
    "decoding": (_reworded(lambda values: values["decoding"].update(beam="3")), "'decoding' does not fit"),
    "preprocess": (_reworded(lambda values: values["preprocess"].pop("size")), "preprocess.size is missing"),
}


def _with_bomb(folder: Path, nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto]) -> None:
    """A step graph that adds what ``nodes`` compute to its logits."""
    model = onnx.load(folder / "step.onnx")
    for node in model.graph.node:
        node.output[:] = ["before" if name == "logits" else name for name in node.output]
    model.graph.node.extend(nodes)
    model.graph.node.append(onnx.helper.make_node("Add", ["before", "bomb"], ["logits"]))
    model.graph.initializer.extend(constants)
    _foreign(model.SerializeToString())(folder)


def test_graphs_that_would_compute_for_ever_or_fill_the_memory_are_refused(
    exported_folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(backend, "TRIAL_SECONDS", 4)
    folder, make = tmp_path / "bomb", onnx.helper
    largest = make.make_node("ReduceMax", ["last"], ["bomb"], keepdims=0)
    shape = make.make_tensor("shape", 7, [1], [2**33])
    shutil.copytree(exported_folders[1], folder)
    _with_bomb(folder, [make.make_node("ConstantOfShape", ["shape"], ["last"]), largest], [shape])
    with pytest.raises(CheckpointError, match="cannot be run by onnxruntime"):
        load(folder)

    shutil.copytree(exported_folders[1], folder, dirs_exist_ok=True)
    names = ["first", *(f"product{number}" for number in range(2000)), "last"]
    nodes = [make.make_node("ConstantOfShape", ["shape"], ["first"])]
    nodes += [make.make_node("MatMul", [one, "first"], [other]) for one, other in pairwise(names)]
    _with_bomb(folder, [*nodes, largest], [make.make_tensor("shape", 7, [2], [1500, 1500])])
    with pytest.raises(CheckpointError, match="takes more than 4 s or too much memory to open"):
        load(folder)
    assert not list((tmp_path / "cache").rglob("*"))


def test_a_folder_from_elsewhere_is_tried_once(
    exported_folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    tried = []
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: tried.append(command) or subprocess.CompletedProcess(command, 0)
    )
    for folder in (exported_folders[1], exported_folders[1], DEFAULT_MODEL):
        load(folder)
    assert len(tried) == 1 and str(exported_folders[1]) in tried[0]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_folder_is_rejected_in_one_line(
    exported_folders: tuple[Path, Path], tmp_path: Path, fault: str
) -> None:
    spoil, message = FAULTS[fault]
    folder = tmp_path / "spoilt"
    shutil.copytree(exported_folders[1], folder)
    spoil(folder)
    with pytest.raises(CheckpointError, match=message) as error:
        load(folder)
    assert "\n" not in str(error.value)
