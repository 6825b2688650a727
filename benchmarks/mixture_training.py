"""What an epoch costs as a dataset grows, and what a mixture costs: processor time per caption and memory.

    python benchmarks/mixture_training.py [--photos 5000 10000 20000 40000] [--steps 60] [--plot mixture.png]

Photos are random features of CLIP's size (7x7 cells of 768 numbers in half precision, memory-mapped), captions are
random words, the decoder is that of the recipe clip-coco. One source has five captions a photo. The mixture has five
for half of its photos and one for the others. Timed are ``--steps`` batches of each, in turn, spread over an epoch; an
epoch's cost is their mean times its number of batches.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from multiprocessing import get_context
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


class Run:
    """A training run on photos with these numbers of captions, one batch at a time."""

    def __init__(self, features: Features, counts: list[int], steps: int):
        rng = random.Random(0)
        recipe = load_recipe("clip-coco")
        self.loader = CaptionLoader(
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
        self.decoder = build_decoder(
            "transformer", features=DIMENSION, vocabulary=VOCABULARY, max_length=22, embedding=embedding, **options
        )
        self.optimizer = torch.optim.AdamW(self.decoder.parameters(), lr=1e-4, fused=True)
        self.plan = self.loader._plan(0)
        self.todo = list(range(0, len(self.plan), max(1, len(self.plan) // steps)))[:steps]
        self.captions = sum(len(picks) for own in self.plan for _, picks in own)
        self.seconds, self.done = 0.0, 0

    def step(self, number: int) -> None:
        began = time.process_time()
        batch = self.loader.build(0, number, self.plan[number])
        with torch.autocast("cpu", torch.bfloat16):
            output = self.decoder(batch.photos, batch.tokens[:, :-1])
        loss, _, _ = token_losses(output, batch.tokens, 0, 0.1)
        (loss.sum() / batch.token_count).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seconds += time.process_time() - began
        self.done += int(batch.caption_count)

    @property
    def caption_ms(self) -> float:
        return 1000 * self.seconds / self.done

    @property
    def epoch_minutes(self) -> float:
        return self.seconds / self.done * self.captions / 60


def plot(rows: list[dict[str, float]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (cost, memory) = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for captions, run in (("captions", "one source"), ("mixed captions", "mixture")):
        cost.plot([row[captions] / 1000 for row in rows], [row[run] for row in rows], "o-", label=run)
    cost.set(xlabel="thousand captions in an epoch", ylabel="processor minutes an epoch", xlim=0, ylim=0)
    cost.legend()
    memory.plot([row["photos"] / 1000 for row in rows], [row["memory"] for row in rows], "o-")
    memory.set(xlabel="thousand photos", ylabel="private memory, MB", xlim=0, ylim=(0, 2000))
    figure.savefig(path, dpi=130)


def private_memory() -> float:
    """Megabytes of the process without the pages of memory-mapped features, which the system can drop at any time."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) / 1024


def measure(photos: int, steps: int) -> dict[str, float]:
    """One size, in a process of its own: memory that an earlier size used would count as well."""
    with tempfile.TemporaryDirectory() as folder:
        features = Features(Path(folder), photos)
        one = Run(features, [5] * photos, steps)
        mixed = Run(features, [5, 1] * (photos // 2), steps)
        for own, other in zip(one.todo, mixed.todo):
            one.step(own)
            mixed.step(other)
    memory = private_memory()
    print(
        f"{photos:,} photos: one source {one.caption_ms:.2f} ms a caption, an epoch {one.epoch_minutes:.1f} minutes; "
        f"mixture {mixed.caption_ms:.2f} ms, {mixed.epoch_minutes:.1f} minutes; memory {memory:.0f} MB",
        flush=True,
    )
    return {
        "photos": photos, "memory": memory, "captions": one.captions, "one source": one.epoch_minutes,
        "mixed captions": mixed.captions, "mixture": mixed.epoch_minutes,
    }  # fmt: skip


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--photos", type=int, nargs="+", default=[5000, 10000, 20000, 40000])
    reader.add_argument("--steps", type=int, default=60)
    reader.add_argument("--plot", metavar="FILE.png")
    given = reader.parse_args()
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        rows = [pool.apply(measure, (photos, given.steps)) for photos in given.photos]
    if given.plot:
        plot(rows, given.plot)


if __name__ == "__main__":
    main()
