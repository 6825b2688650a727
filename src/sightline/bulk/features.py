"""The features a recipe trains on, computed ahead of training: on this machine, or by all machines of a Ray cluster.

Training reads them from the cache, so that ``torchrun`` on many machines starts at once. All machines must see the
cache (``SIGHTLINE_CACHE``); each appends to a segment of its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sightline.bulk.ray import connect, map_on_actors
from sightline.data import load_datasets
from sightline.errors import ConfigError
from sightline.io.progress import meter
from sightline.recipes.config import Recipe, load_recipe
from sightline.training.feature_cache import FeatureCache
from sightline.training.setup import build_model, build_tokenizer, feature_cache, photos_of

SHARE = 4096  # photos (or views) that an actor encodes at a time
SPLITS = ("train", "val")  # test is captioned from the photos themselves


def build_features(
    recipe: str, changes: list[str], data: Sequence[str], format: str = "auto", cluster: str | None = None
) -> list[Path]:
    """Fill the cache of a recipe on one dataset or several; returns its folders. Called again, it continues."""
    caches = open_caches(load_recipe(recipe, changes), data, format)
    if cluster is None:
        for cache in caches:
            cache.fill()
    else:
        plan = {"recipe": recipe, "changes": changes, "format": format}
        plan["data"] = [str(Path(source).absolute()) for source in data]
        _on_cluster(caches, plan, cluster)
    return list(dict.fromkeys(cache.folder for cache in caches))  # splits share a folder


def open_caches(recipe: Recipe, data: Sequence[str], format: str) -> list[FeatureCache]:
    """A cache for each split, created where it does not exist."""
    dataset = load_datasets(data, format)
    model = build_model(recipe, build_tokenizer(recipe, dataset))
    caches = []
    for split in SPLITS:
        examples = photos_of(recipe, dataset, split)
        cache = feature_cache(model, examples, recipe, augment=recipe.data.augment and split == "train")
        if cache is None:
            raise ConfigError(f"{recipe.title or 'this recipe'} trains on pixels: there are no features to keep")
        caches.append(cache)
    return caches


class FillShares:
    """An actor of Ray Data: the encoder on a device, and all caches open."""

    def __init__(self, plan: dict[str, Any]):
        os.environ["SIGHTLINE_CACHE"] = plan["cache"]
        os.chdir(plan["here"])
        self.device = plan["device"]
        self.caches = open_caches(load_recipe(plan["recipe"], plan["changes"]), plan["data"], plan["format"])
        folders = [str(cache.folder) for cache in self.caches]
        if folders != plan["folders"]:
            raise ConfigError("this machine sees other photos or weights than the one that began: share the same files")

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[int]]:
        rows = []
        for number, first in zip(batch["cache"].tolist(), batch["first"].tolist()):
            self.caches[number].fill(device=self.device, share=slice(first, first + SHARE))
            rows.append(min(SHARE, self.caches[number].rows - first))
        return {"rows": rows}


def _on_cluster(caches: list[FeatureCache], plan: dict[str, Any], address: str) -> None:
    shares = [
        {"cache": number, "first": first}
        for number, cache in enumerate(caches)
        for first in range(0, cache.rows, SHARE)
        if not cache.is_filled(slice(first, first + SHARE))
    ]
    if not shares:
        return
    ray = connect(address)
    have = ray.cluster_resources()
    gpus = int(have.get("GPU", 0))
    actors = min(len(shares), gpus or int(have.get("CPU", 1)))
    plan |= {
        "here": str(Path.cwd()),
        "cache": str(caches[0].folder.parent.parent),
        "folders": [str(cache.folder) for cache in caches],
        "device": "cuda" if gpus else "cpu",
    }
    resources = {"num_gpus": 1} if gpus else {"num_cpus": 1}
    total = sum(min(SHARE, caches[share["cache"]].rows - share["first"]) for share in shares)
    done = 0
    with meter("features", unit="photos") as update:
        for row in map_on_actors(ray, FillShares, plan, shares, actors, resources):
            done += int(row["rows"])
            update(done, total)
