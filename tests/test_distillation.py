"""What a teacher gives its student: views of the photos, captions, and a decoder to start with."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from sightline.data import load_dataset
from sightline.errors import ConfigError
from sightline.recipes.config import parse_recipe
from sightline.training.setup import build_parts
from sightline.training.trainer import train

TEACHER = {
    "title": "tiny",
    "data": {"captions": "all"},
    "tokenizer": {"name": "word", "min_count": 1, "max_length": 12},
    "encoder": {"name": "dinov2-vits14", "weights": "random", "image_size": 56, "fit": "squash"},
    "decoder": {"name": "transformer", "width": 32, "heads": 2, "blocks": 1, "dropout": 0.0},
    "training": {"epochs": 1, "batch_size": 4, "patience": 0},
}
CAPTIONS = ["a red thing", "a blue thing", "some green thing here", "one orange thing"]


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Eight photos of noise, half of them for training."""
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    generator = np.random.default_rng(0)
    rows = ["image,caption,split"]
    for number in range(8):
        picture = Image.fromarray(generator.integers(0, 256, (60, 80, 3), dtype=np.uint8))
        picture.resize((320, 240), Image.Resampling.BICUBIC).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{CAPTIONS[number % 4]},{'train' if number < 4 else 'dev'}")
    (tmp_path / "captions.csv").write_text("\n".join(rows) + "\n")
    return tmp_path / "captions.csv"


@pytest.fixture
def teacher(photos, tmp_path):
    train(parse_recipe(TEACHER, []), photos, tmp_path / "teacher")
    return tmp_path / "teacher"


def student(teacher, **objective):
    return TEACHER | {
        "data": {"captions": "all", "augment": True, "views": 2},
        "encoder": TEACHER["encoder"] | {"name": "tiny-vit-5m", "image_size": 96, "train": "all"},
        "objective": {"name": "distillation", "teacher": str(teacher), **objective},
    }


def test_student_and_teacher_see_the_same_views(photos, teacher):
    parts = build_parts(parse_recipe(student(teacher), []), load_dataset(photos))
    cache, source = parts.train.teacher.cache, parts.train.source
    for seed in range(4):
        drawn = [random.Random(seed).randrange(2) for _ in range(1)]
        pixels = source([2], random.Random(seed))
        features = parts.train.teacher([2], random.Random(seed))
        assert torch.equal(features.pooled, cache.features([2], drawn).pooled)
        plain = parts.model.encoder.preprocess(Image.open(photos.parent / "2.png"))
        assert torch.equal(pixels[0], plain) is (drawn == [0])
        assert torch.equal(pixels, source([2], random.Random(seed)))  # a lasting view, not a new one


def test_the_teacher_s_features_are_computed_in_the_recipe_s_precision(photos, teacher):
    for precision in ("float32", "bfloat16"):
        recipe = parse_recipe(student(teacher), [f"data.cache_precision={precision}"])
        assert build_parts(recipe, load_dataset(photos)).train.teacher.cache.precision == precision


def test_a_teacher_that_is_not_there_is_named_with_what_to_do(photos, tmp_path):
    recipe = parse_recipe(student(tmp_path / "none"), [])
    with pytest.raises(ConfigError, match=r"the teacher: .*none.*--set objective.teacher=FOLDER"):
        build_parts(recipe, load_dataset(photos))


def test_both_draw_their_view_from_one_chance(photos, teacher):
    parts = build_parts(parse_recipe(student(teacher), []), load_dataset(photos))
    drawn = []
    parts.train.source = lambda indices, rng: drawn.append([rng.randrange(2) for _ in indices])
    parts.train.teacher = lambda indices, rng: drawn.append([rng.randrange(2) for _ in indices])
    for epoch in range(8):
        list(parts.train.epoch(epoch))
    assert drawn[::2] == drawn[1::2]
    assert len({tuple(views) for views in drawn}) > 1


def test_the_teacher_adds_captions_which_are_cached(photos, teacher, tmp_path):
    recipe, dataset = parse_recipe(student(teacher, captions=2), []), load_dataset(photos)
    parts = build_parts(recipe, dataset)
    assert [len(captions) for captions in parts.train.captions] == [3, 3, 3, 3]
    (kept,) = (tmp_path / "cache" / "captions").iterdir()
    invented = [["a red thing", "a blue thing"]] * 4
    kept.write_text(json.dumps(invented))
    again = build_parts(recipe, dataset)
    assert again.train.captions[3][1:] == [again.tokenizer.encode(text) for text in invented[3]]
    build_parts(recipe, replace(dataset, splits=dataset.splits | {"train": dataset.splits["val"]}))
    assert len(list(kept.parent.iterdir())) == 2, "other photos have captions of their own"
    assert parts.references == [(text,) for text in CAPTIONS]  # what self-critical training is judged by stays human


def test_a_decoder_from_the_teacher_is_its_own_but_for_the_photo_projection(photos, teacher):
    parts = build_parts(parse_recipe(student(teacher, init_from_teacher=True), []), load_dataset(photos))
    before = {name: tensor.clone() for name, tensor in parts.model.decoder.state_dict().items()}
    parts.objective.prepare(parts.model, parts)
    taught = parts.objective._teacher[0].decoder.state_dict()
    for name, tensor in parts.model.decoder.state_dict().items():
        if name.startswith("photo."):
            assert not torch.equal(tensor, before[name])
        else:
            assert torch.equal(tensor, taught[name])


def test_where_a_linear_map_fits_exactly_both_decoders_read_the_same(photos, teacher):
    same = student(teacher, init_from_teacher=True, feature_weight=1.0) | {
        "encoder": TEACHER["encoder"],
        "data": {"captions": "all"},
    }
    parts = build_parts(parse_recipe(same, []), load_dataset(photos))
    taught = parts.objective._teacher[0]
    turn = torch.linalg.qr(torch.randn(384, 384, generator=torch.Generator().manual_seed(0))).Q
    plain = parts.train.teacher

    def turned(indices, rng):
        features = plain(indices, rng)
        return type(features)(features.grid @ turn, features.pooled @ turn, features.height, features.width)

    parts.train.source = turned
    batch = next(parts.train.epoch(0))
    before = parts.objective._distance(parts.model, batch.photos, batch.teacher)
    parts.objective.prepare(parts.model, parts)
    after = parts.objective._distance(parts.model, batch.photos, batch.teacher)
    assert before > 0.5
    assert after < 0.05
    words = batch.tokens[:, :-1]
    found, expected = parts.model(batch.photos, words).logits, taught(batch.teacher, words).logits
    assert (found - expected).abs().mean() < 0.1 * expected.std()


def test_only_a_decoder_of_the_same_kind_can_start_from_the_teacher(photos, teacher):
    other = student(teacher, init_from_teacher=True) | {"decoder": TEACHER["decoder"] | {"width": 64}}
    parts = build_parts(parse_recipe(other, []), load_dataset(photos))
    with pytest.raises(ConfigError, match=r"decoder\.width 64 is not 32"):
        parts.objective.prepare(parts.model, parts)
