"""What a bulk job costs beyond the model: files in, Parquet parts out, against the bare encoder and decoder.

    python benchmarks/bulk_throughput.py PHOTOS/ [--photos 256] [--batch 16] [--workers 1]

Both sides caption the same photos in one process with the shipped model, in turn. The bare side has them decoded and
stacked in memory beforehand and keeps nothing; the bulk side reads and decodes files in worker processes, batches what
arrives and saves parts to disk. Starting the workers is not counted: a job that matters runs for hours.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from sightline.bulk.engine import BulkEngine
from sightline.bulk.inputs import JobPart, find_inputs
from sightline.bulk.job import choose_device, count_workers
from sightline.bulk.job_folder import save_part
from sightline.bulk.reading import read_photo
from sightline.engine.captioner import PreparedImage, load
from sightline.types import Failure


def preload(engine: BulkEngine, names: list[str]) -> list[list[PreparedImage]]:
    squares = []
    for name in names:
        found = read_photo(name, engine.captioner.preprocesses)
        if isinstance(found, Failure):
            raise SystemExit(f"{name} {found.reason}")
        squares.append(found)
    return [squares[start : start + engine.batch_size] for start in range(0, len(squares), engine.batch_size)]


def bare(engine: BulkEngine, batches: list[list[PreparedImage]]) -> float:
    began = time.perf_counter()
    for batch in batches:
        engine.captions(batch)
    return time.perf_counter() - began


def bulk(engine: BulkEngine, names: list[str], part_size: int) -> float:
    parts = [
        JobPart(number, tuple(names[first : first + part_size]))
        for number, first in enumerate(range(0, len(names), part_size))
    ]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        for finished in engine.run(parts):
            save_part(Path(folder), "parquet", finished, several=False)
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--photos", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    names = [name for name, _ in zip(find_inputs([options.folder]), range(options.photos)) if isinstance(name, str)]
    captioner = load(device=choose_device(options.device))
    workers = count_workers(str(captioner.device)) if options.workers is None else options.workers
    with BulkEngine(captioner, captioner.defaults, options.batch, workers) as engine:
        batches = preload(engine, names)
        bulk(engine, names[: 2 * options.batch], options.batch)  # starts the workers, warms both sides up
        print(f"{len(names)} photos, batches of {options.batch}, {workers} workers, {torch.get_num_threads()} threads")
        print(f"{'bare, photos/s':>16}{'bulk, photos/s':>16}{'ratio':>8}", flush=True)
        rates = []
        for _ in range(options.rounds):  # in turn, so that a busy machine slows both alike
            rates.append([len(names) / bare(engine, batches), len(names) / bulk(engine, names, part_size=64)])
            print(f"{rates[-1][0]:16.1f}{rates[-1][1]:16.1f}{rates[-1][1] / rates[-1][0]:8.3f}", flush=True)
        print(f"median ratio {statistics.median(done / could for could, done in rates):.3f} (the aim is 0.9)")


if __name__ == "__main__":
    main()
