"""A model folder gives back exactly the model, or one line says what is wrong with it; nothing in it is ever run."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import sightline
from sightline import checkpoint as module
from sightline import model_files
from sightline.captioner import Captioner, load
from sightline.checkpoint import (
    Checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from sightline.config import LstmDecoder, TransformerDecoder
from sightline.decoders import DECODERS, build_decoder
from sightline.encoders import build_encoder
from sightline.errors import CheckpointError, ConfigError, DataError, ImageError
from sightline.model import CaptionModel
from sightline.model_files import checkpoint_hash
from sightline.tokenizers import TOKENIZERS, Tokenizer, train_tokenizer
from sightline.types import Caption, Failure

TEXTS = ["a dog runs on the grass", "a red ball lies on the grass", "the dog's ball is red"]
LENGTH = 9
OPTIONS: dict[str, dict[str, Any]] = {
    "lstm": {"width": 8, "hidden": 8, "dropout": 0.5},
    "attention-lstm": {"width": 8, "hidden": 8, "attention": 8, "mode": "soft", "gate": True, "look": "expectation"},
    "transformer": {"width": 8, "heads": 2, "blocks": 1, "pooled": True, "tie_output": False, "dropout": 0.1},
}


def tokenizer(name: str = "word") -> Tokenizer:
    options = {"min_count": 1} if name == "word" else {}
    return train_tokenizer(name, TEXTS, max_length=LENGTH, **options)


def tiny(name: str = "transformer", text: str = "word", seed: int = 0, **options: Any) -> Checkpoint:
    torch.manual_seed(seed)
    words = tokenizer(text)
    encoder = build_encoder("patches", image_size=16, patch_size=8, width=8, heads=2, blocks=1)
    sizes = {"features": 8, "vocabulary": words.size, "max_length": LENGTH}
    decoder = build_decoder(name, **sizes, **OPTIONS[name] | options)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    model = CaptionModel(encoder, decoder).eval()
    return Checkpoint(model, words, {"beam": 2, "length_penalty": 0.5}, {"cider": 1.25}, 'title = "tiny"\n')


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "model", tiny())
    return tmp_path / "model"


def logits(model: CaptionModel) -> torch.Tensor:
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    tokens = torch.randint(4, 10, (4, 6), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return model(pixels, tokens).logits


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    return message


# There and back


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("text", TOKENIZERS)
def test_a_saved_model_comes_back_with_equal_logits(name: str, text: str, tmp_path: Path) -> None:
    saved = tiny(name, text)
    save_checkpoint(tmp_path, saved)
    loaded = load_checkpoint(tmp_path)
    assert torch.equal(logits(loaded.model), logits(saved.model))
    assert loaded.tokenizer.to_json() == saved.tokenizer.to_json()
    assert (loaded.decoding, loaded.metrics, loaded.recipe) == (saved.decoding, saved.metrics, saved.recipe)
    assert loaded.model.encoder.preprocess == saved.model.encoder.preprocess
    assert loaded.folder == tmp_path
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


def test_a_model_with_a_torchvision_encoder_comes_back_without_its_weights_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    words = tokenizer()
    encoder = build_encoder("alexnet", image_size=64, grid=2)
    sizes = {"features": encoder.dimension, "vocabulary": words.size, "max_length": LENGTH}
    model = CaptionModel(encoder, build_decoder("lstm", **sizes, **OPTIONS["lstm"])).eval()
    save_checkpoint(tmp_path, Checkpoint(model, words))
    loaded = load_checkpoint(tmp_path).model
    pixels, tokens = torch.randn(1, 3, 64, 64), torch.tensor([[1, 5, 6]])
    with torch.no_grad():
        assert torch.equal(loaded(pixels, tokens).logits, model(pixels, tokens).logits)
    assert (loaded.encoder.height, loaded.encoder.grid) == (2, 2)


def test_half_precision_halves_the_file_and_barely_moves_the_logits(tmp_path: Path) -> None:
    saved = tiny()
    save_checkpoint(tmp_path / "full", saved)
    save_checkpoint(tmp_path / "half", saved, half=True)
    sizes = [
        sum(t.nbytes for t in load_file(tmp_path / kind / "model.safetensors").values()) for kind in ("full", "half")
    ]
    assert sizes[1] == sizes[0] / 2
    loaded = load_checkpoint(tmp_path / "half").model
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    assert torch.allclose(logits(loaded), logits(saved.model), atol=0.05)
    assert not torch.equal(logits(loaded), logits(saved.model))


def test_tied_weights_are_saved_once_and_come_back_tied(tmp_path: Path) -> None:
    saved = tiny(tie_output=True)
    save_checkpoint(tmp_path, saved)
    names = load_file(tmp_path / "model.safetensors")
    assert "decoder.embedding.vectors.weight" in names
    assert "decoder.output.weight" not in names
    loaded = load_checkpoint(tmp_path).model
    assert torch.equal(logits(loaded), logits(saved.model))
    assert loaded.decoder.output.weight is loaded.decoder.embedding.vectors.weight


def test_saving_again_replaces_the_model_and_leaves_nothing_else(folder: Path) -> None:
    before = checkpoint_hash(folder)
    save_checkpoint(folder, tiny(seed=1))
    assert checkpoint_hash(folder) != before
    assert torch.equal(logits(load_checkpoint(folder).model), logits(tiny(seed=1).model))
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json", "metrics.json", "model.safetensors", "recipe.toml", "tokenizer.json"
    ]  # fmt: skip


def test_the_hash_names_the_weights(folder: Path, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "same", tiny())
    assert checkpoint_hash(folder) == checkpoint_hash(tmp_path / "same")


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_every_file_has_the_permissions_of_a_new_file(folder: Path) -> None:
    (folder / "new").touch()
    expected = (folder / "new").stat().st_mode
    assert [path.name for path in folder.iterdir() if path.stat().st_mode != expected] == []


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
    message = refusal(folder)
    assert fault in message
    assert "model.safetensors does not fit the model" in message


def test_all_misfits_are_told_at_once(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors)[:5]:
            del tensors[name]
        tensors["a"] = tensors["b"] = torch.zeros(1)
        tensors["b"] = torch.ones(1)

    change_tensors(folder, change)
    message = refusal(folder)
    assert "5 tensors missing" in message
    assert ", …)" in message
    assert "2 tensors too many (a, b)" in message


def test_a_truncated_or_damaged_weights_file_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for damaged in (b"", whole[:4], whole[:100], whole[:-1], whole[: len(whole) // 2], b"\xff" * 64, whole + b"\0"):
        path.write_bytes(damaged)
        assert "model.safetensors cannot be read" in refusal(folder)


def test_a_pickle_is_refused_and_never_run(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    class Trap:
        def __reduce__(self):
            return (Path.touch, (mark,))

    for payload in (pickle.dumps(Trap()), _torch_file(Trap())):
        (folder / "model.safetensors").write_bytes(payload)
        assert "model.safetensors cannot be read" in refusal(folder)
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
    assert "no such folder" in refusal(tmp_path / "nowhere")
    assert "no such folder" in refusal(folder / "config.json")
    (folder / "tokenizer.json").unlink()
    (folder / "model.safetensors").unlink()
    assert "model.safetensors, tokenizer.json missing" in refusal(folder)


def test_metrics_and_recipe_may_be_absent(folder: Path) -> None:
    (folder / "metrics.json").unlink()
    (folder / "recipe.toml").unlink()
    loaded = load_checkpoint(folder)
    assert (loaded.metrics, loaded.recipe) == ({}, "")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "metrics.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b"\xff\xfe{}", b"[" * 200_000, b'"x"'])
def test_a_damaged_json_file_is_named(name: str, content: bytes, folder: Path) -> None:
    (folder / name).write_bytes(content)
    message = refusal(folder)
    assert name in message
    assert "copy the file again" in message


def test_a_json_file_beyond_all_reason_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "LARGEST_JSON", 100)
    assert "config.json is larger than" in refusal(folder)


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
    refusal(folder)


@pytest.mark.parametrize("name", ["lstm", "attention-lstm"])
def test_a_field_of_a_wrong_type_is_refused_in_every_decoder(name: str, tmp_path: Path) -> None:
    for key in tiny(name).model.decoder.spec:
        save_checkpoint(tmp_path, tiny(name))
        tamper(tmp_path, lambda config, key=key: config["decoder"].update({key: ["x"]}))
        refusal(tmp_path)


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
        (lambda c: c.update(decoding={"max_length": 50}), "decoding.max_length is 50, more than the model's 9"),
    ],
)
def test_a_tampered_configuration_is_named(change: Callable, fault: str, folder: Path) -> None:
    tamper(folder, change)
    assert fault in refusal(folder)


def test_a_preprocess_that_does_not_fit_the_network_is_refused(folder: Path) -> None:
    tamper(folder, lambda config: config["encoder"]["preprocess"].update(size=32, resize=32))
    assert "preprocess.size is 32" in refusal(folder)


@pytest.mark.parametrize("shape", [3, [1, 2], ["a", "b", "c"], [256, 0, 3], "abc", None])
def test_a_tampered_grid_is_refused(shape: Any, tmp_path: Path) -> None:
    encoder = build_encoder("alexnet", image_size=64)
    words = tokenizer()
    sizes = {"features": encoder.dimension, "vocabulary": words.size, "max_length": LENGTH}
    save_checkpoint(tmp_path, Checkpoint(CaptionModel(encoder, build_decoder("lstm", **sizes, width=8)), words))
    load_checkpoint(tmp_path)
    tamper(tmp_path, lambda config: config["encoder"].update(shape=shape))
    assert "encoder.shape" in refusal(tmp_path)


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
    assert fault in refusal(folder)


def test_a_decoders_own_section_fits_what_is_saved() -> None:
    """The fields of a saved decoder are those of a recipe's section and the sizes that data and encoder decide."""
    for name, section in (("lstm", LstmDecoder), ("transformer", TransformerDecoder)):
        assert set(tiny(name).model.decoder.spec) - set(section.model_fields) == set(module.SIZES)


