"""What every tokenizer is: a fixed list of tokens, text to ids and back, and plain JSON to keep it in.

Four ids are the same in every vocabulary: 0 pads a batch, 1 starts a caption, 2 ends it, 3 stands for the unknown.
Text has one spelling for every tokenizer. Words follow the PTB tokenisation of the COCO metrics, so the model spends no
step on what scoring drops: punctuation is left out, "tri-colored" stays one word, and "man's" is "man" and "'s" (one
shared token instead of a rare word for each owner). Joined again it reads "man's", which the metric splits as before.
"""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

from sightline.errors import CheckpointError, ConfigError, DataError

_SPELLINGS = str.maketrans({"‘": "'", "’": "'", "\u02bc": "'", "`": "'", "\u2010": "-", "\u2011": "-", "\u00ad": None})
# Listing what ends a word, rather than what makes one, keeps every alphabet and its combining marks.
_CHUNK = re.compile(r"[^\s!-%(-,./:-@\[-`{-~¡§«»¿–—“”„…、。]+")
_CLITICS = frozenset({"n't", "'s", "'re", "'ve", "'ll", "'d", "'m"})
SPECIAL = ("<pad>", "<start>", "<end>", "<unknown>")


def normalise(text: str) -> str:
    """Lower case, one form of every character (NFKC), straight apostrophes, single spaces."""
    text = unicodedata.normalize("NFKC", text).translate(_SPELLINGS).lower()
    return " ".join(text.split())


def split_words(text: str) -> list[str]:
    """The words of a text, without punctuation: "A man's t-shirt ." gives a, man, 's, t-shirt."""
    words = []
    for chunk in _CHUNK.findall(normalise(text)):
        endings: list[str] = []
        chunk = chunk.rstrip("'-").lstrip("-")
        end = len(chunk)
        while clitic := _clitic_before(chunk, end):  # "couldn't've" has two
            end -= len(clitic)
            endings.append(clitic)
        chunk = chunk[:end]
        if chunk not in _CLITICS:
            chunk = chunk.strip("'-")
        words += [chunk] * bool(chunk) + endings[::-1]
    return words


def _clitic_before(chunk: str, end: int) -> str:
    """The clitic that ends there, after at least one character of a word; the chunk is not copied."""
    for clitic in _CLITICS:
        start = end - len(clitic)
        if start > 0 and chunk.startswith(clitic, start) and chunk[start - 1] not in "'-":
            return clitic
    return ""


def is_clitic(word: str) -> bool:
    """Whether a word is written onto the one before it."""
    return word in _CLITICS


def join_words(words: Sequence[str]) -> str:
    """A readable sentence of words: "man", "'s" gives "man's"."""
    return "".join(word if is_clitic(word) else f" {word}" for word in words).lstrip()


