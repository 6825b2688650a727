"""Exported graphs say what torch says, whatever the decoder, the number of photos and of captions."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

from sightline import captioner as captioner_module
from sightline import export as export_module
from sightline.captioner import load
from sightline.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sightline.cli import run
from sightline.decoders import DECODERS, Decoder, build_decoder
from sightline.decoding import DecodingOptions, decode
from sightline.encoders import build_encoder
from sightline.errors import CheckpointError, ConfigError
from sightline.export import GraphFile, compare, export
from sightline.export.graphs import decoder_graphs
from sightline.export.weights import rounded, store_weights
from sightline.exported import Manifest
from sightline.exported.runtime import OnnxDecoder, open_session
from sightline.model import CaptionModel
from sightline.tokenizers import train_tokenizer
from sightline.types import ImageFeatures

KINDS = {
    "lstm": {"name": "lstm", "width": 12, "hidden": 16},
    "soft": {"name": "attention-lstm", "width": 12, "hidden": 16, "attention": 8},
    "hard": {
        "name": "attention-lstm",
        "width": 12,
        "hidden": 16,
        "attention": 8,
        "mode": "hard",
        "look": "most-likely",
    },
    "transformer": {"name": "transformer", "width": 16, "heads": 2, "blocks": 1, "pooled": False, "tie_output": True},
}
VOCABULARY, LENGTH, PLACES, DEPTH = 30, 9, 6, 10


def random_decoder(kind: str, **options) -> Decoder:
    torch.manual_seed(3)
    decoder = build_decoder(
        **KINDS[kind] | {"features": DEPTH, "vocabulary": VOCABULARY, "max_length": LENGTH} | options
    )
    with torch.no_grad():
        decoder.output.weight.mul_(6)  # else every word is about as likely as any other
    return decoder.eval()


def photos(count: int, seed: int = 0) -> ImageFeatures:
    generator = torch.Generator().manual_seed(seed)
    grid = torch.randn(count, PLACES, DEPTH, generator=generator)
    return ImageFeatures(grid, grid.mean(1), 2, 3)


def as_arrays(features: ImageFeatures) -> ImageFeatures:
    return ImageFeatures(features.grid.numpy(), features.pooled.numpy(), features.height, features.width)


def sessions(graphs: dict) -> OnnxDecoder:
    return OnnxDecoder(*(open_session(graphs[name].SerializeToString()) for name in ("start", "step")))


@pytest.fixture(scope="module", params=KINDS)
def exported(request: pytest.FixtureRequest) -> tuple[Decoder, OnnxDecoder]:
    decoder = random_decoder(request.param)
    return decoder, sessions(decoder_graphs(decoder, photos(2)))


def test_every_decoder_is_tried() -> None:
    assert {options["name"] for options in KINDS.values()} == set(DECODERS)


@pytest.mark.parametrize(("count", "beam"), [(1, 1), (1, 4), (3, 3), (5, 2)])
def test_an_exported_decoder_finds_the_same_captions(exported, count: int, beam: int) -> None:
    decoder, ours = exported
    features, options = photos(count, seed=count), DecodingOptions(beam=beam, candidates=beam, max_length=LENGTH)
    theirs, found = decode(decoder, features, options), decode(ours, as_arrays(features), options)
    for expected, photo in zip(theirs, found):
        assert [caption.tokens for caption in photo] == [caption.tokens for caption in expected]
        for one, other in zip(photo, expected):
            assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)
            for seen, wanted in ((one.attention, other.attention), (one.gate, other.gate)):
                assert (seen is None) == (wanted is None)
                if seen is not None:
                    np.testing.assert_allclose(seen, wanted, atol=1e-5)


def tiny_checkpoint(seed: int = 0) -> Checkpoint:
    """An untrained transformer over patches that says different things of different pictures."""
    torch.manual_seed(seed)
    texts = ["a red dog runs on the green grass", "two blue cats"]
    tokenizer = train_tokenizer("word", texts, min_count=1, max_length=9)
    encoder = build_encoder("patches", image_size=32, patch_size=8, width=16, heads=2, blocks=1)
    sizes = {"features": 16, "vocabulary": tokenizer.size, "max_length": 9}
    decoder = build_decoder("transformer", **sizes, width=32, heads=2, blocks=1)
    with torch.no_grad():
        decoder.output.weight.mul_(8)
    return Checkpoint(CaptionModel(encoder, decoder), tokenizer, {"beam": 2, "no_repeat_ngram": 2})


def model_folder(folder: Path) -> Path:
    save_checkpoint(folder, tiny_checkpoint())
    (folder / "README.md").write_text("# A card\n")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model folder, and its export in float with the page's in int8."""
    root = tmp_path_factory.mktemp("export")
    model, out, told = model_folder(root / "model"), root / "out", io.StringIO()
    with contextlib.redirect_stdout(told):
        assert run(["export", str(model), "-o", str(out), "--web", str(root / "site"), "--licence", "CC0-1.0"]) == 0
    float32, int8, page, difference = told.getvalue().splitlines()
    assert re.fullmatch(rf"{out}: float32, 0.\d MB \(encoder.onnx 0.\d, start.onnx 0.\d, step.onnx 0.\d\)", float32)
    assert int8.startswith(f"{page_model(out)}: int8, 0.")
    assert page.endswith(f"python3 -m http.server -d {root / 'site'}")
    assert re.fullmatch(r"the float graphs' logits are torch's to \de-0[678]", difference)
    return model, out


