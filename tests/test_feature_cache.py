"""Cached features are the encoder's own, and stale ones are never taken for fresh ones."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sightline.data import Example
from sightline.errors import DataError, ImageError
from sightline.io.images import open_image
from sightline.nn.encoders.patches import Patches
from sightline.training import feature_cache
from sightline.training.feature_cache import FeatureCache
from sightline.types import ImageFeatures


class Counting(Patches):
    """A tiny encoder that counts the photos it sees and can be made to fail after some."""

    def __init__(self, seed: int = 0, fails_after: int | None = None, **options) -> None:
        torch.manual_seed(seed)
        super().__init__(**{"image_size": 16, "patch_size": 8, "width": 8, "heads": 2, "blocks": 1, **options})
        self.seen, self.fails_after = 0, fails_after

    def forward(self, images: Tensor) -> ImageFeatures:
        if self.fails_after is not None and self.seen >= self.fails_after:
            raise KeyboardInterrupt
        self.seen += len(images)
        return super().forward(images)


@pytest.fixture
def examples(tiny_flickr8k: Path) -> list[Example]:
    images = sorted((tiny_flickr8k / "Flicker8k_Dataset").glob("*.jpg"))
    return [Example(path, ("a",), path.name) for path in images]  # 12 photos


def computed(encoder: Patches, examples: list[Example]) -> ImageFeatures:
    pixels = torch.stack([encoder.preprocess(open_image(example.image)) for example in examples])
    with torch.no_grad():
        return encoder.eval()(pixels)


def test_a_filled_cache_holds_the_encoders_output_in_half_precision(examples: list[Example], tmp_path: Path) -> None:
    encoder = Counting()
    cache = FeatureCache(encoder, examples, tmp_path).fill(batch_size=5)
    assert cache.complete
    order = [3, 0, 11, 3]
    features, expected = cache.features(order), computed(encoder, [examples[index] for index in order])
    assert (features.height, features.width) == (2, 2)
    assert features.grid.dtype == features.pooled.dtype == torch.float32
    assert torch.allclose(features.grid, expected.grid, atol=2e-3)
    assert torch.allclose(features.pooled, expected.pooled, atol=2e-3)
    assert not torch.allclose(features.pooled[0], features.pooled[1], atol=1e-2)


def test_a_full_cache_is_not_computed_again(examples: list[Example], tmp_path: Path) -> None:
    first = FeatureCache(Counting(), examples, tmp_path).fill()
    encoder = Counting()
    second = FeatureCache(encoder, examples, tmp_path).fill()
    assert second.folder == first.folder
    assert encoder.seen == 0
    assert torch.equal(second.features([5]).grid, first.features([5]).grid)


@pytest.mark.parametrize(("count", "label"), [(1, "1 photo"), (12, "12 photos")])
def test_one_photo_is_told_as_one(
    examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, label: str
) -> None:
    labels = []
    monkeypatch.setattr(feature_cache, "track", lambda items, label, total: labels.append(label) or items)
    FeatureCache(Counting(), examples[:count], tmp_path).fill()
    assert labels == [f"patches features of {label}"]


def test_a_killed_run_goes_on_where_it_was(examples: list[Example], tmp_path: Path) -> None:
    killed = FeatureCache(Counting(fails_after=6), examples, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        killed.fill(batch_size=3)
    assert not killed.complete
    encoder = Counting()
    resumed = FeatureCache(encoder, examples, tmp_path).fill(batch_size=3)
    assert encoder.seen == len(examples) - 6
    whole = FeatureCache(Counting(), examples, tmp_path / "other").fill()
    everything = list(range(len(examples)))
    assert torch.equal(resumed.features(everything).grid, whole.features(everything).grid)
    assert torch.equal(resumed.features(everything).pooled, whole.features(everything).pooled)


def test_workers_change_nothing(examples: list[Example], tmp_path: Path) -> None:
    alone = FeatureCache(Counting(), examples, tmp_path / "a", views=2).fill(batch_size=5)
    helped = FeatureCache(Counting(), examples, tmp_path / "b", views=2).fill(batch_size=5, workers=2)
    everything = list(range(len(examples)))
    for view in (0, 1):
        views = [view] * len(examples)
        assert torch.equal(alone.features(everything, views).grid, helped.features(everything, views).grid)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_photo_that_cannot_be_read_is_one_line(examples: list[Example], tmp_path: Path, workers: int) -> None:
    Path(examples[3].image).write_bytes(b"damaged")
    with pytest.raises(ImageError) as caught:
        FeatureCache(Counting(), examples, tmp_path).fill(workers=workers)
    assert str(caught.value).startswith(str(examples[3].image)) and "\n" not in str(caught.value)


def test_filling_draws_nothing_from_the_global_generator(examples: list[Example], tmp_path: Path) -> None:
    """A run is the same whether its features were cached before or not."""
    cache = FeatureCache(Counting(), examples, tmp_path, views=2)
    before = torch.random.get_rng_state()
    cache.fill()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_views_differ_from_the_plain_photo_and_from_each_other(examples: list[Example], tmp_path: Path) -> None:
    encoder = Counting()
    cache = FeatureCache(encoder, examples, tmp_path, views=3).fill()
    assert encoder.seen == 3 * len(examples)
    everything = list(range(len(examples)))
    plain = cache.features(everything)
    assert torch.allclose(plain.grid, computed(encoder, examples).grid, atol=2e-3)
    first, second = (cache.features(everything, [view] * len(examples)) for view in (1, 2))
    for photo in everything:
        grids = [features.grid[photo] for features in (plain, first, second)]
        assert not torch.allclose(grids[0], grids[1], atol=1e-3)
        assert not torch.allclose(grids[0], grids[2], atol=1e-3)
        assert not torch.allclose(grids[1], grids[2], atol=1e-3)


def test_without_the_grid_only_the_one_vector_is_kept(examples: list[Example], tmp_path: Path) -> None:
    cache = FeatureCache(Counting(), examples, tmp_path, grid=False).fill()
    features = cache.features([2, 4])
    assert features.grid.shape == (2, 0, 8)
    assert (features.height, features.width) == (0, 0)
    assert torch.equal(features.pooled, FeatureCache(Counting(), examples, tmp_path).fill().features([2, 4]).pooled)
    assert sorted(path.name for path in cache.folder.glob("*/*")) == ["keys.bin", "pooled.f16"]


def test_numbers_beyond_half_precision_are_clamped_and_stay_finite(examples: list[Example], tmp_path: Path) -> None:
    class Huge(Counting):
        def forward(self, images: Tensor) -> ImageFeatures:
            features = super().forward(images)
            return replace(features, grid=features.grid * 1e8, pooled=features.pooled * 1e8)

    features = FeatureCache(Huge(), examples, tmp_path).fill().features([0, 1])
    assert features.grid.isfinite().all()
    assert features.grid.abs().max() == pytest.approx(65504)


def test_a_cache_is_named_by_all_its_numbers_depend_on(examples: list[Example], tmp_path: Path) -> None:
    def folder(encoder: Patches | None = None, photos: list[Example] = examples, **options) -> Path:
        return FeatureCache(encoder or Counting(), photos, tmp_path, **options).folder

    cropped = Counting()
    cropped.preprocess = replace(cropped.preprocess, fit="crop")
    nudged = Counting()
    with torch.no_grad():
        nudged.projection.bias[0] += 1e-6
    folders = [
        folder(),
        folder(Counting(seed=1)),
        folder(nudged),
        folder(cropped),
        folder(grid=False),
        folder(precision="bfloat16"),
    ]
    assert len(set(folders)) == len(folders)
    assert folder(photos=examples[1:]) == folder(views=2) == folders[0], "which photos: their keys say"


def test_a_photo_is_known_by_its_content(examples: list[Example], tmp_path: Path) -> None:
    FeatureCache(Counting(), examples, tmp_path).fill()
    moved = [replace(example, image=example.image.rename(example.image.with_name(f"moved-{example.image.name}")))
             for example in reversed(examples)]  # fmt: skip
    encoder = Counting()
    cache = FeatureCache(encoder, moved, tmp_path).fill()
    assert encoder.seen == 0
    assert torch.allclose(cache.features([0]).grid, computed(encoder, moved).grid[:1], atol=2e-3)


def test_a_changed_photo_and_a_further_view_are_computed(examples: list[Example], tmp_path: Path) -> None:
    FeatureCache(Counting(), examples, tmp_path).fill()
    first = examples[0].image
    first.write_bytes(first.read_bytes() + b" ")  # a photo of other bytes is another photo
    encoder = Counting()
    FeatureCache(encoder, examples, tmp_path).fill()
    assert encoder.seen == 1
    FeatureCache(encoder, examples, tmp_path, views=2, seed=3).fill()
    assert encoder.seen == 1 + len(examples)
    FeatureCache(encoder, examples, tmp_path, views=2, seed=4).fill()
    assert encoder.seen == 1 + 2 * len(examples)


def test_a_photo_listed_twice_is_computed_once(examples: list[Example], tmp_path: Path) -> None:
    encoder = Counting()
    cache = FeatureCache(encoder, [*examples, *examples], tmp_path).fill()
    assert encoder.seen == len(examples)
    assert torch.equal(cache.features([0]).grid, cache.features([len(examples)]).grid)


def test_two_processes_may_fill_one_cache(examples: list[Example], tmp_path: Path) -> None:
    one, other = (FeatureCache(Counting(), examples, tmp_path) for _ in range(2))
    one.fill(share=slice(0, 5))
    other.fill(share=slice(5, None))
    encoder = Counting()
    cache = FeatureCache(encoder, examples, tmp_path)
    assert cache.complete
    whole = computed(encoder, examples).grid
    assert torch.allclose(cache.features(range(len(examples))).grid, whole, atol=2e-3)


def test_bfloat16_is_near_float32(examples: list[Example], tmp_path: Path) -> None:
    encoder = Counting()
    rough = FeatureCache(encoder, examples, tmp_path, precision="bfloat16").fill().features([0, 1]).grid
    exact = computed(encoder, examples).grid[:2]
    assert 0 < (rough - exact).abs().max() < 0.05 * exact.abs().max()


def test_a_file_of_another_size_is_refused(examples: list[Example], tmp_path: Path) -> None:
    folder = FeatureCache(Counting(), examples, tmp_path).fill().folder
    (segment,) = folder.glob("segment-*")
    os.truncate(segment / "grid.f16", 767)
    with pytest.raises(DataError, match=r"grid\.f16 has 767 bytes, expected \d+ or more; delete its folder"):
        FeatureCache(Counting(), examples, tmp_path)


def test_a_folder_that_cannot_be_made_is_one_clear_line(examples: list[Example], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot keep features in .*; set SIGHTLINE_CACHE"):
        FeatureCache(Counting(), examples, tmp_path / "file")


def test_a_killed_batch_is_not_marked_as_done(examples: list[Example], tmp_path: Path) -> None:
    """Numbers reach the disk before the mark does."""
    killed = FeatureCache(Counting(fails_after=3), examples, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        killed.fill(batch_size=3)
    (segment,) = killed.folder.glob("segment-*")
    with (segment / "grid.f16").open("ab") as file:
        file.write(b"half a photo")
    resumed = FeatureCache(Counting(), examples, tmp_path)
    assert (resumed.is_filled(slice(0, 3)), resumed.is_filled(slice(0, 4))) == (True, False)
    everything = range(len(examples))
    assert torch.allclose(resumed.fill().features(everything).grid, computed(Counting(), examples).grid, atol=2e-3)


def test_int8_features_are_near_the_encoders_own(examples: list[Example], tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    encoder = Counting(width=32, image_size=32).eval()
    cache = FeatureCache(encoder, examples, tmp_path, precision="int8").fill(batch_size=5)
    features, expected = cache.features(range(12)), computed(encoder, examples)
    for found, exact in ((features.grid, expected.grid), (features.pooled, expected.pooled)):
        assert 1e-3 < float((found - exact).abs().max() / exact.abs().max()) < 0.05


def test_int8_features_of_a_photo_depend_on_no_other(examples: list[Example], tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    encoder = Counting()
    together = FeatureCache(encoder, examples[:3], tmp_path / "a", precision="int8").fill().features([0]).grid
    alone = FeatureCache(encoder, examples[:1], tmp_path / "b", precision="int8").fill().features([0]).grid
    assert torch.equal(together, alone)
    exact = computed(encoder, examples).grid[:1]
    assert 0 < (alone - exact).abs().max() < 0.1 * exact.abs().max()
