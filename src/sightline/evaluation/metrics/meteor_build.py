"""Turns METEOR 1.5's own data into the tables that `meteor_data` opens: WordNet synonyms and the paraphrase table.

The data is in the `pycocoevalcap` wheel: the jar is read as a zip archive and the paraphrases as a gzip file. Java is
never run and the package never imported. METEOR knows five million paraphrases; as Python objects they would take
minutes to load and gigabytes to hold. A `Table` is memory-mapped: opening it costs nothing, a lookup is a binary
search. Words and phrases are represented by 64-bit keys: among two million phrases the probability that a phrase
outside the table is mistaken for one inside is below 1 in 10^12.
"""

from __future__ import annotations

import gzip
import json
import zlib
from array import array
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import DTypeLike

from sightline.errors import DataError, install_command
from sightline.io.progress import track

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
    """Lists of numbers by 64-bit key, in three memory-mapped arrays.

    Row r holds `values[offsets[r]:offsets[r + 1]]` under `keys[r]`; keys are sorted.
    """

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


FORMAT = 1  # raise it when the layout of the tables changes: older ones are then built anew
BLOCK, BLOCKS = 30_000, 528  # lines read at a time, and how often: 5,274,084 paraphrases of three lines each
INSTALL = f"METEOR needs the synonyms and paraphrases in the pycocoevalcap wheel: {install_command('metrics')}"


class Source(NamedTuple):
    """The two files of the wheel that hold METEOR's data."""

    jar: Path
    paraphrases: Path

    def fingerprint(self) -> str:
        """Changes with the content of either file; both formats carry checksums, so little has to be read."""
        try:
            with ZipFile(self.jar) as jar:
                checksums = sorted((entry.filename, entry.CRC) for entry in jar.infolist())
            with self.paraphrases.open("rb") as file:
                file.seek(-8, 2)
                checksum = file.read().hex()
        except (BadZipFile, OSError) as error:
            raise self.damaged(error) from error
        return blake2b(repr((FORMAT, checksums, checksum)).encode(), digest_size=8).hexdigest()

    def damaged(self, error: Exception) -> DataError:
        """What to say when a file cannot be read."""
        return DataError(f"METEOR's data in {self.jar.parent} is damaged ({error}): reinstall pycocoevalcap")


def find_source() -> Source:
    """The two files of the installed wheel."""
    package = find_spec("pycocoevalcap")
    for folder in (package.submodule_search_locations or []) if package else []:
        source = Source(Path(folder, "meteor/meteor-1.5.jar"), Path(folder, "meteor/data/paraphrase-en.gz"))
        if source.jar.is_file() and source.paraphrases.is_file():
            return source
    raise DataError(INSTALL)


def build(source: Source, folder: Path) -> None:
    """Write all tables into an existing folder."""
    try:
        with ZipFile(source.jar) as jar:
            _build_words(jar, folder)
        _build_paraphrases(source.paraphrases, folder)
    except (BadZipFile, gzip.BadGzipFile, EOFError, zlib.error, KeyError, ValueError) as error:
        raise source.damaged(error) from error


def _build_words(jar: ZipFile, folder: Path) -> None:
    """Function words, abbreviations, synonym sets of a word, base forms of an irregular word."""

    def lines(name: str) -> list[str]:
        return jar.read(name).decode().splitlines()

    abbreviations = [line.split() for line in lines("nonbreaking/english.prefixes") if line and line[0] != "#"]
    words = {
        "function_words": lines("function/english.words"),
        "prefixes": {fields[0]: fields[1:] == ["#NUMERIC_ONLY#"] for fields in abbreviations if fields},
    }
    (folder / "words.json").write_text(json.dumps(words))

    synsets = lines("synonym/english.synsets")  # a line with the word, a line with its sets
    pairs = [(word_key(word), int(group)) for word, sets in _pairs(synsets) for group in sets.split()]
    _save_pairs(pairs, np.int32, folder, "synsets")

    exceptions = lines("synonym/english.exceptions")  # a line with the base form, a line with its inflections
    pairs = [(word_key(word), word_key(base)) for base, forms in _pairs(exceptions) for word in forms.split()]
    _save_pairs(pairs, np.uint64, folder, "bases")


def _pairs(lines: list[str]) -> Iterator[tuple[str, str]]:
    return zip(lines[::2], lines[1::2], strict=True)


def _save_pairs(pairs: list[tuple[int, int]], dtype: DTypeLike, folder: Path, name: str) -> None:
    keys = np.array([key for key, _ in pairs], np.uint64)
    values = np.array([value for _, value in pairs], dtype)
    Table.build(np.unique(keys), keys, values).save(folder, name)


def _build_paraphrases(path: Path, folder: Path) -> None:
    """One row per phrase, holding the rows of its paraphrases in the order of the file, which METEOR's ties follow."""
    sources, targets = array("Q"), array("Q")
    last, source = "", 0
    for block in track(_blocks(path), "indexing METEOR's paraphrases", total=BLOCKS):
        for phrase, paraphrase in zip(block[1::3], block[2::3], strict=True):
            if phrase != last:
                last, source = phrase, phrase_key(phrase.split())
            sources.append(source)
            targets.append(phrase_key(paraphrase.split()))
    entries = np.frombuffer(sources, np.uint64)
    values = np.frombuffer(targets, np.uint64)
    keys = np.union1d(entries, values)
    rows = np.searchsorted(keys, values).astype(np.uint32)
    Table.build(keys, entries, rows).save(folder, "paraphrases")


def _blocks(path: Path) -> Iterator[list[str]]:
    """The lines of the file: a probability (which METEOR does not use), a phrase, its paraphrase, and so on."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as text:
        while block := list(islice(text, BLOCK)):
            yield block