def page_model(out: Path) -> Path:
    """The files that the page loads."""
    return out.parent / "site" / "model"


def pictures() -> list[Image.Image]:
    random = np.random.default_rng(1)
    noise = [Image.fromarray(random.integers(0, 256, (40, 50, 3), np.uint8)) for _ in range(6)]
    return [*noise, Image.new("RGB", (64, 20), "red"), Image.new("L", (5, 90), 200)]


def test_words_probabilities_and_maps_are_torch_s(folders: tuple[Path, Path]) -> None:
    model, out = folders
    slow, fast = load(model, runtime="torch"), load(out)
    assert (slow.runtimes, fast.runtimes) == (["torch"], ["onnxruntime, float32"])
    assert fast.options == slow.options
    expected = slow.caption(pictures(), candidates=2, alternatives=3)
    found = fast.caption(pictures(), candidates=2, alternatives=3)
    assert len({caption.text for caption in found}) > 1
    for one, other in zip(found, expected):
        assert [caption.text for caption in (one, *one.others)] == [caption.text for caption in (other, *other.others)]
        assert one.score == pytest.approx(other.score, abs=1e-4)
        for word, wanted in zip(one.words, other.words):
            assert [token for token, _ in word.alternatives] == [token for token, _ in wanted.alternatives]
            np.testing.assert_allclose(word.attention, wanted.attention, atol=1e-5)


def test_sampling_draws_the_same_and_ensembles_mix(folders: tuple[Path, Path]) -> None:
    model, out = folders
    slow, fast, mixed = load(model, runtime="torch"), load(out), load(model, out, out)
    drawn = [caption.text for caption in slow.caption(pictures(), sample=True, seed=5)]
    assert [caption.text for caption in fast.caption(pictures(), sample=True, seed=5)] == drawn
    assert mixed.runtimes == ["torch", "onnxruntime, float32", "onnxruntime, float32"]
    plain = [caption.text for caption in slow.caption(pictures())]
    assert [caption.text for caption in mixed.caption(pictures())] == plain


def test_an_explanation_works_on_graphs(folders: tuple[Path, Path]) -> None:
    from sightline.explain import explain

    model, out = folders
    picture = pictures()[0]
    for occlusion in (False, True):
        expected, found = (explain(load(name), picture, occlusion) for name in (model, out))
        for one, other in zip(found.caption.words, expected.caption.words):
            np.testing.assert_allclose(one.attention, other.attention, atol=1e-4)


