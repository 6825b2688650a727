"""A frozen encoder's features, computed once and kept on disk: half precision, memory-mapped, resumable.

A cache is a folder named by everything the numbers depend on: the encoder, its weights and preprocessing, and the
precision it computed in. A photo is found by its content, so datasets that share photos share features, and a photo
that was renamed or moved is not encoded again. Each process appends to a segment of its own (``keys.bin``,
``pooled.f16``, ``grid.f16``). A photo's key is written after its numbers: what a killed run left half done is ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from sightline.data import Example
from sightline.data.loader import batches_of, view_pixels
from sightline.errors import DataError
from sightline.io.files import cache_folder, content_digest, counted, write_atomically, writing
from sightline.io.progress import track
from sightline.nn.encoders import Encoder
from sightline.nn.encoders.base import fingerprint
from sightline.types import ImageFeatures

LARGEST = float(np.finfo(np.float16).max)
KEY = 16  # bytes of a photo's key
PRECISIONS = ("float32", "bfloat16", "int8")


class FeatureCache:
    """Features of a list of photos, by position in that list; view 0 is the plain photo, the others are augmented."""

    def __init__(
        self,
        encoder: Encoder,
        examples: Sequence[Example],
        root: Path | None = None,
        grid: bool = True,
        views: int = 1,
        seed: int = 0,
        precision: str = "float32",
    ):
        self.encoder, self.examples, self.views, self.seed = encoder, list(examples), views, seed
        self.precision = precision
        self.shape = (encoder.height, encoder.width) if grid else (0, 0)
        about = [encoder.spec(), fingerprint(encoder), grid, precision]
        name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
        self.folder = (root or cache_folder() / "features") / f"{encoder.name.replace('/', '-')}-{name}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.keys = [key for example in self.examples for key in self._keys(example)]
            self._open()
        except OSError as error:
            raise DataError(f"cannot keep features in {self.folder}: {error.strerror}; set SIGHTLINE_CACHE") from None

    def _keys(self, example: Example) -> list[bytes]:
        content = content_digest(example.image)
        suffixes = [b"", *(f"/{view}/{self.seed}".encode() for view in range(1, self.views))]
        return [hashlib.sha256(content + suffix).digest()[:KEY] if suffix else content[:KEY] for suffix in suffixes]

    def _open(self) -> None:
        """Map every segment, and note where each of our photos lies: (segment, row), or -1 where it is missing."""
        self._segments = [_Segment(folder, self.encoder.dimension, self.cells) for folder in _segments(self.folder)]
        found = {key: (n, row) for n, segment in enumerate(self._segments) for row, key in enumerate(segment.keys)}
        self._rows = np.array([found.get(key, (-1, -1)) for key in self.keys], np.int64).reshape(-1, 2)

    @property
    def cells(self) -> int:
        """Grid cells of a photo; 0 where only the pooled vector is kept."""
        return self.shape[0] * self.shape[1]

    @property
    def complete(self) -> bool:
        return self.is_filled()

    @property
    def rows(self) -> int:
        """Photos times views."""
        return len(self.keys)

    def is_filled(self, share: slice = slice(None)) -> bool:
        return bool((self._rows[share, 0] >= 0).all())

    @torch.no_grad()
    def fill(
        self,
        batch_size: int = 32,
        device: str | torch.device = "cpu",
        workers: int = 0,
        share: slice = slice(None),
    ) -> FeatureCache:
        """Compute what is missing, or of some rows what is missing."""
        wanted = np.arange(self.rows)[share]
        missing = {self.keys[row]: row for row in wanted[self._rows[share, 0] < 0]}  # a photo listed twice: once
        todo = np.array(sorted(missing.values()), np.int64)
        if len(todo) == 0:
            return self
        encode = self._encode(device)
        batches = [todo[start : start + batch_size] for start in range(0, len(todo), batch_size)]
        pixels = torch.utils.data.DataLoader(
            _Pixels(self, batches),
            batch_size=None,
            num_workers=workers,
            prefetch_factor=2 if workers else None,
            generator=torch.Generator(),  # its own: a run must not depend on whether its features were cached before
        )
        label = f"{self.encoder.name} features of {counted(len(todo), 'photo' if self.views == 1 else 'view')}"
        with writing(self.folder), _Writer(self.folder, with_grid=bool(self.cells)) as writer:
            for rows, images in zip(batches, track(batches_of(pixels), label, len(batches))):
                grid, pooled = encode(images)
                writer.append([self.keys[row] for row in rows], pooled, grid)
        described = {"encoder": self.encoder.spec(), "precision": self.precision, "cells": self.cells}
        write_atomically(self.folder / "about.json", json.dumps(described, indent=2))
        self._open()
        return self

    def _encode(self, device: str | torch.device) -> Callable[[Tensor], tuple[np.ndarray, np.ndarray]]:
        """Pixels to grid and pooled vectors, computed in this cache's precision."""
        if self.precision == "int8":
            from sightline.onnx.export import encoder_session

            session = encoder_session(self.encoder, "int8")

            def one_by_one(images: Tensor) -> tuple[np.ndarray, np.ndarray]:
                """int8 scales activations by a batch's largest: neighbours would change a photo's features."""
                grids, vectors = zip(*(session(image[None].numpy()) for image in images))
                return np.concatenate(grids), np.concatenate(vectors)

            return one_by_one
        encoder = self.encoder.to(device).eval()
        kind = torch.device(device).type

        def run(images: Tensor) -> tuple[np.ndarray, np.ndarray]:
            with torch.autocast(kind, torch.bfloat16, enabled=self.precision == "bfloat16"):
                features = encoder(images.to(device))
            return features.grid.float().cpu().numpy(), features.pooled.float().cpu().numpy()

        return run

    def features(self, photos: Sequence[int], views: Sequence[int] | None = None) -> ImageFeatures:
        """The features of these photos, in float32."""
        rows = np.asarray(photos) * self.views + (np.asarray(views) if views is not None else 0)
        pooled = torch.from_numpy(self._gather(rows, "pooled")).float()
        if not self.cells:
            return ImageFeatures(pooled.new_zeros(len(rows), 0, pooled.shape[1]), pooled, 0, 0)
        return ImageFeatures(torch.from_numpy(self._gather(rows, "grid")).float(), pooled, *self.shape)

    def _gather(self, rows: np.ndarray, name: str) -> np.ndarray:
        where = self._rows[rows]
        if (where[:, 0] < 0).any():
            raise DataError(f"{self.folder} lacks features that are asked for; fill it first")
        first = getattr(self._segments[where[0, 0]], name) if len(rows) else np.empty((0, 0))
        values = np.empty((len(rows), *first.shape[1:]), np.float16)
        for segment in np.unique(where[:, 0]):
            in_segment = where[:, 0] == segment
            values[in_segment] = getattr(self._segments[segment], name)[where[in_segment, 1]]
        return values


