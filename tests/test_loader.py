"""Batches are the same under a seed, whatever the workers, the processes or where a run was interrupted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sightline.data import Example
from sightline.data.loader import Batch, CachedPhotos, CaptionLoader, PixelPhotos, pad_captions
from sightline.errors import ConfigError, ImageError
from sightline.io.preprocess import Preprocess
from sightline.types import ImageFeatures

PHOTOS = 23
PAD = 0


def caption(photo: int, number: int) -> list[int]:
    """A caption that tells whose it is: start, photo, number, some filling, end."""
    return [1, 100 + photo, 200 + number, *[7] * ((photo * 3 + number * 2) % 5), 2]


FIVE_EACH = [[caption(photo, number) for number in range(5)] for photo in range(PHOTOS)]
UNEQUAL = [[caption(photo, number) for number in range(1 + photo % 5)] for photo in range(PHOTOS)]


def source(indices: Sequence[int], rng: random.Random) -> Tensor:
    """Two numbers per photo: which one it is, and a draw."""
    return torch.tensor([[float(index), rng.random()] for index in indices])


def loader(captions: Sequence[Sequence[Sequence[int]]] = FIVE_EACH, **options) -> CaptionLoader:
    return CaptionLoader(captions, source, **{"batch_size": 4, "seed": 3, "pad": PAD, **options})


def same(a: Sequence[Batch], b: Sequence[Batch]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(one.photos, other.photos)
        and torch.equal(one.tokens, other.tokens)
        and one.indices == other.indices
        and (one.token_count, one.caption_count) == (other.token_count, other.caption_count)
        for one, other in zip(a, b)
    )


def rows(batches: Sequence[Batch]) -> list[tuple[int, ...]]:
    """Every caption without its padding."""
    return [tuple(t for t in row.tolist() if t != PAD) for batch in batches for row in batch.tokens if row.any()]


CHOICES = [
    {"choice": "random"}, {"choice": "random", "per_photo": 3}, {"choice": "all"}, {"choice": "fixed", "per_photo": 2},
    {"choice": "random", "by_length": True}, {"choice": "all", "by_length": True},
]  # fmt: skip


@pytest.fixture(params=CHOICES, ids=lambda options: "-".join(map(str, options.values())))
def options(request: pytest.FixtureRequest) -> dict:
    return request.param


# The same under a seed


def test_one_seed_gives_the_same_epoch_and_another_seed_another(options: dict) -> None:
    first = list(loader(**options).epoch(0))
    assert same(first, list(loader(**options).epoch(0)))
    assert not same(first, list(loader(**options, seed=4).epoch(0)))


def test_epochs_differ(options: dict) -> None:
    batches = loader(**options)
    assert not same(list(batches.epoch(0)), list(batches.epoch(1)))


def test_workers_change_nothing(options: dict) -> None:
    assert same(list(loader(**options, workers=2).epoch(1)), list(loader(**options).epoch(1)))


def unreadable(indices: Sequence[int], rng: random.Random) -> Tensor:
    raise ImageError("dog.jpg: not a picture")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_photo_that_cannot_be_read_is_one_line(workers: int) -> None:
    with pytest.raises(ImageError, match=r"^dog\.jpg: not a picture$"):
        list(CaptionLoader(FIVE_EACH, unreadable, batch_size=4, workers=workers).epoch(0))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_epoch_gives_exactly_the_remaining_batches(options: dict, workers: int) -> None:
    whole = list(loader(**options).epoch(2))
    resumed = loader(**options, workers=workers)
    for skip in (0, 3, len(whole) - 1, len(whole)):
        assert same(list(resumed.epoch(2, skip=skip)), whole[skip:])


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_draw_nothing_from_the_global_generators(workers: int) -> None:
    torch.manual_seed(5)
    random.seed(5)
    before = torch.random.get_rng_state(), random.getstate()
    assert list(loader(workers=workers).epoch(0))
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_the_length_is_every_epochs_number_of_batches(options: dict) -> None:
    for captions in (FIVE_EACH, UNEQUAL):
        batches = loader(captions, **options)
        assert {len(list(batches.epoch(number))) for number in range(6)} == {len(batches)}


# Which captions


def test_every_photo_comes_once_an_epoch_with_one_of_its_captions() -> None:
    batches = list(loader().epoch(0))
    assert sorted(index for batch in batches for index in batch.indices) == list(range(PHOTOS))
    for batch in batches:
        assert batch.photos[:, 0].tolist() == list(batch.indices)
        assert (batch.tokens[:, 1] - 100).tolist() == list(batch.indices)


def test_random_draws_reach_all_captions_over_epochs() -> None:
    batches = loader(UNEQUAL)
    drawn = {row for number in range(40) for row in rows(list(batches.epoch(number)))}
    assert drawn == {tuple(ids) for photo in UNEQUAL for ids in photo}


def test_several_random_captions_of_a_photo_are_different_ones() -> None:
    for batch in loader(per_photo=3).epoch(0):
        for group in batch.tokens.view(len(batch.indices), 3, -1):
            assert len(group[:, 2].unique()) == 3
            assert len(group[:, 1].unique()) == 1


def test_fixed_is_always_the_first_captions() -> None:
    for number in range(5):
        assert {row[2] for row in rows(list(loader(choice="fixed").epoch(number)))} == {200}
        assert {row[2] for row in rows(list(loader(choice="fixed", per_photo=2).epoch(number)))} == {200, 201}


@pytest.mark.parametrize("by_length", [False, True])
def test_all_gives_every_caption_once_an_epoch(by_length: bool) -> None:
    found = Counter(rows(list(loader(UNEQUAL, choice="all", by_length=by_length).epoch(0))))
    assert found == Counter(tuple(ids) for photo in UNEQUAL for ids in photo)


def test_batches_by_length_have_one_length_but_for_the_last_of_each() -> None:
    batches = list(loader(choice="all", by_length=True).epoch(0))
    captions = [ids for photo in FIVE_EACH for ids in photo]
    whole = sum(count // 4 for count in Counter(map(len, captions)).values())
    of_one_length = [batch for batch in batches if len({len(row) for row in rows([batch])}) == 1]
    assert len(of_one_length) >= whole > len(batches) / 2
    assert all((batch.tokens != PAD).all() for batch in of_one_length)
    assert len({batch.tokens.shape[1] for batch in of_one_length}) > 1
    order = [batch.tokens.shape[1] for batch in batches]
    assert order != sorted(order), "lengths come mixed, not from short to long"


def test_photos_with_unequal_numbers_of_captions_leave_empty_places() -> None:
    for batch in loader(UNEQUAL, choice="all").epoch(0):
        most = max(len(UNEQUAL[index]) for index in batch.indices)
        assert len(batch.tokens) == len(batch.indices) * most
        for index, group in zip(batch.indices, batch.tokens.view(len(batch.indices), most, -1)):
            assert rows([Batch(batch.photos, group, (index,), 0, 0)]) == [tuple(ids) for ids in UNEQUAL[index]]
            assert not group[len(UNEQUAL[index]) :].any()


def test_counts_are_the_predicted_tokens_and_the_captions(options: dict) -> None:
    for batch in loader(UNEQUAL, **options).epoch(0):
        assert batch.token_count == (batch.tokens[:, 1:] != PAD).sum()
        assert batch.caption_count == batch.tokens.any(1).sum()


def test_padding_is_the_tokenizers() -> None:
    tokens = pad_captions([[[1, 5, 2]], [[1, 2], [1, 6, 7, 2]]], pad=9)
    assert tokens.tolist() == [[1, 5, 2, 9], [9, 9, 9, 9], [1, 2, 9, 9], [1, 6, 7, 2]]


# Several processes


@pytest.mark.parametrize("processes", [2, 3])
def test_the_processes_batches_together_are_the_one_process_batch(options: dict, processes: int) -> None:
    alone = list(loader(UNEQUAL, **options).epoch(1))
    shares = [
        list(loader(UNEQUAL, **options, process=process, processes=processes).epoch(1)) for process in range(processes)
    ]
    assert {len(share) for share in shares} == {len(alone)}
    for number, batch in enumerate(alone):
        parts = [share[number] for share in shares]
        assert Counter(rows(parts)) == Counter(rows([batch]))
        pairs = {(row[1] - 100) for part in parts for row in rows([part])}
        assert pairs == set(batch.indices)
        for part in parts:
            assert part.token_count * processes == pytest.approx(batch.token_count)
            assert part.caption_count * processes == pytest.approx(batch.caption_count)


def test_a_process_without_photos_gets_one_with_no_caption() -> None:
    """23 photos in batches of 11 leave one for the last batch: the second process has nothing, but must take part."""
    last = list(loader(batch_size=11, process=1, processes=2).epoch(0))[-1]
    assert len(last.indices) == 1
    assert not last.tokens.any()
    assert last.token_count > 0


def test_every_batch_process_and_epoch_draws_other_augmentations() -> None:
    draws = [
        value
        for process in range(2)
        for epoch in range(3)
        for batch in loader(process=process, processes=2).epoch(epoch)
        for value in batch.photos[:, 1].tolist()
    ]
    assert len(set(draws)) == len(draws)


# Refusals


def test_settings_that_cannot_be_carried_out_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.by_length batches single captions"):
        loader(by_length=True, per_photo=2)
    with pytest.raises(ConfigError, match=r"training\.batch_size=4 is smaller than the number of processes, 5"):
        loader(processes=5)


# Photos


@pytest.fixture
def examples(tiny_flickr8k_kept: Path) -> list[Example]:
    images = sorted((tiny_flickr8k_kept / "Flicker8k_Dataset").glob("*.jpg"))
    return [Example(path, ("a",), path.name) for path in images]


def test_pixels_are_preprocessed_and_augmented_only_if_asked(examples: list[Example]) -> None:
    preprocess = Preprocess(size=16, resize=16)
    plain = PixelPhotos(examples, preprocess)
    assert plain([1, 0], random.Random(1)).shape == (2, 3, 16, 16)
    assert torch.equal(plain([1, 0], random.Random(1)), plain([1, 0], random.Random(2)))
    assert not torch.equal(plain([1], random.Random(1)), plain([0], random.Random(1)))
    augmented = PixelPhotos(examples, preprocess, augment=True)
    assert torch.equal(augmented([1, 0], random.Random(1)), augmented([1, 0], random.Random(1)))
    assert not torch.equal(augmented([1, 0], random.Random(1)), augmented([1, 0], random.Random(2)))


def test_a_teacher_sees_the_same_photos(examples: list[Example]) -> None:
    def teacher(indices: Sequence[int], rng: random.Random) -> Tensor:
        return torch.tensor(indices)

    for batch in loader(teacher=teacher).epoch(0):
        assert batch.teacher.tolist() == list(batch.indices)
        assert batch.to(torch.device("cpu")).teacher.tolist() == list(batch.indices)


def test_cached_photos_take_every_view_in_turn() -> None:
    class Cache:
        views = 3

        def features(self, photos: Sequence[int], views: Sequence[int]) -> ImageFeatures:
            numbers = torch.tensor([[float(photo), float(view)] for photo, view in zip(photos, views)])
            return ImageFeatures(numbers[:, None], numbers, 1, 1)

    drawn = CachedPhotos(Cache())(list(range(60)), random.Random(0)).pooled
    assert drawn[:, 0].tolist() == list(range(60))
    assert set(drawn[:, 1].tolist()) == {0.0, 1.0, 2.0}
