"""What METEOR knows about English, opened in milliseconds from an index in the user's cache folder.

The index is built on first use (half a minute, 50 MB) and again whenever the wheel it came from changes.
The data is in the `pycocoevalcap` wheel: the jar is read as a zip archive and the paraphrases as a gzip file. Java is
never run and the package never imported. METEOR knows five million paraphrases; as Python objects they would take
minutes to load and gigabytes to hold. A `Table` is memory-mapped: opening it costs nothing, a lookup is a binary
search. Words and phrases are represented by 64-bit keys: among two million phrases the probability that a phrase
outside the table is mistaken for one inside is below 1 in 10^12.
"""

from __future__ import annotations

import gzip
import json
import logging
import tempfile
import time
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import blake2b
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import DTypeLike

from sightline.errors import DataError, install_command
from sightline.evaluation.metrics.meteor_words import normalize
from sightline.evaluation.metrics.snowball import stem
from sightline.io.files import cache_folder
from sightline.io.progress import track

MULTIPLIER = 0x9E3779B97F4A7C15  # odd, its bits well spread: neighbouring words end up far apart
MASK = (1 << 64) - 1
FORMAT = 2  # raise it when the layout of the tables changes: older ones are then built anew
LONGEST_PHRASE = 7  # words in the longest phrase of the paraphrase table
LONGEST = 200  # words of a sentence that are aligned; the rest counts as unmatched
# Inflections undone to find a word in WordNet, in this order; the first that gives a known word counts. The endings are
# those that WordNet's manual lists for nouns, verbs and adjectives (morphy, section 7WN, "Rules of Detachment").
INFLECTIONS = [
    *[("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("men", "man")],
    *[("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")],
    *[("er", ""), ("est", ""), ("er", "e"), ("est", "e")],
]
log = logging.getLogger(__name__)


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
        "abbreviations": {fields[0]: fields[1:] == ["#NUMERIC_ONLY#"] for fields in abbreviations if fields},
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


class Word(NamedTuple):
    """A word with everything it is compared by."""

    text: str
    stem: str
    synsets: frozenset[int]
    is_function: bool


Positions = dict[Any, list[int]]


@dataclass(eq=False)
class Sentence:
    """A caption's words, and its phrases that the paraphrase table knows."""

    words: list[Word]
    phrases: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # row: start and length of each occurrence
    paraphrases: dict[int, dict[int, int]] = field(default_factory=dict)  # row: its paraphrases' rows and their ranks

    @cached_property
    def positions(self) -> tuple[Positions, Positions, Positions]:
        """Where each text, each stem and each synonym set occurs."""
        texts: Positions = {}
        stems: Positions = {}
        synsets: Positions = {}
        for position, word in enumerate(self.words[:LONGEST]):
            texts.setdefault(word.text, []).append(position)
            stems.setdefault(word.stem, []).append(position)
            for group in word.synsets:
                synsets.setdefault(group, []).append(position)
        return texts, stems, synsets


class MeteorData:
    """Turns captions into sentences the aligner can compare."""

    def __init__(self, folder: Path) -> None:
        words = json.loads((folder / "words.json").read_text())
        self.function_words: frozenset[str] = frozenset(words["function_words"])
        self.abbreviations: dict[str, bool] = words["abbreviations"]
        self.synsets = Table.open(folder, "synsets")
        self.bases = Table.open(folder, "bases")
        self.paraphrases = Table.open(folder, "paraphrases")
        self._words: dict[str, Word] = {}
        self._ranks: dict[int, dict[int, int]] = {}

    def sentences(self, captions: Sequence[Sequence[str]]) -> list[Sentence]:
        """One sentence per tokenised caption."""
        texts = [normalize(" ".join(tokens).replace("|||", "").split(), self.abbreviations) for tokens in captions]
        sentences = [Sentence([self.word(word) for word in text]) for text in texts]
        self._find_phrases(texts, sentences)
        return sentences

    def word(self, text: str) -> Word:
        """A word with its stem and synonym sets."""
        if text not in self._words:
            self._words[text] = Word(text, stem(text), self._synonym_sets(text), text in self.function_words)
        return self._words[text]

    def _synonym_sets(self, text: str) -> frozenset[int]:
        """WordNet's sets of the word itself and of its base form."""
        sets = set(self.synsets.get(word_key(text)) or ())
        bases = self.bases.get(word_key(text))
        if bases is not None:
            return frozenset(sets.union(*(self.synsets.get(base) or () for base in bases)))
        if len(text) > 2 and not text.endswith("ss"):
            for suffix, ending in INFLECTIONS:
                base = self.synsets.get(word_key(text.removesuffix(suffix) + ending)) if text.endswith(suffix) else None
                if base is not None:
                    return frozenset(sets.union(base))
        return frozenset(sets)

    def _find_phrases(self, texts: list[list[str]], sentences: list[Sentence]) -> None:
        """Tell each sentence which of its n-grams the paraphrase table knows: all n-grams looked up at once."""
        keys = np.array([word_key(word) for text in texts for word in text], np.uint64)
        lengths = np.array([len(text) for text in texts], np.int64)
        ends = np.repeat(np.cumsum(lengths), lengths)  # for each word: where its sentence ends
        # Row of the phrase of length 1, 2, ... that starts at each word.
        rows = np.full((len(keys), LONGEST_PHRASE), -1)
        for length, grams in enumerate(ngram_keys(keys, LONGEST_PHRASE)):
            rows[: len(grams), length] = self.paraphrases.find(grams)
        rows[np.arange(len(keys))[:, None] + np.arange(LONGEST_PHRASE) >= ends[:, None]] = -1
        owners = np.repeat(np.arange(len(texts)), lengths).tolist()
        begins = (np.cumsum(lengths) - lengths).tolist()
        for position, length in np.argwhere(rows >= 0).tolist():
            owner, row = owners[position], int(rows[position, length])
            sentence, start = sentences[owner], position - begins[owner]
            if start + length >= LONGEST:
                continue
            sentence.phrases.setdefault(row, []).append((start, length + 1))
            if row not in sentence.paraphrases:
                sentence.paraphrases[row] = self._paraphrases(row)

    def _paraphrases(self, row: int) -> dict[int, int]:
        """The paraphrases of a phrase, each with its rank in the order of the file."""
        if row not in self._ranks:
            self._ranks[row] = {paraphrase: rank for rank, paraphrase in enumerate(self.paraphrases.row(row))}
        return self._ranks[row]


def load() -> MeteorData:
    """Open the index, building it first where there is none for the installed wheel."""
    source = find_source()
    folder = cache_folder() / f"meteor-{source.fingerprint()}"
    if not folder.is_dir():
        _build_into(source, folder)
    try:
        return MeteorData(folder)
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise DataError(f"METEOR's index in {folder} is damaged ({error}): delete that folder") from error


def _build_into(source: Source, folder: Path) -> None:
    """Build aside and rename, so that a half-written index is never opened and two processes may build at once."""
    log.info("building METEOR's index in %s: once, about half a minute", folder)
    began = time.perf_counter()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".meteor-", dir=folder.parent) as aside:
            ready = Path(aside, "index")
            ready.mkdir()
            build(source, ready)
            try:
                ready.rename(folder)
            except OSError:
                if not folder.is_dir():  # unless another process was quicker
                    raise
    except OSError as error:
        raise DataError(f"cannot write METEOR's index to {folder} ({error}): set SIGHTLINE_CACHE") from error
    log.info("METEOR's index is ready after %.0f s", time.perf_counter() - began)
