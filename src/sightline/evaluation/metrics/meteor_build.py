"""Turns METEOR 1.5's own data into the tables `meteor_data` maps: WordNet synonyms and the paraphrase table.

The data lies in the `pycocoevalcap` wheel: the jar is read as a zip archive and the paraphrases as a gzip file.
Java is never run and the package never imported.
"""

from __future__ import annotations

import gzip
import json
import zlib
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import DTypeLike

from sightline.errors import DataError
from sightline.evaluation.metrics.meteor_table import Table, phrase_key, word_key
from sightline.io.progress import track

FORMAT = 1  # raise it when the layout of the tables changes: older ones are then built anew
BLOCK, BLOCKS = 30_000, 528  # lines read at a time, and how often: 5,274,084 paraphrases of three lines each
INSTALL = "METEOR needs the synonyms and paraphrases in the pycocoevalcap wheel: pip install pycocoevalcap"


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
    """Where the wheel lies."""
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