# A full disk


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
            "full",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (OSError(errno.EACCES, "Permission denied"), "not writable"),
        (safetensors.SafetensorError("something else"), "something else"),
    ],
)
def test_a_failed_save_leaves_the_old_weights(
    error: Exception, reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tensors: Any, path: Path, metadata: Any = None) -> None:
        Path(path).write_bytes(b"half a fi")
        raise error

    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(module, "save_file", fail)
    with pytest.raises(DataError, match=reason):
        save_checkpoint(folder, tiny(seed=1))
    assert (folder / "model.safetensors").read_bytes() == before["model.safetensors"]
    assert sorted(before) == sorted(path.name for path in folder.iterdir())
    assert torch.equal(logits(load_checkpoint(folder).model), logits(tiny().model))


@pytest.mark.skipif(os.name != "posix", reason="file size limits are POSIX's")
def test_a_save_cut_off_by_the_system_leaves_the_old_weights(folder: Path) -> None:
    """Really: a process that may write no file larger than 4 kB tries to overwrite one of 19 kB."""
    before = (folder / "model.safetensors").read_bytes()
    assert len(before) > 4096
    script = (
        "import resource, sys\n"
        "from sightline.checkpoint import load_checkpoint, save_checkpoint\n"
        "from sightline.errors import DataError\n"
        "loaded = load_checkpoint(sys.argv[1])\n"
        "loaded.model.decoder.norm.bias.add_(1)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    save_checkpoint(sys.argv[1], loaded)\n"
        "except DataError as error:\n"
        "    print(error)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(sightline.__file__).parents[1])}
    answer = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, timeout=120, env=environment
    )
    assert "cannot write" in answer.stdout
    assert "model.safetensors" in answer.stdout
    assert answer.returncode == 0, answer.stderr
    assert (folder / "model.safetensors").read_bytes() == before
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


