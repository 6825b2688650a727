"""One line says what is wrong with a model folder; nothing in it is ever run."""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_checkpoints import LENGTH, error_message, tiny, tokenizer

import sightline
from sightline.io import model_files
from sightline.nn import checkpoint as module
from sightline.nn.checkpoint import CaptionModel, Checkpoint, load_checkpoint, save_checkpoint
from sightline.nn.decoders import build_decoder
from sightline.nn.encoders import build_encoder
from sightline.recipes.config import LstmDecoder, TransformerDecoder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "model", tiny())
    return tmp_path / "model"


def test_a_run_without_a_finished_epoch_says_so(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert error_message(tmp_path) == f"'{tmp_path}' has no model yet: no epoch of this training run is finished"


# Weights that do not fit


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda t: t.pop("decoder.norm.weight"), "1 tensors missing (decoder.norm.weight)"),
        (lambda t: t.update(extra=torch.zeros(1)), "1 tensors too many (extra)"),
        (
            lambda t: t.update({"decoder.norm.weight": torch.zeros(9)}),
            "1 shapes differ (decoder.norm.weight is (9,), expected (8,))",
        ),
        (lambda t: t.update({"decoder.norm.weight": torch.zeros(8, 1)}), "is (8, 1), expected (8,)"),
    ],
)
def test_a_tensor_missing_extra_or_misshapen_is_named(change: Callable, fault: str, folder: Path) -> None:
    change_tensors(folder, change)
    message = error_message(folder)
    assert fault in message
    assert "model.safetensors does not fit the model" in message


def test_all_misfits_are_told_at_once(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors)[:5]:
            del tensors[name]
        tensors["a"] = tensors["b"] = torch.zeros(1)
        tensors["b"] = torch.ones(1)

    change_tensors(folder, change)
    message = error_message(folder)
    assert "5 tensors missing" in message
    assert ", …)" in message
    assert "2 tensors too many (a, b)" in message


def test_a_truncated_or_damaged_weights_file_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for damaged in (b"", whole[:4], whole[:100], whole[:-1], whole[: len(whole) // 2], b"\xff" * 64, whole + b"\0"):
        path.write_bytes(damaged)
        assert "model.safetensors cannot be read" in error_message(folder)


def test_a_pickle_is_refused_and_never_run(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    class Trap:
        def __reduce__(self):
            return (Path.touch, (mark,))

    for payload in (pickle.dumps(Trap()), _torch_file(Trap())):
        (folder / "model.safetensors").write_bytes(payload)
        assert "model.safetensors cannot be read" in error_message(folder)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Trap()))
    assert mark.exists(), "the trap works"


def _torch_file(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save({"weights": value}, buffer)
    return buffer.getvalue()


def test_nothing_in_the_package_unpickles() -> None:
    package = Path(sightline.__file__).parent
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for word in ("import pickle", r"torch\.load\(", "joblib", "allow_pickle=True", r"eval\(text", r"(?<!\w)exec\("):
            assert not re.search(word, text), f"{path.relative_to(package)} holds {word}"


# Folders and files


def test_an_incomplete_folder_says_what_is_missing(folder: Path, tmp_path: Path) -> None:
    assert "there is no model folder" in error_message(tmp_path / "nowhere")
    assert "there is no model folder" in error_message(folder / "config.json")
    (folder / "tokenizer.json").unlink()
    (folder / "model.safetensors").unlink()
    assert "model.safetensors, tokenizer.json missing" in error_message(folder)


def test_metrics_and_recipe_may_be_absent(folder: Path) -> None:
    (folder / "metrics.json").unlink()
    (folder / "recipe.toml").unlink()
    loaded = load_checkpoint(folder)
    assert (loaded.metrics, loaded.recipe) == ({}, "")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "metrics.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b"\xff\xfe{}", b"[" * 200_000, b'"x"'])
def test_a_damaged_json_file_is_named(name: str, content: bytes, folder: Path) -> None:
    (folder / name).write_bytes(content)
    message = error_message(folder)
    assert name in message
    assert "copy the file again" in message


def test_a_json_file_beyond_all_reason_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "LARGEST_JSON", 100)
    assert "config.json is larger than" in error_message(folder)


# A tampered configuration


def tamper(folder: Path, change: Callable[[dict[str, Any]], Any], name: str = "config.json") -> None:
    path = folder / name
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def wrong_fields() -> list[tuple[str, str, Any]]:
    """Every field of every saved part with each value that is not one of its own."""
    model = tiny().model
    parts = {"encoder": model.encoder.spec(), "decoder": model.decoder.spec}
    fields = [(part, key) for part, values in parts.items() for key in values if key != "preprocess"]
    values = ([], {}, "x", -1, 1.5, None, True, 10**12)
    fine = (("pooled", True), ("tie_output", True))
    return [(part, key, value) for part, key in fields for value in values if (key, value) not in fine]


@pytest.mark.parametrize(("part", "key", "value"), wrong_fields())
def test_a_field_of_a_wrong_type_or_size_is_refused(part: str, key: str, value: Any, folder: Path) -> None:
    tamper(folder, lambda config: config[part].update({key: value}))
    error_message(folder)


@pytest.mark.parametrize("name", ["lstm", "attention-lstm"])
def test_a_field_of_a_wrong_type_is_refused_in_every_decoder(name: str, tmp_path: Path) -> None:
    for key in tiny(name).model.decoder.spec:
        save_checkpoint(tmp_path, tiny(name))
        tamper(tmp_path, lambda config, key=key: config["decoder"].update({key: ["x"]}))
        error_message(tmp_path)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda c: c.update(format="sightline-2"), "format is 'sightline-2', this version reads 'sightline-1'"),
        (lambda c: c.pop("format"), "format is None"),
        (lambda c: c.update(surprise=1), "unknown key 'surprise'"),
        (lambda c: c.pop("encoder"), "'encoder' is missing"),
        (lambda c: c.pop("decoder"), "'decoder' is missing"),
        (lambda c: c.update(encoder=3), "does not describe a model"),
        (lambda c: c.update(decoder="lstm"), "does not describe a model"),
        (lambda c: c["decoder"].update(name="lsmt"), "decoder.name is 'lsmt' (did you mean 'lstm'?)"),
        (lambda c: c["decoder"].pop("name"), "decoder.name is missing"),
        (lambda c: c["decoder"].pop("vocabulary"), "'vocabulary' is missing"),
        (lambda c: c["decoder"].update(surprise=1), "unknown key 'decoder.surprise'"),
        (lambda c: c["decoder"].update(heads=3), "decoder.heads=3 does not divide decoder.width=8"),
        (lambda c: c["decoder"].update(vocabulary=99), "the model has 99 words, its tokenizer.json"),
        (lambda c: c["decoder"].update(max_length=12), "max_length is 12 in config.json, 9 in tokenizer.json"),
        (lambda c: c["decoder"].update(features=9), "decoder.features is 9, the encoder gives 8"),
        (lambda c: c["decoder"].update(width=16, word_dimension=16), "shapes differ"),
        (lambda c: c["decoder"].update(blocks=2), "tensors missing"),
        (lambda c: c["encoder"].update(surprise=1), "unknown key 'encoder.surprise'"),
        (lambda c: c["encoder"].update(name="vgg91"), "encoder"),
        (lambda c: c["encoder"].pop("preprocess"), "'preprocess' is missing"),
        (lambda c: c["encoder"]["preprocess"].pop("mean"), "preprocess.mean is missing"),
        (lambda c: c["encoder"]["preprocess"].update(size="x"), "preprocess.size is 'x'"),
        (lambda c: c["encoder"]["preprocess"].update(surprise=1), "preprocess.surprise is unknown"),
        (lambda c: c.update(decoding=[1]), "'decoding' does not fit"),
        (lambda c: c.update(decoding={"beem": 2}), "'decoding' does not fit"),
        (lambda c: c.update(decoding={"beam": "2"}), "beam is '2', give int"),
        (lambda c: c.update(decoding={"max_length": 50}), "max_length is 50, this model's captions have at most 9"),
    ],
)
def test_a_tampered_configuration_is_named(change: Callable, fault: str, folder: Path) -> None:
    tamper(folder, change)
    assert fault in error_message(folder)


