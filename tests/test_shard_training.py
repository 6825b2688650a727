"""Training from tar shards: the same photos and captions as from a folder, features by shares, several machines."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import tarfile
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import tiny_recipe
from safetensors.torch import load_file, save_file

import sightline
from sightline.bulk.features import build_features, open_caches
from sightline.data import SPLITS, Dataset, load_dataset
from sightline.errors import ConfigError, DataError
from sightline.io.images import open_image
from sightline.recipes.config import load_recipe
from sightline.training.feature_cache import KEY, FeatureCache


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    import_module("sightline.nn.torchvision_import")  # before timm
    import timm

    save_file(timm.create_model("test_vit", pretrained=False).state_dict(), tmp_path / "vit.safetensors")
    path = tmp_path / "tiny.toml"
    path.write_text(tiny_recipe(f'name = "test_vit"\nweights = "{tmp_path}/vit.safetensors"\nimage_size = 32'))
    return path


@pytest.fixture(scope="module")
def published(tiny_flickr8k_kept: Path) -> Dataset:
    return load_dataset(tiny_flickr8k_kept)


@pytest.fixture(scope="module")
def shards(published: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Flickr8k as shards, a folder for each split; captions as text in one, as facts in the others."""
    root = tmp_path_factory.mktemp("shards")
    for split in SPLITS:
        (root / split).mkdir()
        with tarfile.open(root / split / "00000.tar", "w") as tar:
            for number, example in enumerate(published.examples(split)):
                text = "\n".join(example.captions).encode()
                if split != "train":
                    text = json.dumps({"captions": example.captions}).encode()
                for suffix, data in (
                    ("jpg", Path(str(example.image)).read_bytes()),
                    ("txt" if split == "train" else "json", text),
                ):
                    entry = tarfile.TarInfo(f"{number:06d}.{suffix}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
    return root


def test_shards_are_the_dataset_they_were_made_of(shards: Path, published: Dataset):
    dataset = load_dataset(shards)
    assert dataset.name == "shards"
    for split in SPLITS:
        found, expected = dataset.examples(split), published.examples(split)
        assert [example.captions for example in found] == [example.captions for example in expected]
        for one, other in zip(found, expected):
            assert np.array_equal(np.asarray(open_image(one.image)), np.asarray(open_image(other.image)))
    assert dataset.examples("val")[0].name == "val/00000.tar::000000.jpg"


def test_shards_without_captions_or_photos_are_one_line(tmp_path: Path):
    with tarfile.open(tmp_path / "00000.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("a.txt"))
    with pytest.raises(DataError, match="no photo lies in the shards"):
        load_dataset(tmp_path)


def test_features_by_shares_are_those_computed_at_once(published: Dataset, recipe: Path, tmp_path: Path):
    examples = published.examples("train")
    torch.manual_seed(0)
    (first, _) = open_caches(load_recipe(str(recipe), []), [str(published.root)], "auto")
    whole = FeatureCache(first.encoder, examples, root=tmp_path / "whole").fill(batch_size=3)
    shared = FeatureCache(first.encoder, examples, root=tmp_path / "shared")
    shared.fill(share=slice(5, 8))
    assert (shared.is_filled(slice(5, 8)), shared.is_filled(slice(0, 5)), shared.complete) == (True, False, False)
    shared.fill(share=slice(0, 5))
    assert shared.complete
    everyone = range(len(examples))
    assert torch.allclose(shared.features(everyone).grid, whole.features(everyone).grid, atol=1e-3)


def test_a_recipe_that_trains_its_encoder_has_no_features(recipe: Path, shards: Path):
    with pytest.raises(ConfigError, match="trains on pixels"):
        build_features(str(recipe), ["encoder.train=all"], [str(shards)])


def test_training_finds_the_features_built_ahead(recipe: Path, shards: Path, tmp_path: Path):
    from sightline.training.trainer import train

    (folder,) = build_features(str(recipe), [], [str(shards)])  # one encoder, one cache, whatever the split
    done = {path: path.stat().st_mtime_ns for path in folder.glob("*/*.f16")}
    assert sum(path.stat().st_size for path in folder.glob("*/keys.bin")) == 10 * KEY
    train(load_recipe(str(recipe)), shards, tmp_path / "run")
    assert sorted((tmp_path / "cache" / "features").iterdir()) == [folder]
    assert {path: path.stat().st_mtime_ns for path in done} == done


def run_as(machine: int, port: int, arguments: list[str]) -> subprocess.Popen[bytes]:
    """What torchrun starts on each of two machines."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(sightline.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
        "RANK": str(machine),
        "LOCAL_RANK": "0",
    }
    return subprocess.Popen([sys.executable, "-m", "sightline", *arguments], env=environment)


def test_two_machines_train_on_shards_as_one_does(recipe: Path, shards: Path, tmp_path: Path):
    from sightline.training.trainer import train

    changes = ["data.cache=false", "training.epochs=3"]
    train(load_recipe(str(recipe), changes), shards, tmp_path / "one")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["train", str(recipe), "--data", str(shards), "-o", str(tmp_path / "two")]
    arguments += [part for change in changes for part in ("--set", change)]
    machines = [run_as(machine, port, arguments) for machine in range(2)]
    assert [machine.wait(timeout=600) for machine in machines] == [0, 0]
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    apart = max(float((one[name].float() - two[name].float()).abs().max()) for name in one)
    assert apart < 2e-4, "training moves weights by far more"