def test_the_manifest_says_all_a_page_needs(folders: tuple[Path, Path]) -> None:
    model, out = folders
    for folder, precision in ((out, "float32"), (page_model(out), "int8")):
        values = json.loads((folder / "sightline.json").read_text())
        assert (values["format"], values["precision"], values["licence"]) == ("sightline-onnx-1", precision, "CC0-1.0")
        assert values["tokenizer"] == json.loads((model / "tokenizer.json").read_text())
        assert values["decoding"] == {
            "beam": 2, "length_penalty": 0.7, "max_length": 9, "min_length": 0, "no_repeat_ngram": 2,
            "allow_unknown": False,
        }  # fmt: skip
        assert values["preprocess"] == json.loads((model / "config.json").read_text())["encoder"]["preprocess"]
        assert values["grid"] == [4, 4]
        assert values["graphs"]["encoder"]["inputs"] == {"pixels": ["float32", ["photos", 3, 32, 32]]}
        assert values["graphs"]["step"]["inputs"] == {
            "token": ["int64", ["rows"]],
            "photo.keys_0": ["float32", ["photos", 2, 17, 16]],
            "photo.values_0": ["float32", ["photos", 2, 17, 16]],
            "photo.strengths_0": ["float32", ["photos", 2, 17]],
            "beam.past": ["float32", ["rows", 1, 2, 2, "length", 16]],
        }
        assert values["graphs"]["step"]["outputs"] == {
            "logits": ["float32", ["rows", len(values["tokenizer"]["tokens"])]],
            "next.past": ["float32", ["rows", 1, 2, 2, "length + 1", 16]],
            "attention": ["float32", ["rows", 16]],
            "attention_by_head": ["float32", ["rows", 1, 2, 16]],
        }
        assert Manifest.read(folder).to_json() == values
        assert (folder / "README.md").read_text() == "# A card\n"


def test_graphs_use_standard_operators_alone(folders: tuple[Path, Path]) -> None:
    for file in [*folders[1].glob("*.onnx"), *page_model(folders[1]).glob("*.onnx")]:
        model = onnx.load(file)
        onnx.checker.check_model(model, full_check=True)
        assert [(own.domain, own.version) for own in model.opset_import] == [("", 20)]
        assert not model.functions
        assert {node.domain for node in model.graph.node} == {""}


# Eight bits


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
        *(open_session(own.SerializeToString()).run(None, token) for own in (small, large_graph))
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
            results = [open_session(own.SerializeToString()).run(None, token)[0] for own in (small, model)]
            assert np.isfinite(results[0]).all()
            assert int8 or (results[0] == results[1]).all()
    assert store_weights(exact, int8=False).ByteSize() < 0.51 * exact.ByteSize()


def test_the_page_s_files_say_nearly_the_same(folders: tuple[Path, Path]) -> None:
    model, out = folders
    small = load(page_model(out))
    assert small.runtimes == ["onnxruntime, int8"]
    expected = load(model, runtime="torch").caption(pictures())
    for one, other in zip(small.caption(pictures()), expected):
        assert one.score == pytest.approx(other.score, abs=0.2)
    sizes = [sum(file.stat().st_size for file in folder.glob("*.onnx")) for folder in (page_model(out), out)]
    assert sizes[0] < 0.75 * sizes[1]


# Which runtime