class _Segment:
    """What one process appended, as far as its keys go."""

    def __init__(self, folder: Path, dimension: int, cells: int):
        data = (folder / "keys.bin").read_bytes()
        self.keys = [data[start : start + KEY] for start in range(0, len(data) // KEY * KEY, KEY)]
        self.pooled = self._map(folder / "pooled.f16", (len(self.keys), dimension))
        self.grid = self._map(folder / "grid.f16", (len(self.keys), cells, dimension)) if cells else None

    @staticmethod
    def _map(path: Path, shape: tuple[int, ...]) -> np.ndarray:
        size = 2 * int(np.prod(shape))
        if size == 0:
            return np.empty(shape, np.float16)
        if not path.exists() or path.stat().st_size < size:
            held = path.stat().st_size if path.exists() else 0
            raise DataError(f"{path} has {held} bytes, expected {size} or more; delete its folder")
        return np.memmap(path, dtype=np.float16, mode="r", shape=shape)


class _Writer:
    """A new segment; numbers reach the disk before the keys that vouch for them."""

    def __init__(self, cache: Path, with_grid: bool):
        self.folder = cache / f"segment-{os.getpid()}-{secrets.token_hex(4)}"
        self.names = ("pooled.f16", "grid.f16", "keys.bin") if with_grid else ("pooled.f16", "keys.bin")

    def __enter__(self) -> _Writer:
        self.folder.mkdir()
        self.files: dict[str, IO[bytes]] = {name: (self.folder / name).open("wb") for name in self.names}
        return self

    def append(self, keys: list[bytes], pooled: np.ndarray, grid: np.ndarray) -> None:
        for name, values in (("pooled.f16", pooled), ("grid.f16", grid)):
            if name in self.files:
                self.files[name].write(np.clip(values, -LARGEST, LARGEST).astype(np.float16).tobytes())
                self.files[name].flush()
                os.fsync(self.files[name].fileno())
        self.files["keys.bin"].write(b"".join(keys))
        self.files["keys.bin"].flush()

    def __exit__(self, *error: object) -> None:
        for file in self.files.values():
            file.close()


def _segments(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/keys.bin"))


class _Pixels(torch.utils.data.Dataset[Tensor]):
    """Preprocessed pixels of one batch of cache rows: worker processes decode while the encoder computes."""

    def __init__(self, cache: FeatureCache, batches: list[np.ndarray]):
        self.examples, self.views, self.seed = cache.examples, cache.views, cache.seed
        self.preprocess, self.batches = cache.encoder.preprocess, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Tensor:
        return torch.stack([self._pixels(int(row)) for row in self.batches[index]])

    def _pixels(self, row: int) -> Any:
        photo, view = divmod(row, self.views)
        return view_pixels(self.preprocess, self.examples[photo].image, view, self.seed)
