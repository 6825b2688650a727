"""Every recipe, shrunk, learns four captions word for word; the language recipe learns from text alone."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from test_training import TINY

from sightline.data import load_dataset
from sightline.engine.captioner import load
from sightline.errors import ConfigError
from sightline.recipes.config import load_recipe, parse_recipe, recipe_names
from sightline.training.trainer import Trainer, train

FOUR = ["a red square on grass", "two blue circles", "the green triangle sleeps in snow", "an orange star"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def four_photos(tmp_path_factory):
    """Four photos with one caption each; dev and test show the same four."""
    root = tmp_path_factory.mktemp("four")
    rows = ["image,caption,split"]
    for number, caption in enumerate(FOUR):
        for split in ("train", "val", "test"):
            name = f"{split}_{number}.png"
            _picture(number).save(root / name)
            rows.append(f"{name},{caption},{split}")
    (root / "captions.csv").write_text("\n".join(rows) + "\n")
    return root


def _picture(number: int):
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (64, 64), ["black", "white", "gray", "navy"][number])
    pen = ImageDraw.Draw(image)
    box = [(4, 4, 30, 30), (30, 4, 60, 30), (4, 30, 30, 60), (30, 30, 60, 60)][number]
    pen.rectangle(box, fill=["red", "blue", "green", "orange"][number])
    return image


def tiny_version(name: str, tmp_path: Path) -> list[str]:
    """Overrides that keep a recipe's parts and shrink them."""
    recipe = load_recipe(name, ["objective.teacher=x"] if name == "distilled" else [])
    changes = [
        "training.epochs=150", "training.batch_size=4", "training.learning_rate=0.005", "training.evaluate_every=150",
        "training.patience=0", "training.average=0", "training.warmup=0", "training.weight_decay=0", "data.workers=0",
        "decoder.dropout=0", "data.augment=false", "data.views=1",
        "decoding.length_penalty=1.0", "tokenizer.max_length=48", "training.precision=no",
        "data.cache_precision=float32", "data.min_captions=1",
    ]  # fmt: skip
    if recipe.tokenizer.name == "word":
        changes.append("tokenizer.min_count=1")
    if recipe.encoder.name == "patches":
        changes += [
            "encoder.image_size=32",
            "encoder.width=32",
            "encoder.dropout=0",
            "encoder.heads=2",
            "decoder.width=32",
        ]
    else:
        size = {"dinov2-vits14": 56, "clip-vit-b16": 32, "clip-vit-b32": 64, "googlenet": 64}.get(
            recipe.encoder.name, 96
        )
        changes += [
            f"encoder.weights={calibrated_weights(recipe.encoder.name, tmp_path)}",
            f"encoder.image_size={size}",
        ]
        changes += ["encoder.grid=none"] if recipe.encoder.name in ("clip-vit-b16", "dinov2-vits14") else []
    if recipe.objective.name == "self-critical":
        changes.append("objective.truth_penalty=0")  # these photos have no object labels
    if recipe.decoder.name == "transformer":
        changes += ["decoder.width=32", "decoder.heads=2", "decoder.blocks=1"]
    else:
        changes += ["decoder.width=48", "decoder.hidden=48"]
    if recipe.decoder.name == "attention-lstm":
        changes.append("decoder.attention=32")
    if recipe.objective.name in ("cross-entropy", "hard-attention"):
        changes.append("objective.label_smoothing=0")
    if recipe.encoder.train != "frozen" and recipe.encoder.name != "patches":  # fine-tuning a large random network
        changes += ["encoder.learning_rate=1e-5", "training.epochs=20", "training.evaluate_every=20"]
    if recipe.embedding.name == "glove":
        glove = tmp_path / "glove.txt"
        rng = random.Random(0)
        lines = [" ".join([word, *(f"{rng.gauss(0, 1):.3f}" for _ in range(10))]) for word in " ".join(FOUR).split()]
        glove.write_text("\n".join(lines) + "\n")
        changes.append(f"embedding.file={glove}")
    return changes


def calibrated_weights(name: str, folder: Path) -> str:
    """Random weights that still tell photos apart, as a file in torchvision's layout.

    Untrained deep networks give numbers near zero or in the millions until their batch norms have seen a photo.
    """
    if not name.startswith(("resnet", "densenet", "googlenet")):
        return "random"
    from sightline.nn.torchvision_import import torchvision

    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(weights=None, **({"init_weights": False} if name == "googlenet" else {}))
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    photos = [torch.from_numpy(np.array(_picture(number).resize((96, 96)))) for number in range(4)]
    with torch.no_grad():
        model.train()(torch.stack(photos).permute(0, 3, 1, 2) / 128 - 1)
    save_file(model.state_dict(), folder / "weights.safetensors")
    return str(folder / "weights.safetensors")


def first_stage(name: str) -> str | None:
    return {
        "dinov2-finetune": "dinov2-transformer",
        "clip-coco-scst": "clip-coco",
        "dinov2-coco-scst": "dinov2-coco",
        "dinov2-coco-words": "dinov2-coco",
        "dinov2-scst": "dinov2-transformer",
        "tinyvit-finetune": "tinyvit-transformer",
        "tinyvit-distilled": "tinyvit-transformer",
        "tinyvit-scst": "tinyvit-transformer",
        "distilled": "dinov2-transformer",
        "own-photos": "dinov2-coco",
    }.get(name)


@pytest.mark.parametrize("name", [name for name in recipe_names() if name != "dinov2-language"])
def test_every_recipe_reproduces_four_captions_word_for_word(name, four_photos, tmp_path):
    changes = tiny_version(name, tmp_path)
    if before := first_stage(name):
        train(load_recipe(before, tiny_version(before, tmp_path)), four_photos, tmp_path / "before")
        if "distilled" in name:
            changes.append(f"objective.teacher={tmp_path / 'before'}")
        if name != "distilled":
            changes.append(f"training.init={tmp_path / 'before'}")
    if name.endswith("-scst"):
        changes += ["training.epochs=3", "training.evaluate_every=3", "training.learning_rate=1e-4"]
    train(load_recipe(name, changes), four_photos, tmp_path / "run")
    captioner = load(tmp_path / "run")
    photos = [four_photos / f"test_{number}.png" for number in range(4)]
    assert [caption.text for caption in captioner.caption(photos)] == FOUR


def test_language_is_learned_without_photos_and_kept_for_captioning(four_photos, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("two blue circles\nan orange star on grass\n" * 8)
    changes = [f'data.text=["{text}"]', *tiny_version("dinov2-language", tmp_path), "training.batch_size=4"]
    best = train(load_recipe("dinov2-language", changes), four_photos, tmp_path / "language")
    assert best["val_nll"] < 1.0  # blind guessing among the twenty words: 3.0
    assert "cider" not in best  # nothing was captioned
    recipe = load_recipe(
        "dinov2-transformer", [*tiny_version("dinov2-transformer", tmp_path), f"training.init={tmp_path / 'language'}"]
    )
    trainer = Trainer(recipe, load_dataset(four_photos), tmp_path / "captions")
    learned = load_file(tmp_path / "language" / "model.safetensors")
    assert torch.equal(trainer.model.decoder.output.weight, learned["decoder.output.weight"].float())


def test_text_without_photos_is_judged_by_its_loss(four_photos, tmp_path):
    with pytest.raises(ConfigError, match=r"training\.metric=loss"):
        train(parse_recipe(TINY, ["data.text=[]"]), four_photos, tmp_path / "run")
