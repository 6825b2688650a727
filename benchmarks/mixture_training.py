"""What an epoch costs as a dataset grows, and what a mixture costs: seconds per caption and memory.

    python benchmarks/mixture_training.py [--photos 5000 10000 20000 40000] [--steps 60]

Photos are random features of CLIP's size (7x7 cells of 768 numbers in half precision, memory-mapped), captions are
random words, the decoder is that of the recipe clip-coco. One source has five captions a photo. The mixture has five
for half of its photos and one for the others. Timed are ``--steps`` batches, spread over an epoch; an epoch's cost is
their mean times its number of batches.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from sightline.data.loader import CaptionLoader
from sightline.nn.decoders import build_decoder, build_embedding
from sightline.recipes.config import load_recipe
from sightline.training.objectives.base import token_losses
from sightline.types import ImageFeatures

CELLS, DIMENSION, VOCABULARY = 49, 768, 8000


class Features:
    """A memory-mapped file of random features, read as the cache reads them."""

    def __init__(self, folder: Path, photos: int):
        self.grid = np.memmap(folder / f"{photos}.f16", np.float16, "w+", shape=(photos, CELLS, DIMENSION))
        for start in range(0, photos, 1000):
            part = self.grid[start : start + 1000]
            part[:] = np.random.default_rng(start).standard_normal(part.shape, np.float32)

    def __call__(self, rows: list[int], rng: random.Random) -> ImageFeatures:
        grid = torch.from_numpy(self.grid[np.asarray(rows)]).float()
        return ImageFeatures(grid, grid.mean(1), 7, 7)


def captions(count: int, rng: random.Random) -> list[list[int]]:
    return [[1, *(rng.randrange(4, VOCABULARY) for _ in range(rng.randint(7, 13))), 2] for _ in range(count)]


def measure(features: Features, counts: list[int], steps: int) -> tuple[float, int]:
    """Seconds per caption, and the captions of an epoch."""
    rng = random.Random(0)
    recipe = load_recipe("clip-coco")
    loader = CaptionLoader(
        [captions(count, rng) for count in counts],
        features,
        batch_size=recipe.training.batch_size,
        choice="random",
        per_photo=recipe.data.captions_per_photo,
    )
    options = recipe.decoder.options()
    embedding = build_embedding(
        words=[str(i) for i in range(VOCABULARY)], width=options["width"], **recipe.embedding.model_dump()
    )
    decoder = build_decoder(
        "transformer", features=DIMENSION, vocabulary=VOCABULARY, max_length=22, embedding=embedding, **options
    )
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-4, fused=True)
    every = max(1, len(loader) // steps)
    seconds, done = 0.0, 0
    plan = loader._plan(0)
    for number in range(0, len(plan), every):
        began = time.perf_counter()
        batch = loader.build(0, number, plan[number])
        with torch.autocast("cpu", torch.bfloat16):
            output = decoder(batch.photos, batch.tokens[:, :-1])
        loss, _, _ = token_losses(output, batch.tokens, 0, 0.1)
        (loss.sum() / batch.token_count).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds += time.perf_counter() - began
        done += int(batch.caption_count)
    return seconds / done, sum(len(picks) for own in plan for _, picks in own)


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--photos", type=int, nargs="+", default=[5000, 10000, 20000, 40000])
    reader.add_argument("--steps", type=int, default=60)
    given = reader.parse_args()
    for photos in given.photos:
        with tempfile.TemporaryDirectory() as folder:
            features = Features(Path(folder), photos)
            one, of_one = measure(features, [5] * photos, given.steps)
            mixed, of_mixed = measure(features, [5, 1] * (photos // 2), given.steps)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{photos:,} photos: one source {1000 * one:.1f} ms a caption, an epoch {one * of_one / 60:.1f} minutes; "
            f"mixture {1000 * mixed:.1f} ms, {mixed * of_mixed / 60:.1f} minutes; peak memory {memory:.0f} MB"
        )


if __name__ == "__main__":
    main()