class Tokenizer(ABC):
    """Text to ids and back. ``max_length`` counts every token of a caption, start and end included."""

    name: ClassVar[str]
    pad: ClassVar[int] = 0
    start: ClassVar[int] = 1
    end: ClassVar[int] = 2
    unknown: ClassVar[int] = 3

    def __init__(self, tokens: Sequence[str], max_length: int) -> None:
        """``tokens`` are all tokens in the order of their ids, the four special ones first."""
        check_max_length(max_length)
        self.tokens = tuple(tokens)
        self.max_length = max_length
        self.ids = {token: number for number, token in enumerate(self.tokens)}

    @property
    def size(self) -> int:
        """V: how many ids there are, special ones included."""
        return len(self.tokens)

    @classmethod
    @abstractmethod
    def train(cls, captions: Iterable[str], *args: Any, **options: Any) -> Self:
        """A vocabulary learned from these captions, which must be the training split's only."""

    @abstractmethod
    def normalise(self, text: str) -> str:
        """The text as this tokenizer would give it back were every token known."""

    @abstractmethod
    def text_ids(self, text: str) -> list[int]:
        """The ids of a text of any length, without start and end."""

    @abstractmethod
    def prefix(self, text: str, tokens: int) -> str:
        """What the first ``tokens`` tokens of a text stand for, in its normalised form."""

    @abstractmethod
    def words(self, ids: Sequence[int]) -> list[tuple[str, list[int]]]:
        """Each displayed word with the positions in ``ids`` that make it up; special ids make none."""

    def encode(self, text: str) -> list[int]:
        """start … end, at most ``max_length`` ids.

        A caption too long for that is cut and has no end: an end there would teach the model to stop in mid-sentence,
        or for characters in mid-word.
        """
        return [self.start, *self.text_ids(text), self.end][: self.max_length]

    def character_count(self, text: str) -> int:
        """How many characters ``encode`` keeps of a text, its end counting as one: all unless the caption is cut."""
        room = self.max_length - 1  # after the start
        if len(self.text_ids(text)) < room:
            return len(self.normalise(text)) + 1
        return len(self.prefix(text, room))

    def decode(self, ids: Sequence[int]) -> str:
        """A clean sentence: everything up to the first end, without special ids."""
        return " ".join(word for word, _ in self.words(ids))

    def coverage(self, captions: Iterable[str]) -> float:
        """The share of these captions' tokens that the vocabulary knows, from 0 to 1."""
        known = total = 0
        for caption in captions:
            ids = self.text_ids(caption)
            total += len(ids)
            known += len(ids) - ids.count(self.unknown)
        return known / total if total else 1.0

    def extended(self, captions: Iterable[str], min_count: int) -> Self:
        """The same ids, and after them new ones for what else occurs so often; pieces of words spell it as they are."""
        return self

    def to_json(self) -> dict[str, Any]:
        """All that ``from_json`` needs, as plain JSON."""
        return {"name": self.name, "max_length": self.max_length, "tokens": list(self.tokens)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The same tokenizer again; a damaged file is a CheckpointError that names the damage."""
        check_json(data, cls.name, {"name", "max_length", "tokens"})
        return cls(data["tokens"], data["max_length"])

    def _positions(self, ids: Sequence[int]) -> list[tuple[int, str]]:
        """Position and token of every id before the first end that is not special."""
        shown = []
        for position, number in enumerate(ids):
            if number == self.end:
                break
            if number >= len(SPECIAL):
                shown.append((position, self.tokens[number]))
        return shown


def check_max_length(max_length: int) -> None:
    if max_length < 3:
        raise ConfigError(f"max_length is {max_length}; give at least 3, room for start, one token and end")


def count_tokens(texts: Iterable[Iterable[str]]) -> Counter[str]:
    """How often each token occurs in the training captions."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    if not counts:
        raise DataError("no caption has a word in it; a vocabulary needs at least one training caption")
    return counts


def check_json(data: dict[str, Any], name: str, keys: set[str]) -> None:
    """Raise a CheckpointError that names what is wrong with a saved tokenizer, if anything is."""
    problems = [f"{key!r} is missing" for key in sorted(keys - set(data))]
    problems += [f"{key!r} is not a known key" for key in sorted(set(data) - keys, key=str)]
    if not problems:
        problems = _value_problems(data, name)
    if problems:
        raise CheckpointError(f"the saved {name} tokenizer is damaged: {'; '.join(problems)}; copy the file again")


def _value_problems(data: dict[str, Any], name: str) -> list[str]:
    problems = []
    if data["name"] != name:
        problems.append(f"'name' is {data['name']!r}, not {name!r}")
    length = data["max_length"]
    if type(length) is not int or length < 3:
        problems.append(f"'max_length' is {length!r}, not a whole number of at least 3")
    tokens = data["tokens"]
    if not isinstance(tokens, list) or not all(isinstance(token, str) and token for token in tokens):
        return [*problems, "'tokens' is not a list of non-empty strings"]
    if tuple(tokens[: len(SPECIAL)]) != SPECIAL:
        problems.append(f"the first ids are {tokens[: len(SPECIAL)]}, not {list(SPECIAL)}")
    twice = [token for token, count in Counter(tokens).items() if count > 1]
    if twice:
        problems.append(f"{len(twice)} tokens have two ids, {twice[0]!r} among them")
    return problems
