"""What METEOR knows about English, opened in milliseconds from an index in the user's cache folder.

The index is built on first use (half a minute, 50 MB) and again whenever the wheel it came from changes.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sightline.errors import DataError
from sightline.evaluation.metrics.meteor_build import Source, Table, build, find_source, ngram_keys, word_key
from sightline.evaluation.metrics.meteor_words import Sentence, Word, normalize, stem
from sightline.io.files import cache_folder

LONGEST_PHRASE = 7  # words in the longest phrase of the paraphrase table
# Inflections undone to find a word in WordNet, in this order; the first that gives a known word counts.
INFLECTIONS = [
    *[("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("men", "man")],
    *[("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")],
    *[("er", ""), ("est", ""), ("er", "e"), ("est", "e")],
]
log = logging.getLogger(__name__)


class MeteorData:
    """Turns captions into sentences the aligner can compare."""

    def __init__(self, folder: Path) -> None:
        words = json.loads((folder / "words.json").read_text())
        self.function_words: frozenset[str] = frozenset(words["function_words"])
        self.prefixes: dict[str, bool] = words["prefixes"]
        self.synsets = Table.open(folder, "synsets")
        self.bases = Table.open(folder, "bases")
        self.paraphrases = Table.open(folder, "paraphrases")
        self._words: dict[str, Word] = {}
        self._rows: dict[int, dict[int, int]] = {}

    def sentences(self, captions: Sequence[Sequence[str]]) -> list[Sentence]:
        """One sentence per tokenised caption."""
        texts = [normalize(" ".join(tokens).replace("|||", ""), self.prefixes) for tokens in captions]
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
            sentences[owner].add_phrase(row, position - begins[owner], length + 1, self._paraphrases(row))

    def _paraphrases(self, row: int) -> dict[int, int]:
        """The paraphrases of a phrase, each with its rank in the table."""
        if row not in self._rows:
            self._rows[row] = {target: rank for rank, target in enumerate(self.paraphrases.row(row))}
        return self._rows[row]


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
