"""Batches of photos with their captions, the same under a seed whatever the number of workers or processes.

An epoch is planned first (which photos, which of their captions), then every batch is built on its own from the plan,
its randomness seeded by its number. So any batch can be built by any worker, and a resumed run starts at any batch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sightline.data.dataset import Example
from sightline.errors import ConfigError, SightlineError
from sightline.io.files import content_digest
from sightline.io.images import open_image
from sightline.io.interrupts import left_to_parent
from sightline.io.preprocess import Preprocess
from sightline.types import ImageFeatures

Photos = Tensor | ImageFeatures
PhotoSource = Callable[[Sequence[int], random.Random], Photos]


@dataclass(frozen=True)
class Batch:
    """B photos and (B*K, T) tokens, start first; a caption that is all padding is missing.

    The two counts are those of the whole batch over all processes, divided by the number of processes: a sum of losses
    divided by them and averaged over processes is the mean over the whole batch.
    """

    photos: Photos
    tokens: Tensor
    indices: tuple[int, ...]
    token_count: float
    caption_count: float
    teacher: Photos | None = None

    def to(self, device: torch.device) -> Batch:
        teacher = None if self.teacher is None else self.teacher.to(device)
        return replace(self, photos=self.photos.to(device), tokens=self.tokens.to(device), teacher=teacher)


def view_pixels(preprocess: Preprocess, image: Any, view: int, seed: int = 0) -> Tensor:
    """One of a photo's lasting views: the first is the plain photo, the others are augmented, always alike."""
    opened = open_image(image)
    if not view:
        return preprocess(opened)
    drawn = int.from_bytes(content_digest(image)[:7], "big") + view + 1_000_003 * seed
    return preprocess.augmented(opened, torch.Generator().manual_seed(drawn))


class PixelPhotos:
    """Photos as pixels, augmented anew each time if asked; or with ``views`` as one of so many lasting views."""

    def __init__(self, examples: Sequence[Example], preprocess: Preprocess, augment: bool = False, views: int = 1):
        self.paths = [example.image for example in examples]
        self.preprocess, self.augment, self.views = preprocess, augment, views

    def __call__(self, indices: Sequence[int], rng: random.Random) -> Tensor:
        if self.views == 1:
            return torch.stack([self._pixels(index, rng) for index in indices])
        drawn = [rng.randrange(self.views) for _ in indices]  # as `CachedPhotos` draws them for the teacher
        return torch.stack(
            [view_pixels(self.preprocess, self.paths[photo], view) for photo, view in zip(indices, drawn)]
        )

    def _pixels(self, index: int, rng: random.Random) -> Tensor:
        image = open_image(self.paths[index])
        if not self.augment:
            return self.preprocess(image)
        return self.preprocess.augmented(image, torch.Generator().manual_seed(rng.getrandbits(63)))


class CachedPhotos:
    """Photos as cached features, one of their views at random."""

    def __init__(self, cache: Any):
        self.cache = cache

    def __call__(self, indices: Sequence[int], rng: random.Random) -> ImageFeatures:
        return self.cache.features(indices, [rng.randrange(self.cache.views) for _ in indices])


class BlankPhotos:
    """No photos: one empty grid cell each, so that a decoder can learn the language from captions alone."""

    def __init__(self, dimension: int):
        self.dimension = dimension

    def __call__(self, indices: Sequence[int], rng: random.Random) -> ImageFeatures:
        pooled = torch.zeros(len(indices), self.dimension)
        return ImageFeatures(pooled[:, None], pooled, 1, 1)


