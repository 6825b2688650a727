"""Bulk jobs on a real Ray cluster of two workers; `hostile/test_ray.py` kills them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bulking import ray_cluster

from sightline.bulk.inputs import JobPart
from sightline.bulk.job import caption_all
from sightline.bulk.job_folder import BulkOutput
from sightline.errors import ConfigError
from sightline.types import Failure


def test_without_ray_one_line_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'pip install "sightline-captions\[ray\]"'):
        caption_all([str(tmp_path)], BulkOutput(tmp_path / "a.csv", "csv", False), cluster="auto")
    assert list(tmp_path.iterdir()) == []


def test_parts_travel_as_text():
    from sightline.bulk.ray import part_from_text, part_to_text

    for part in (JobPart(3, ("a.jpg", Failure("b", "is bad"), "\udcff.jpg")), JobPart(0, shard="00000.tar")):
        assert part_from_text(part_to_text(part)) == part


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with ray_cluster() as address:
        yield address


def test_features_built_by_the_cluster_are_those_of_one_machine(
    cluster: str, tiny_flickr8k_kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from importlib import import_module

    from safetensors.torch import save_file

    from sightline.bulk.features import build_features, open_caches
    from sightline.recipes.config import load_recipe

    import_module("sightline.nn.torchvision_import")  # before timm
    import timm
    import torch

    save_file(timm.create_model("test_vit", pretrained=False).state_dict(), tmp_path / "vit.safetensors")
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(
        f'[encoder]\nname = "test_vit"\nweights = "{tmp_path}/vit.safetensors"\nimage_size = 32\n'
        '[tokenizer]\nname = "word"\nmin_count = 1\n'
        '[decoder]\nname = "transformer"\nwidth = 16\nheads = 2\nblocks = 1\n'
    )
    features = {}
    for name, address in (("here", None), ("there", cluster)):
        monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / name))
        (folder,) = build_features(str(recipe), [], [str(tiny_flickr8k_kept)], cluster=address)
        assert folder.is_relative_to(tmp_path / name)
        train, val = open_caches(load_recipe(str(recipe)), [str(tiny_flickr8k_kept)], "auto")
        assert (train.complete, val.complete, train.rows, val.rows) == (True, True, 8, 2)
        features[name] = torch.cat([train.features(range(8)).grid, val.features(range(2)).grid])
    assert torch.equal(features["here"], features["there"])
