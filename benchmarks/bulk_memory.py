"""Memory of a bulk job does not grow with the number of photos: peaks at 1,000, 10,000 and 100,000 of them.

    python benchmarks/bulk_memory.py PHOTOS/ [--counts 1000 10000 100000] [--work FOLDER]

Small crops of the photos are made first, each with a name of its own; a tiny untrained model captions them, so that the
time goes into what a bulk job does around the model. The peak is that of the main process, which holds everything that
could grow; workers come on top and hold one photo each.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path

TEXT = ["a dog runs on the grass", "two people stand on a beach", "a child in a red shirt plays"]


def make_crops(source: Path, target: Path, count: int) -> None:
    from sightline.bulk.inputs import find_inputs
    from sightline.io.images import open_image

    rng, made = random.Random(0), 0
    for name in cycle(list(find_inputs([str(source)]))):
        image = open_image(str(name))
        for _ in range(25):
            left, top = (rng.randrange(max(1, side - 64)) for side in image.size)
            path = target / f"{made // 1000:03d}" / f"{made:06d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.crop((left, top, left + 64, top + 64)).save(path)
            made += 1
            if made == count:
                return


def make_model(folder: Path) -> None:
    import torch

    from sightline.nn.checkpoint import CaptionModel, Checkpoint, save_checkpoint
    from sightline.nn.decoders import build_decoder
    from sightline.nn.encoders import build_encoder
    from sightline.tokenizers import train_tokenizer

    torch.manual_seed(0)
    tokenizer = train_tokenizer("word", TEXT, min_count=1, max_length=10)
    encoder = build_encoder("patches", image_size=32, patch_size=8, width=32, blocks=1, heads=2)
    decoder = build_decoder(
        "transformer", features=32, vocabulary=tokenizer.size, max_length=10, width=32, heads=2, blocks=1
    )
    save_checkpoint(folder, Checkpoint(CaptionModel(encoder, decoder), tokenizer, {"beam": 1}))


def run(photos: str, model: str, output: str) -> None:
    """One job in a process of its own, which tells its own peak."""
    from sightline.bulk.job import BulkOptions, caption_all
    from sightline.bulk.job_folder import BulkOutput

    began = time.monotonic()
    summary = caption_all(
        [photos], BulkOutput(Path(output), "parquet", False), [model], BulkOptions(batch_size=64, workers=1)
    )
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    rate = summary.photos / (time.monotonic() - began)
    print(f"{summary.photos:>10,}{int(peak.split()[1]) / 1024:>12.0f}{rate:>12.0f}{summary.failed:>8}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--counts", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--work", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.work or Path(temporary)).absolute()
        make_model(work / "model")
        print(f"{'photos':>10}{'peak, MB':>12}{'photos/s':>12}{'failed':>8}", flush=True)
        for count in options.counts:
            photos, output = work / f"crops-{count}", work / f"captions-{count}.parquet"
            if not photos.exists():
                make_crops(options.folder, photos, count)
            code = f"import bulk_memory; bulk_memory.run({str(photos)!r}, {str(work / 'model')!r}, {str(output)!r})"
            subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=True)


if __name__ == "__main__":
    main()