class CaptionLoader:
    """Iterate with ``epoch(number, skip)``; ``len`` is the number of batches of an epoch."""

    def __init__(
        self,
        captions: Sequence[Sequence[Sequence[int]]],  # of each photo, each caption as token ids
        source: PhotoSource,
        batch_size: int,
        choice: Literal["random", "all", "fixed"] = "random",
        per_photo: int = 1,
        by_length: bool = False,
        seed: int = 0,
        workers: int = 0,
        process: int = 0,
        processes: int = 1,
        pad: int = 0,
        teacher: PhotoSource | None = None,
        weights: Sequence[float] | None = None,  # of each photo: how often an epoch has it; None: once
    ):
        if by_length and choice == "random" and per_photo > 1:
            raise ConfigError(
                "data.by_length batches single captions: set data.captions_per_photo=1 or data.captions='all'"
            )
        if batch_size < processes:
            raise ConfigError(f"training.batch_size={batch_size} is smaller than the number of processes, {processes}")
        self.captions, self.source, self.teacher = captions, source, teacher
        self.batch_size, self.choice, self.per_photo, self.by_length = batch_size, choice, per_photo, by_length
        self.seed, self.workers, self.pad = seed, workers, pad
        self.process, self.processes = process, processes
        self.weights = weights

    def __len__(self) -> int:
        return len(self._plan(0))

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from batch ``skip`` on."""
        built = _Planned(self, number, self._plan(number))
        remaining = range(skip, len(built))
        if self.workers == 0:
            yield from (built[index] for index in remaining)
            return
        # A generator of its own: starting workers must not advance the one that dropout draws from.
        apart = torch.Generator().manual_seed(self.seed)
        loader = DataLoader(built, batch_size=None, sampler=list(remaining), num_workers=self.workers, generator=apart)
        yield from batches_of(loader)

    def _plan(self, epoch: int) -> list[list[tuple[int, list[int]]]]:
        """Batches of (photo, its chosen captions)."""
        rng = random.Random(f"{self.seed}/{epoch}")
        chosen = [(photo, self._choose(photo, rng)) for photo in self._photos(rng)]
        if self.by_length:
            return self._by_length([(photo, [caption]) for photo, picks in chosen for caption in picks], rng)
        rng.shuffle(chosen)
        return self._by_count(chosen, rng)

    def _photos(self, rng: random.Random) -> list[int]:
        """The photos of an epoch. One of weight 2.3 comes twice, and a third time in three epochs of ten."""
        if self.weights is None:
            return list(range(len(self.captions)))
        photos: list[int] = []
        for weight in sorted(set(self.weights)):
            group = [photo for photo, value in enumerate(self.weights) if value == weight]
            whole = int(weight)
            photos += group * whole + rng.sample(group, round((weight - whole) * len(group)))
        return photos

    def _by_count(self, chosen: list[tuple[int, list[int]]], rng: random.Random) -> list[list[tuple[int, list[int]]]]:
        """Batches whose photos have equally many captions: none is padded with empty ones.

        A batch is so many photos, whatever the number of their captions. So a photo with five captions weighs as much
        as a photo with one.
        """
        counts = sorted({len(picks) for _, picks in chosen})
        if len(counts) == 1:
            return _cut(chosen, self.batch_size)
        return self._grouped([[pair for pair in chosen if len(pair[1]) == count] for count in counts], rng)

    def _choose(self, photo: int, rng: random.Random) -> list[int]:
        count = len(self.captions[photo])
        if self.choice == "all":
            return list(range(count))
        wanted = min(self.per_photo, count)
        return rng.sample(range(count), wanted) if self.choice == "random" else list(range(wanted))

    def _by_length(self, pairs: list[tuple[int, list[int]]], rng: random.Random) -> list[list[tuple[int, list[int]]]]:
        """Batches whose captions have one length."""
        rng.shuffle(pairs)
        lengths: dict[int, list[tuple[int, list[int]]]] = {}
        for photo, picks in pairs:
            lengths.setdefault(len(self.captions[photo][picks[0]]), []).append((photo, picks))
        return self._grouped([lengths[length] for length in sorted(lengths)], rng)

    def _grouped(
        self, groups: Iterable[list[tuple[int, list[int]]]], rng: random.Random
    ) -> list[list[tuple[int, list[int]]]]:
        """Batches of one group each, in random order; the last ones of a group share a batch with their neighbours."""
        full, rest = [], []
        for group in groups:
            batches = _cut(group, self.batch_size)
            full += [batch for batch in batches if len(batch) == self.batch_size]
            rest += [pair for batch in batches if len(batch) < self.batch_size for pair in batch]
        batches = full + _cut(rest, self.batch_size)
        rng.shuffle(batches)
        return batches

    def build(self, epoch: int, number: int, plan: list[tuple[int, list[int]]]) -> Batch:
        tokens = sum(len(self.captions[photo][pick]) - 1 for photo, picks in plan for pick in picks)
        count = sum(len(picks) for _, picks in plan)
        # Every process takes its share of the photos; a process may be left with none of a small last batch.
        mine = plan[self.process :: self.processes] or plan[:1]
        idle = len(plan) <= self.process
        rng = f"{self.seed}/{epoch}/{number}/{self.process}"
        indices = [photo for photo, _ in mine]
        captions = [[] if idle else [self.captions[photo][pick] for pick in picks] for photo, picks in mine]
        return Batch(
            photos=self.source(indices, random.Random(rng)),
            tokens=pad_captions(captions, self.pad),
            indices=tuple(indices),
            token_count=tokens / self.processes,
            caption_count=count / self.processes,
            teacher=self.teacher(indices, random.Random(rng)) if self.teacher else None,  # the same views
        )


class _Planned(Dataset):
    def __init__(self, loader: CaptionLoader, epoch: int, plan: list[list[tuple[int, list[int]]]]):
        self.loader, self.number, self.plan = loader, epoch, plan

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, index: int) -> Batch:
        return self.loader.build(self.number, index, self.plan[index])


def batches_of(loader: DataLoader) -> Iterator[Any]:
    """A loader's batches. Its workers leave Ctrl-C to this process; their errors lose the traceback that torch adds."""
    with left_to_parent():
        batches = iter(loader)
    try:
        yield from batches
    except SightlineError as error:
        if loader.num_workers == 0:
            raise
        last = str(error).rstrip().rpartition("\n")[2]  # sightline.errors.ImageError: what happened
        raise type(error)(last.partition(": ")[2]) from None


def pad_captions(captions: Sequence[Sequence[Sequence[int]]], pad: int) -> Tensor:
    """(B*K, T): K is the most captions any of these photos has; missing ones are all padding."""
    most = max(1, max(map(len, captions)))
    longest = max([len(ids) for photo in captions for ids in photo], default=2)
    tokens = torch.full((len(captions) * most, longest), pad, dtype=torch.long)
    for photo, rows in enumerate(captions):
        for index, ids in enumerate(rows):
            tokens[photo * most + index, : len(ids)] = torch.as_tensor(ids)
    return tokens


def _cut(items: list[Any], size: int) -> list[list[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
