"""Exported graphs compute what torch computes, whatever the decoder, the number of photos and of captions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from exporting import model_folder, page_model, pictures

from sightline.cli import run
from sightline.decoding import DecodingOptions, decode
from sightline.engine.backend import OnnxDecoder
from sightline.engine.captioner import load
from sightline.engine.torch_backend import TorchDecoder
from sightline.errors import CheckpointError, ConfigError
from sightline.explain.explanation import teacher_forced
from sightline.nn.checkpoint import load_checkpoint
from sightline.nn.decoders import DECODERS, Decoder, build_decoder
from sightline.onnx import Manifest
from sightline.onnx import export as export_module
from sightline.onnx.export import GraphFile, compare, export
from sightline.onnx.exported import open_session
from sightline.onnx.graphs import decoder_graphs
from sightline.serve.browser import has_small_graphs
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
        "attend": "most-likely",
    },
    "transformer": {"name": "transformer", "width": 16, "heads": 2, "blocks": 1, "pooled": False, "tie_output": True},
    "evidence": {"name": "transformer", "width": 16, "heads": 2, "blocks": 2, "attention_maps": "evidence"},
}
VOCABULARY, LENGTH, CELLS, DEPTH = 30, 9, 6, 10


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
    grid = torch.randn(count, CELLS, DEPTH, generator=generator)
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
    decoder, graphs = exported
    features, options = photos(count, seed=count), DecodingOptions(beam=beam, candidates=beam, max_length=LENGTH)
    reference, found = decode(TorchDecoder(decoder), features, options), decode(graphs, as_arrays(features), options)
    for expected, photo in zip(reference, found):
        assert [caption.tokens for caption in photo] == [caption.tokens for caption in expected]
        for one, other in zip(photo, expected):
            assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)
            for values, wanted in ((one.attention, other.attention), (one.gate, other.gate)):
                assert (values is None) == (wanted is None)
                if values is not None:
                    np.testing.assert_allclose(values, wanted, atol=1e-5)


def test_exported_heads_are_torch_s(exported) -> None:
    decoder, graphs = exported
    features, tokens = photos(3), (5, 7, 9, 11)
    expected = teacher_forced(TorchDecoder(decoder), features, tokens).extras
    found = teacher_forced(graphs, as_arrays(features), tokens).extras
    assert found.keys() == expected.keys()
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], atol=1e-5)


def test_words_probabilities_and_maps_are_torch_s(exported_folders: tuple[Path, Path]) -> None:
    model, out = exported_folders
    slow, fast = load(model, runtime="torch"), load(out)
    assert (slow.runtimes, fast.runtimes) == (["torch"], ["onnxruntime, float32"])
    assert fast.defaults == slow.defaults
    expected = slow.caption(pictures(), candidates=2, alternatives=3)
    found = fast.caption(pictures(), candidates=2, alternatives=3)
    assert len({caption.text for caption in found}) > 1
    for one, other in zip(found, expected):
        assert [caption.text for caption in (one, *one.others)] == [caption.text for caption in (other, *other.others)]
        assert one.score == pytest.approx(other.score, abs=1e-4)
        for word, wanted in zip(one.words, other.words):
            assert [token for token, _ in word.alternatives] == [token for token, _ in wanted.alternatives]
            np.testing.assert_allclose(word.attention, wanted.attention, atol=1e-5)


def test_sampling_draws_the_same_and_ensembles_mix(exported_folders: tuple[Path, Path]) -> None:
    model, out = exported_folders
    slow, fast, mixed = load(model, runtime="torch"), load(out), load(model, out, out)
    sampled = [caption.text for caption in slow.caption(pictures(), sample=True, seed=5)]
    assert [caption.text for caption in fast.caption(pictures(), sample=True, seed=5)] == sampled
    assert mixed.runtimes == ["torch", "onnxruntime, float32", "onnxruntime, float32"]
    plain = [caption.text for caption in slow.caption(pictures())]
    assert [caption.text for caption in mixed.caption(pictures())] == plain


def test_an_explanation_works_on_graphs(exported_folders: tuple[Path, Path]) -> None:
    from sightline.explain import explain

    model, out = exported_folders
    picture = pictures()[0]
    for occlusion in (False, True):
        expected, found = (explain(load(name), picture, occlusion) for name in (model, out))
        for one, other in zip(found.caption.words, expected.caption.words):
            np.testing.assert_allclose(one.attention, other.attention, atol=1e-4)


def test_the_manifest_says_all_a_page_needs(exported_folders: tuple[Path, Path]) -> None:
    model, out = exported_folders
    for folder, precision in ((out, "float32"), (page_model(out), "int8")):
        values = json.loads((folder / "sightline.json").read_text())
        assert (values["format"], values["precision"], values["licence"]) == ("sightline-onnx-1", precision, "CC0-1.0")
        assert values["tokenizer"] == json.loads((model / "tokenizer.json").read_text())
        assert values["decoding"] == {
            "beam": 2, "length_penalty": 0.7, "max_length": 9, "min_length": 0, "no_repeat_ngram": 2,
            "no_repeat_words": False, "allow_unknown": False,
        }  # fmt: skip
        assert "word_groups" not in values
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


def test_graphs_use_standard_operators_alone(exported_folders: tuple[Path, Path]) -> None:
    for file in [*exported_folders[1].glob("*.onnx"), *page_model(exported_folders[1]).glob("*.onnx")]:
        model = onnx.load(file)
        onnx.checker.check_model(model, full_check=True)
        assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 20)]
        assert not model.functions
        assert {node.domain for node in model.graph.node} == {""}


# The verb


def test_without_an_output_folder_it_writes_to_the_model_folder(
    exported_folders: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:

    def ready_made(model: object) -> dict[str, onnx.ModelProto]:  # made once is enough
        return {name: onnx.load(exported_folders[1] / f"{name}.onnx") for name in ("encoder", "start", "step")}

    monkeypatch.setattr(export_module, "export_graphs", ready_made)
    model = model_folder(tmp_path / "model")
    assert run(["export", str(model), "--licence", "CC0-1.0"]) == 0
    assert "MB of external weights" in capsys.readouterr().out
    assert all(graph.external_data for graph in Manifest.read(model).graphs.values())
    assert load(model).runtimes == ["onnxruntime, float32"]
    assert run(["export", str(model), "--int8"]) == 0
    assert load(model).runtimes == ["onnxruntime, int8"]
    assert Manifest.read(model).licence == "CC0-1.0"  # kept from the first export
    assert has_small_graphs(model)
    assert run(["export", str(model), "--int8-arithmetic"]) == 0
    assert not has_small_graphs(model), "they share the model's weights in float32"
    (tmp_path / "graphs").mkdir()
    (tmp_path / "graphs/confidence.json").write_text("of a model that was exported here before")
    assert run(["export", str(model), "--output", str(tmp_path / "graphs")]) == 0
    assert not (tmp_path / "graphs/confidence.json").exists()
    assert run(["doctor", "--model", str(model)]) in (0, 1)
    assert "run by onnxruntime, int8" in capsys.readouterr().out
    assert run(["models", str(exported_folders[1])]) == 0
    assert "patches" in capsys.readouterr().out
    pictures()[0].save(tmp_path / "noise.png")
    assert run(["caption", str(tmp_path / "noise.png"), "--model", str(model), "--runtime", "onyx"]) == 2
    assert "runtime is 'onyx' (did you mean 'onnx'?)" in capsys.readouterr().err


def test_exporting_says_what_is_not_installed(
    exported_folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ConfigError, match=r'exporting needs onnxscript: pip install "sightline-captions\[onnx\]"'):
        export(exported_folders[0])


def test_graphs_that_differ_from_torch_are_not_written(exported_folders: tuple[Path, Path]) -> None:
    files = {
        name: GraphFile((exported_folders[1] / f"{name}.onnx").read_bytes(), {})
        for name in ("encoder", "start", "step")
    }
    checkpoint = load_checkpoint(exported_folders[0])
    assert compare(checkpoint, files) < 1e-5
    with torch.no_grad():
        checkpoint.model.decoder.output.bias[5] += 0.01
    with pytest.raises(CheckpointError, match="differ from torch by"):
        compare(checkpoint, files)
