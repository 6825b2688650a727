"""What every tokenizer is: a fixed list of tokens, text to ids and back, and plain JSON to keep it in.

Four ids are the same in every vocabulary: 0 pads a batch, 1 starts a caption, 2 ends it, 3 stands for the unknown.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

from sightline.errors import CheckpointError, ConfigError, DataError

SPECIAL = ("<pad>", "<start>", "<end>", "<unknown>")


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
    def words(self, ids: Sequence[int]) -> list[tuple[str, list[int]]]:
        """Each displayed word with the positions in ``ids`` that make it up; special ids make none."""

    def encode(self, text: str) -> list[int]:
        """start … end, at most ``max_length`` ids.

        A caption too long for that is cut and has no end: an end there would teach the model to stop in mid-sentence,
        or for characters in mid-word.
        """
        return [self.start, *self.text_ids(text), self.end][: self.max_length]

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