def test_a_folder_with_both_takes_onnxruntime_if_it_is_of_the_same_weights(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    both = tmp_path / "both"
    for folder in folders:
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
    assert load(both, runtime="onnx").runtimes == ["onnxruntime, float32"]  # its weights are its own


def test_what_cannot_run_is_said_in_one_line(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = folders
    with pytest.raises(CheckpointError, match=r"sightline.json is missing; run `sightline export`"):
        load(model, runtime="onnx")
    with pytest.raises(ConfigError, match=r"runtime is 'onxx' \(did you mean 'onnx'\?\); give auto, torch, onnx"):
        load(model, runtime="onxx")
    with pytest.raises(CheckpointError, match=r"config.json, model.safetensors, tokenizer.json missing"):
        load(out, runtime="torch")
    with pytest.raises(ConfigError, match="device is 'cuda' but an exported model runs on the CPU"):
        load(out, device="cuda")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match="needs onnxruntime: pip install onnxruntime"):
        load(out)


def test_an_exported_model_captions_without_torch(folders: tuple[Path, Path], tmp_path: Path) -> None:
    pictures()[0].save(tmp_path / "noise.png")
    script = (
        "import sys\nfrom sightline.cli import run\n"
        f"code = run(['caption', {str(tmp_path / 'noise.png')!r}, '--model', {str(folders[1])!r}])\n"
        "heavy = [name for name in ('torch', 'torchvision', 'timm', 'onnx', 'safetensors') if name in sys.modules]\n"
        "sys.exit(code or ' '.join(heavy) or 0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(captioner_module.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == load(folders[0]).caption(tmp_path / "noise.png").sentence()


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


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (_cut, "step.onnx has .* bytes, expected .*; copy the file again"),
    "flipped": (_flipped, "step.onnx is not the file that sightline.json names"),
    "gone": (lambda folder: (folder / "step.onnx").unlink(), "step.onnx cannot be read: No such file"),
    "pickle": (_foreign(b"\x80\x04\x95" * 20), "step.onnx is not a graph that onnxruntime can run"),
    "other files": (_foreign(_with_external_data()), "step.onnx wants other files read than sightline.json says"),
    "no such weights": (
        _reworded(lambda values: values["graphs"]["step"].update(outside=["a"])),
        "model.safetensors cannot be read",
    ),
    "outside": (_reworded(lambda values: values["graphs"]["step"].update(outside="a")), "outside is 'a'"),
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


@pytest.mark.parametrize("fault", FAULTS)
def test_a_spoilt_folder_is_refused_in_one_line(folders: tuple[Path, Path], tmp_path: Path, fault: str) -> None:
    spoil, message = FAULTS[fault]
    folder = tmp_path / "spoilt"
    shutil.copytree(folders[1], folder)
    spoil(folder)
    with pytest.raises(CheckpointError, match=message) as error:
        load(folder)
    assert "\n" not in str(error.value)


# The verb


def test_without_a_folder_to_write_it_writes_beside_the_weights(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graphs = {name: onnx.load(folders[1] / f"{name}.onnx") for name in ("encoder", "start", "step")}
    monkeypatch.setattr(export_module, "export_graphs", lambda model: graphs)  # made once is enough
    model = model_folder(tmp_path / "model")
    assert run(["export", str(model), "--licence", "CC0-1.0"]) == 0
    assert "MB beside the weights" in capsys.readouterr().out
    assert all(graph.outside for graph in Manifest.read(model).graphs.values())
    assert load(model).runtimes == ["onnxruntime, float32"]
    assert run(["export", str(model), "--int8"]) == 0
    assert load(model).runtimes == ["onnxruntime, int8"]
    assert Manifest.read(model).licence == "CC0-1.0"  # said once is enough
    assert run(["doctor", "--model", str(model)]) in (0, 1)
    assert "run by onnxruntime, int8" in capsys.readouterr().out
    assert run(["models", str(folders[1])]) == 0
    assert "patches" in capsys.readouterr().out
    pictures()[0].save(tmp_path / "noise.png")
    assert run(["caption", str(tmp_path / "noise.png"), "--model", str(model), "--runtime", "onyx"]) == 2
    assert "runtime is 'onyx' (did you mean 'onnx'?)" in capsys.readouterr().err


def test_exporting_says_what_is_not_installed(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ConfigError, match=r"exporting needs onnxscript: pip install onnxscript"):
        export(folders[0])


def test_graphs_that_differ_from_torch_are_not_written(folders: tuple[Path, Path]) -> None:
    files = {name: GraphFile((folders[1] / f"{name}.onnx").read_bytes(), {}) for name in ("encoder", "start", "step")}
    checkpoint = load_checkpoint(folders[0])
    assert compare(checkpoint, files) < 1e-5
    with torch.no_grad():
        checkpoint.model.decoder.output.bias[5] += 0.01
    with pytest.raises(CheckpointError, match="differ from torch by"):
        compare(checkpoint, files)