def test_a_preprocess_that_does_not_fit_the_network_is_refused(folder: Path) -> None:
    tamper(folder, lambda config: config["encoder"]["preprocess"].update(size=32, resize=32))
    assert "preprocess.size is 32" in error_message(folder)


@pytest.mark.parametrize("shape", [3, [1, 2], ["a", "b", "c"], [256, 0, 3], "abc", None])
def test_a_tampered_grid_is_refused(shape: Any, tmp_path: Path) -> None:
    encoder = build_encoder("alexnet", image_size=64)
    words = tokenizer()
    sizes = {"features": encoder.dimension, "vocabulary": words.size, "max_length": LENGTH}
    save_checkpoint(tmp_path, Checkpoint(CaptionModel(encoder, build_decoder("lstm", **sizes, width=8)), words))
    load_checkpoint(tmp_path)
    tamper(tmp_path, lambda config: config["encoder"].update(shape=shape))
    assert "encoder.shape" in error_message(tmp_path)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda t: t.update(name="words"), "the saved tokenizer is named 'words'"),
        (lambda t: t["tokens"].pop(), "they do not belong together"),
        (lambda t: t.update(max_length="9"), "'max_length' is '9'"),
        (lambda t: t.update(surprise=1), "'surprise' is not a known key"),
    ],
)
def test_a_tampered_vocabulary_is_named(change: Callable, fault: str, folder: Path) -> None:
    tamper(folder, change, "tokenizer.json")
    assert fault in error_message(folder)


def test_a_decoders_own_section_fits_what_is_saved() -> None:
    """The fields of a saved decoder are those of a recipe's section and the sizes that data and encoder decide."""
    for name, section in (("lstm", LstmDecoder), ("transformer", TransformerDecoder)):
        assert set(tiny(name).model.decoder.spec) - set(section.model_fields) == set(module.SIZES)


@pytest.mark.parametrize("change", [{"blocks": 1000}, {"name": "vit_tiny_patch16_224", "options": {"depth": 20_000}}])
def test_a_config_that_asks_for_more_layers_than_the_weights_have_is_refused_before_they_are_built(
    folder: Path, change: dict[str, Any]
) -> None:
    def deeper(config: dict[str, Any]) -> None:
        old = config["encoder"]
        config["encoder"] = (old if "blocks" in change else {"preprocess": old["preprocess"]}) | change

    tamper(folder, deeper)
    message = error_message(folder)
    assert "asks for far more weights than the" in message or ("options" in change and "(ConfigError)" in message)
