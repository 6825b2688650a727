"""The features a recipe trains on, computed ahead of training: on this machine, or by all machines of a Ray cluster.

Training finds them under the same name, so that ``torchrun`` on many machines starts at once. The cache must lie where
all machines see it (``SIGHTLINE_CACHE``). Machines write to one file, each its own rows; a share of 4,096 rows begins
and ends at a page of memory whatever a row's size, so no two ever touch the same page.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from sightline.bulk.ray import connect, own_error
from sightline.data import load_dataset
from sightline.errors import ConfigError
from sightline.io.progress import meter
from sightline.recipes.config import Recipe, load_recipe
from sightline.training.feature_cache import FeatureCache
from sightline.training.setup import build_model, build_tokenizer, feature_cache, first_of_each_source

log = logging.getLogger("sightline.bulk")
SHARE = 4096
SPLITS = ("train", "val")  # test is captioned from the photos themselves


def build_features(
    recipe: str, changes: list[str], data: str, format: str = "auto", cluster: str | None = None
) -> list[Path]:
    """Fill the caches of a recipe on a dataset; returns their folders. Called again, it continues."""
    caches = open_caches(load_recipe(recipe, changes), data, format)
    if cluster is None:
        for cache in caches:
            cache.fill()
    else:
        plan = {"recipe": recipe, "changes": changes, "data": str(Path(data).absolute()), "format": format}
        _on_cluster(caches, plan, cluster)
    return [cache.folder for cache in caches]


def open_caches(recipe: Recipe, data: str, format: str) -> list[FeatureCache]:
    """One for each split; made if they are not there."""
    dataset = load_dataset(data, format)
    model = build_model(recipe, build_tokenizer(recipe, dataset))
    caches = []
    for split in SPLITS:
        examples = dataset.examples(split)
        if split == "val":
            examples = first_of_each_source(examples, recipe.training.val_photos)
        cache = feature_cache(model, examples, recipe, augment=recipe.data.augment and split == "train")
        if cache is None:
            raise ConfigError(f"{recipe.title or 'this recipe'} trains on pixels: there are no features to keep")
        caches.append(cache)
    return caches


class FillShares:
    """What an actor is: the encoder on a device, and all caches open. Ray Data calls it."""

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
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = ray.data.from_items(shares, override_num_blocks=len(shares))
    answers = rows.map_batches(
        FillShares, fn_constructor_args=[plan], batch_size=1, concurrency=(1, actors), **resources
    )
    total = sum(min(SHARE, caches[share["cache"]].rows - share["first"]) for share in shares)
    done = 0
    with meter("features", unit="photos") as tell:
        try:
            for answer in answers.iter_rows():
                done += int(answer["rows"])
                tell(done, total)
        except ray.exceptions.RayError as error:
            raise own_error(error) from error
