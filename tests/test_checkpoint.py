"""A model folder gives back exactly the model, whatever happens while it is written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from exporting import tiny_checkpoint
from safetensors.torch import load_file
from tiny_checkpoints import LENGTH, OPTIONS, logits, tiny, tokenizer

import sightline
from sightline.errors import DataError
from sightline.io.model_files import checkpoint_hash
from sightline.nn import checkpoint as module
from sightline.nn.checkpoint import CaptionModel, Checkpoint, load_checkpoint, save_checkpoint
from sightline.nn.decoders import DECODERS, build_decoder
from sightline.nn.encoders import build_encoder
from sightline.tokenizers import TOKENIZERS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "model", tiny())
    return tmp_path / "model"


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
    save_checkpoint(tmp_path / "half", saved, precision="float16")
    sizes = [
        sum(t.nbytes for t in load_file(tmp_path / kind / "model.safetensors").values()) for kind in ("full", "half")
    ]
    assert sizes[1] == sizes[0] / 2
    loaded = load_checkpoint(tmp_path / "half").model
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    assert torch.allclose(logits(loaded), logits(saved.model), atol=0.05)
    assert not torch.equal(logits(loaded), logits(saved.model))


def test_int8_is_a_quarter_and_saving_it_again_changes_nothing(tmp_path: Path) -> None:
    saved = tiny_checkpoint(width=256)
    with torch.no_grad():
        saved.model.decoder.photo.weight[3] = 0  # a row without numbers has no scale
    for kind in ("float32", "int8"):
        save_checkpoint(tmp_path / kind, saved, precision=kind)
    sizes = [(tmp_path / kind / "model.safetensors").stat().st_size for kind in ("float32", "int8")]
    assert sizes[1] < 0.3 * sizes[0]
    loaded = load_checkpoint(tmp_path / "int8")
    for (name, one), other in zip(loaded.model.state_dict().items(), saved.model.state_dict().values()):
        assert torch.allclose(one, other, atol=float(other.abs().max()) / 250), name
    save_checkpoint(tmp_path / "again", loaded, precision="int8")
    assert checkpoint_hash(tmp_path / "again") == checkpoint_hash(tmp_path / "int8")


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
        "from sightline.nn.checkpoint import load_checkpoint, save_checkpoint\n"
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
