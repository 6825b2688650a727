"""How fast a frozen encoder's features are cached in each precision, against the plain float32 loop.

    python benchmarks/feature_cache.py PHOTOS/ [--encoder clip-vit-b16] [--weights FILE] [--photos 64] [--rounds 3]

The plain loop opens a photo, preprocesses it and runs the encoder on batches of 32 in float32. The cache does the same
in float32, bfloat16 and int8 (onnxruntime) and writes the features to disk. All run in one process, in turn; medians
are compared. Each int8 filling also writes its graph, some ten seconds of CLIP's time: give it a few hundred photos to
judge it by. Also printed: the mean cosine between the cached features and those of the plain loop.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch.nn import functional as F

from sightline.data import Example
from sightline.data.loader import view_pixels
from sightline.io.files import walk_images
from sightline.nn.encoders import Encoder, build_encoder
from sightline.training.feature_cache import PRECISIONS, FeatureCache

BATCH = 32


@torch.no_grad()
def plain(encoder: Encoder, examples: list[Example]) -> tuple[float, torch.Tensor]:
    began, grids = time.perf_counter(), []
    for start in range(0, len(examples), BATCH):
        batch = examples[start : start + BATCH]
        grids.append(encoder(torch.stack([view_pixels(encoder.preprocess, own.image, 0) for own in batch])).grid)
    return time.perf_counter() - began, torch.cat(grids)


def cached(encoder: Encoder, examples: list[Example], precision: str) -> tuple[float, torch.Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        FeatureCache(
            encoder, examples[:1], Path(folder), precision=precision
        ).fill()  # exporting the graph is not timed
        cache = FeatureCache(encoder, examples, Path(folder), precision=precision)
        began = time.perf_counter()
        cache.fill(batch_size=BATCH)
        seconds = time.perf_counter() - began
        return seconds, cache.features(range(len(examples))).grid


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("folder", type=Path, metavar="PHOTOS")
    reader.add_argument("--encoder", default="clip-vit-b16")
    reader.add_argument("--weights", default="random")
    reader.add_argument("--photos", type=int, default=64)
    reader.add_argument("--rounds", type=int, default=3)
    given = reader.parse_args()
    examples = [Example(path, (), path.name) for path in list(walk_images(given.folder))[: given.photos]]
    encoder = build_encoder(given.encoder, weights=given.weights, fit="squash").eval()
    seconds: dict[str, list[float]] = {name: [] for name in ("plain", *PRECISIONS)}
    cosine = {}
    for _ in range(given.rounds):
        spent, reference = plain(encoder, examples)
        seconds["plain"].append(spent)
        for precision in PRECISIONS:
            spent, grid = cached(encoder, examples, precision)
            seconds[precision].append(spent)
            cosine[precision] = float(F.cosine_similarity(grid, reference, dim=-1).mean())
    base = statistics.median(seconds["plain"])
    print(f"plain float32 loop: {1000 * base / len(examples):.0f} ms a photo")
    for precision in PRECISIONS:
        own = statistics.median(seconds[precision])
        print(f"cache, {precision}: {1000 * own / len(examples):.0f} ms a photo, {base / own:.2f} times as fast, "
              f"cosine {cosine[precision]:.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
