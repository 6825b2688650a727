"""A read-only table from 64-bit keys to lists of numbers, kept in three memory-mapped arrays.

METEOR knows five million paraphrases; as Python objects they would take minutes to load and gigabytes to hold.
Here opening costs nothing and looking up is a binary search. Words and phrases are represented by 64-bit keys: among
two million phrases the chance that a phrase not in the table is mistaken for one that is, is below 1 in 10^12.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import numpy as np

MULTIPLIER = 0x9E3779B97F4A7C15  # odd, its bits well spread: neighbouring words end up far apart
MASK = (1 << 64) - 1


@lru_cache(maxsize=1_000_000)
def word_key(word: str) -> int:
    """The 64-bit key of one word."""
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")


def phrase_key(words: Iterable[str]) -> int:
    """The 64-bit key of a phrase; a phrase of one word has that word's key."""
    key = 0
    for word in words:
        key = (key * MULTIPLIER + word_key(word)) & MASK
    return key


def ngram_keys(keys: np.ndarray, longest: int) -> Iterable[np.ndarray]:
    """For length 1, 2, ... `longest`: the phrase keys of all n-grams of a text given by its words' keys (N,)."""
    grams = np.zeros(len(keys) + 1, np.uint64)
    for length in range(1, min(longest, len(keys)) + 1):
        grams = grams[:-1] * np.uint64(MULTIPLIER) + keys[length - 1 :]  # (N - length + 1,)
        yield grams


class Table:
    """Row r holds `values[offsets[r]:offsets[r + 1]]` under `keys[r]`; keys are sorted."""

    def __init__(self, keys: np.ndarray, offsets: np.ndarray, values: np.ndarray) -> None:
        self.keys, self.offsets, self.values = keys, offsets, values

    @classmethod
    def build(cls, keys: np.ndarray, entries: np.ndarray, values: np.ndarray) -> Table:
        """From sorted unique keys and any number of (entry's key, value) pairs; a row keeps its pairs' order."""
        rows = np.searchsorted(keys, entries)
        order = np.argsort(rows, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(keys)))])
        return cls(keys, offsets.astype(np.uint32), values[order])

    @classmethod
    def open(cls, folder: Path, name: str) -> Table:
        """Map the arrays that `save` wrote."""
        parts = [np.load(folder / f"{name}-{part}.npy", mmap_mode="r") for part in ("keys", "offsets", "values")]
        return cls(*map(np.asarray, parts))  # a plain view of the mapped file: np.memmap is slow to index

    def save(self, folder: Path, name: str) -> None:
        """Write the three arrays as plain .npy files."""
        for part in ("keys", "offsets", "values"):
            np.save(folder / f"{name}-{part}.npy", getattr(self, part), allow_pickle=False)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The row of each key, -1 where the table has none."""
        unique, inverse = np.unique(keys, return_inverse=True)  # in order, neighbours share the pages they touch
        rows = np.searchsorted(self.keys, unique)
        rows[rows == len(self.keys)] = 0
        return np.where(self.keys[rows] == unique, rows, -1)[inverse]

    def row(self, row: int) -> list[int]:
        """The values of one row."""
        return self.values[self.offsets[row] : self.offsets[row + 1]].tolist()

    def get(self, key: int) -> list[int] | None:
        """The values under one key, None where the table has none."""
        row = int(self.find(np.array([key], np.uint64))[0])
        return None if row < 0 else self.row(row)
