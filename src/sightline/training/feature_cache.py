"""A frozen encoder's features, computed once and kept on disk: memory-mapped, half precision, resumable.

A cache is a folder named by everything the numbers depend on (encoder, its weights, preprocessing, the photos, the
augmented views), so stale features are never taken for fresh ones. ``done`` marks finished photos: a run that was
killed goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from sightline.data import Example
from sightline.data.loader import view_pixels
from sightline.errors import DataError
from sightline.io.files import byte_count, cache_folder, counted, write_atomically
from sightline.io.progress import track
from sightline.nn.encoders import Encoder
from sightline.nn.encoders.weights import fingerprint
from sightline.types import ImageFeatures

log = logging.getLogger(__name__)
LARGEST = float(np.finfo(np.float16).max)


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
    ):
        self.encoder, self.examples, self.views, self.seed = encoder, list(examples), views, seed
        self.shape = (encoder.height, encoder.width) if grid else (0, 0)
        self.folder = (root or cache_folder() / "features") / f"{encoder.name.replace('/', '-')}-{self._key(grid)}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            rows = len(self.examples) * views
            places = self.shape[0] * self.shape[1]
            self._pooled = self._map("pooled.f16", (rows, encoder.dimension), np.float16)
            self._grid = self._map("grid.f16", (rows, places, encoder.dimension), np.float16) if grid else None
            self._done = self._map("done.u8", (rows,), np.uint8)
        except OSError as error:
            raise DataError(f"cannot keep features in {self.folder}: {error.strerror}; set SIGHTLINE_CACHE") from None

    def _key(self, grid: bool) -> str:
        photos = [(example.name, byte_count(example.image)) for example in self.examples]
        parts = [self.encoder.spec(), fingerprint(self.encoder), grid, self.views, self.seed, photos]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def _map(self, name: str, shape: tuple[int, ...], dtype: type) -> np.memmap:
        path = self.folder / name
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if not path.exists():
            with path.open("wb") as file:
                file.truncate(size)
        if path.stat().st_size != size:
            raise DataError(f"{path} has {path.stat().st_size} bytes, expected {size}; delete its folder")
        return np.memmap(path, dtype=dtype, mode="r+", shape=shape)

    @property
    def complete(self) -> bool:
        return self.is_filled()

    @property
    def rows(self) -> int:
        """Photos times views."""
        return len(self._done)

    def is_filled(self, share: slice = slice(None)) -> bool:
        return bool(self._done[share].all())

    @torch.no_grad()
    def fill(
        self,
        batch_size: int = 32,
        device: str | torch.device = "cpu",
        workers: int = 0,
        share: slice = slice(None),
    ) -> FeatureCache:
        """Compute what is missing, or of some rows what is missing."""
        todo = np.arange(len(self._done))[share]
        todo = todo[self._done[share] == 0]
        if len(todo) == 0:
            return self
        self.encoder.to(device).eval()
        batches = [todo[start : start + batch_size] for start in range(0, len(todo), batch_size)]
        pixels = torch.utils.data.DataLoader(
            _Pixels(self, batches),
            batch_size=None,
            num_workers=workers,
            prefetch_factor=2 if workers else None,
            generator=torch.Generator(),  # its own: a run must not depend on whether its features were cached before
        )
        label = f"{self.encoder.name} features of {counted(len(self.examples), 'photo')}"
        for rows, images in zip(batches, track(pixels, label, len(batches))):
            features = self.encoder(images.to(device))
            self._pooled[rows] = features.pooled.clamp(-LARGEST, LARGEST).half().cpu().numpy()
            if self._grid is not None:
                self._grid[rows] = features.grid.clamp(-LARGEST, LARGEST).half().cpu().numpy()
            self._flush()
            self._done[rows] = 1  # only after the numbers are written
        self._done.flush()
        described = {"encoder": self.encoder.spec(), "photos": len(self.examples), "views": self.views}
        write_atomically(self.folder / "about.json", json.dumps(described, indent=2))
        return self

    def _flush(self) -> None:
        self._pooled.flush()
        if self._grid is not None:
            self._grid.flush()

    def features(self, photos: Sequence[int], views: Sequence[int] | None = None) -> ImageFeatures:
        """The features of these photos, in float32."""
        rows = np.asarray(photos) * self.views + (np.asarray(views) if views is not None else 0)
        pooled = torch.from_numpy(self._pooled[rows]).float()
        if self._grid is None:
            return ImageFeatures(pooled.new_zeros(len(rows), 0, pooled.shape[1]), pooled, 0, 0)
        return ImageFeatures(torch.from_numpy(self._grid[rows]).float(), pooled, *self.shape)


class _Pixels(torch.utils.data.Dataset):
    """Preprocessed pixels of one batch of cache rows: worker processes decode while the encoder computes."""

    def __init__(self, cache: FeatureCache, batches: list[np.ndarray]):
        self.examples, self.views, self.seed = cache.examples, cache.views, cache.seed
        self.preprocess, self.batches = cache.encoder.preprocess, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.stack([self._pixels(int(row)) for row in self.batches[index]])

    def _pixels(self, row: int) -> torch.Tensor:
        photo, view = divmod(row, self.views)
        return view_pixels(self.preprocess, self.examples[photo].image, view, self.seed * 1_000_003 + row)
