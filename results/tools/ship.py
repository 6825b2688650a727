"""Make a finished run the default model or the large one: its weights in int8, with the scores of its row.

    python results/tools/ship.py runs/dinov2-coco-scst runs/shipped
    sightline export runs/shipped --int8-arithmetic
    python results/tools/add_row.py runs/shipped --exported --name dinov2-coco-scst --data flickr8k/ --commit 1a2b3c4
    python results/tools/add_row.py runs/shipped --exported --name dinov2-coco-scst --data coco/ --commit 1a2b3c4
    python results/tools/ship.py runs/shipped --row dinov2-coco-scst
    sightline export default --int8-arithmetic --licence Apache-2.0
    sightline calibrate default --data coco/ --data flickr8k/
    python results/tools/confidence_check.py default --data coco/ --data flickr8k/

The large model is made in the same way, in a folder of its own and with weights in shards:

    python results/tools/ship.py runs/shipped --row clip-coco-scst --to models/large
    sightline export models/large --int8-arithmetic --shards --licence Apache-2.0
    sightline calibrate models/large --data coco/ --data flickr8k/

The rows are scored on the very files that are shipped, so the first two lines make them, with the run's own records,
and the fifth copies the weights with the row's scores. The model's card is written by people.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rows import public, read_row
from script import RESULTS, parser, run
from sightline.errors import ConfigError
from sightline.nn.checkpoint import checkpoint_hash, load_checkpoint, save_checkpoint
from sightline.nn.hub import DEFAULT_MODEL

RECORDS = ("history.jsonl", "run.json")
PRECISION: Final = "int8"
GRAPHS = ("*.onnx", "sightline.json")


def quantize(source: Path, target: Path) -> None:
    """The run again, its weights in int8, its records as they were."""
    save_checkpoint(target, load_checkpoint(source), PRECISION)
    for name in RECORDS:
        shutil.copy(source / name, target / name)


def ship(source: Path, name: str, target: Path = DEFAULT_MODEL, results: Path = RESULTS) -> None:
    """The weights a row was scored on, with its scores."""
    row = read_row(results / f"{name}.json")
    if not row.test or row.checkpoint != checkpoint_hash(source):
        raise ConfigError(f"{name}.json was not scored on test with the weights of {source}: add its row first")
    checkpoint = load_checkpoint(source)
    facts = {"parameters": row.parameters, "trained": row.trainable, "seed": row.seed, "signature": row.signature}
    scores = {
        part: {key: round(value / 100, 4) for key, value in getattr(row, part).items()} for part in ("val", "test")
    }
    for pattern in GRAPHS:  # they belong to the weights that go
        for path in target.glob(pattern):
            path.unlink()
    shipped = replace(checkpoint, metrics=scores | facts, recipe=public(checkpoint.recipe))
    save_checkpoint(target, shipped, PRECISION)


def main(arguments: Sequence[str]) -> None:
    reader = parser(__doc__)
    reader.add_argument("run", type=Path, help="the run's folder")
    reader.add_argument("copy", type=Path, nargs="?", help="where its int8 copy goes")
    reader.add_argument("--row", help="make it the default model, with this row's scores")
    reader.add_argument("--to", type=Path, default=DEFAULT_MODEL, help="with --row: another folder, as models/large")
    given = reader.parse_args(arguments)
    if (given.copy is None) == (given.row is None):
        raise ConfigError("give a folder for the int8 copy, or --row with the row it was scored as")
    if given.copy:
        quantize(given.run, given.copy)
    else:
        ship(given.run, given.row, given.to)
        print("now export, calibrate and check it, and write its card: --help has the commands")


if __name__ == "__main__":
    raise SystemExit(run(main))