# The captioner on top


@pytest.fixture
def captioner(folder: Path) -> Captioner:
    return load(folder)


def photo(seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (24, 30, 3), dtype=np.uint8))


def test_every_way_in_gives_the_same_words(captioner: Captioner, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    photo().save(path)
    sources = [path, str(path), path.read_bytes(), photo(), np.asarray(photo())]
    captions = [captioner.caption(source) for source in sources]
    assert captions[0].words
    assert {caption.text for caption in captions} == {captions[0].text}
    assert {caption.score for caption in captions} == {captions[0].score}
    assert [caption.source for caption in captions] == [str(path), str(path), "", "", ""]


def test_a_list_gives_a_list_in_order(captioner: Captioner) -> None:
    pictures = [photo(seed) for seed in range(5)]
    together = captioner.caption(pictures)
    assert isinstance(together, list)
    for caption, picture in zip(together, pictures, strict=True):
        alone = captioner.caption(picture)
        assert caption.text == alone.text
        assert caption.score == pytest.approx(alone.score, abs=1e-4)
    assert captioner.caption([]) == []
    assert len(captioner.caption([photo()])) == 1


def test_a_caption_tells_where_it_looked_and_how_sure_it_was(captioner: Captioner) -> None:
    caption = captioner.caption(photo(), alternatives=2)
    assert 0 < caption.confidence < 1
    for word in caption.words:
        assert 0 < word.probability < 1
        assert word.attention.shape == (2, 2)
        assert len(word.alternatives) == 2
    assert " ".join(word.text for word in caption.words) == caption.text
    assert caption.photo.size == (30, 24)  # undistorted, though the encoder sees a square


def test_an_encoder_without_places_gives_words_without_places(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tiny("lstm"))
    assert all(word.attention is None for word in load(tmp_path).caption(photo()).words)


def test_a_stream_reports_failures_in_place(captioner: Captioner, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    photo().save(good)
    bad.write_bytes(b"not a picture")
    sources = [good, bad, photo(1), tmp_path / "absent.png", b"", good]
    for batch_size in (1, 2, 16):
        results = list(captioner.stream(sources, batch_size=batch_size))
        assert [type(result) for result in results] == [Caption, Failure, Caption, Failure, Failure, Caption]
        assert results[0].text == results[-1].text
        assert results[1].source == str(bad)
        assert "not an image" in results[1].reason
        assert "does not exist" in results[3].reason
        assert results[0].photo is None


def test_a_stream_reads_no_further_than_it_must(captioner: Captioner) -> None:
    taken = []

    def sources():
        for number in range(100):
            taken.append(number)
            yield photo(number)

    next(captioner.stream(sources(), batch_size=4))
    assert len(taken) == 4


def test_the_first_bad_photo_raises(captioner: Captioner, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"absent\.png does not exist"):
        captioner.caption([photo(), tmp_path / "absent.png"])


def test_an_unknown_option_suggests_the_nearest(captioner: Captioner) -> None:
    with pytest.raises(ConfigError, match=r"unknown option 'beem' \(did you mean 'beam'\?\)"):
        captioner.caption(photo(), beem=3)
    with pytest.raises(ConfigError, match="beam is 0"):
        captioner.caption(photo(), beam=0)
    with pytest.raises(ConfigError, match="max_length is 10, this model's captions have at most 9"):
        captioner.caption(photo(), max_length=10)


def test_the_models_own_decoding_options_are_the_default(captioner: Captioner) -> None:
    assert (captioner.options.beam, captioner.options.length_penalty, captioner.options.max_length) == (2, 0.5, LENGTH)
    assert captioner.caption(photo()) == captioner.caption(photo(), beam=2, length_penalty=0.5)
    assert captioner.caption(photo()) != captioner.caption(photo(1))
    assert len(captioner.caption(photo(), max_length=4).words) <= 3
    assert len(captioner.caption(photo(), candidates=2).others) == 1


def test_several_models_of_one_vocabulary_act_together(tmp_path: Path) -> None:
    for seed in range(2):
        save_checkpoint(tmp_path / str(seed), tiny(seed=seed))
    save_checkpoint(tmp_path / "char", tiny(text="char"))
    alone, both = load(tmp_path / "0"), load(tmp_path / "0", tmp_path / "1")
    twice = load(tmp_path / "0", tmp_path / "0")
    assert twice.caption(photo()).text == alone.caption(photo()).text
    assert both.caption(photo()).score != pytest.approx(alone.caption(photo()).score)
    with pytest.raises(ConfigError, match="one vocabulary"):
        load(tmp_path / "0", tmp_path / "char")


def test_a_folder_that_does_not_exist_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        load(tmp_path / "nowhere")
