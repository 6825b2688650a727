"""A finished run, tiny, for the tools that turn runs into results; and a results folder with two made-up rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

TINY = (
    "encoder.image_size=16", "encoder.patch_size=8", "encoder.width=16", "encoder.heads=2", "encoder.blocks=1",
    "decoder.width=16", "decoder.heads=2", "decoder.blocks=1", "tokenizer.min_count=1", "tokenizer.max_length=12",
    "training.epochs=2", "training.batch_size=4", "decoding.beam=2",
)  # fmt: skip

PLANS = """
[stages.soft]
recipe = "sat-soft-vgg19"
data = ["flickr8k"]
[rows]
sat-soft-vgg19 = { data = "flickr8k", models = ["soft"] }
only-val = { data = "flickr8k", models = ["soft"] }
other = { data = "flickr8k", models = ["soft"] }
"""


@pytest.fixture(scope="session")
def finished_run(tiny_flickr8k_kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sightline.recipes.config import load_recipe
    from sightline.training.trainer import train

    folder = tmp_path_factory.mktemp("runs") / "tiny-words"
    train(load_recipe("patch-transformer-word", TINY), tiny_flickr8k_kept, folder)
    return folder


def made_row(cider: float, **changes) -> dict:
    from rows import SCORES

    scores = {key: 20 + number / 4 for number, key in enumerate(SCORES)} | {"cider": cider}
    return {
        "recipe": "sat-soft-vgg19",
        "val": scores,
        "test": scores,
        "interval": {key: [value - 1.5, value + 1.5] for key, value in scores.items()},
        "parameters": 34_567_890,
        "trainable": 12_345_678,
        "train_minutes": 123,
        "commit": "1a2b3c4",
        "seed": 1,
        "signature": "sightline 0.1.0|flickr8k:test|images:30|ckpt:0123456789ab",
    } | changes


@pytest.fixture
def made_results(tmp_path: Path) -> Path:
    """Two systems: one with everything, one scored on val only."""
    folder = tmp_path / "results"
    folder.mkdir(exist_ok=True)
    names = [f"{number:02}.jpg" for number in range(24)]
    captions = [{"image_id": name, "caption": f"a dog number {name[:2]}"} for name in names]
    epochs = [
        {"epoch": number, "minutes": 10.0 * number, "train_loss": 4 - number / 2, "val_nll": 4 - number / 3,
         "val_nll_per_caption": 40 - number, "val": {"bleu_4": 10.0 + number, "cider": 20.0 + number},
         "best": number < 3}
        for number in (1, 2, 3)
    ]  # fmt: skip
    curve = {"minutes_before": 0.0, "epochs": epochs}
    files = {
        "sat-soft-vgg19": made_row(44.04),
        "sat-soft-vgg19.captions": captions,
        "sat-soft-vgg19.curve": curve,
        "only-val": made_row(50, recipe="dinov2-transformer", test={}, interval={}),
        "samples": {"00.jpg": "A dog | a cat .", "02.jpg": "Two *dogs* ."},
    }
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    (folder / "plans.toml").write_text(PLANS)
    return folder
