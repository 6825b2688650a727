"""Words as tokens: those that the training captions have often enough, the most frequent first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self

from sightline.errors import ConfigError
from sightline.tokenizers.base import (
    SPECIAL,
    Tokenizer,
    check_max_length,
    count_tokens,
    is_clitic,
    join_words,
    split_words,
)


class WordTokenizer(Tokenizer):
    """Words without punctuation, as the metrics see them; ``split_words`` says what a word is."""

    name = "word"

    @classmethod
    def train(
        cls, captions: Iterable[str], *, min_count: int = 5, size: int | None = None, max_length: int = 20
    ) -> Self:
        """Words that occur at least ``min_count`` times; with ``size``, only so many tokens, special ones included."""
        check_max_length(max_length)
        if min_count < 1:
            raise ConfigError(f"min_count is {min_count}; give 1 to keep every word, or more")
        if size is not None and size <= len(SPECIAL):
            raise ConfigError(f"size is {size}; give more than {len(SPECIAL)}, the special tokens alone take those")
        counts = count_tokens(split_words(caption) for caption in captions)
        ranked = _ranked(counts)
        tokens = [*SPECIAL, *(word for word in ranked if counts[word] >= min_count)][:size]
        if len(tokens) == len(SPECIAL):
            most = counts[ranked[0]]
            raise ConfigError(f"min_count is {min_count} but no word occurs more than {most} times; give that or less")
        return cls(tokens, max_length)

    def extended(self, captions: Iterable[str], min_count: int) -> Self:
        counts = count_tokens(split_words(caption) for caption in captions)
        new = [word for word in _ranked(counts) if counts[word] >= min_count and word not in self.ids]
        return type(self)([*self.tokens, *new], self.max_length)

    def normalise(self, text: str) -> str:
        return join_words(split_words(text))

    def text_ids(self, text: str) -> list[int]:
        return [self.ids.get(word, self.unknown) for word in split_words(text)]

    def prefix(self, text: str, tokens: int) -> str:
        return join_words(split_words(text)[:tokens])

    def words(self, ids: Sequence[int]) -> list[tuple[str, list[int]]]:
        words: list[tuple[str, list[int]]] = []
        for position, token in self._positions(ids):
            if is_clitic(token) and words:
                text, positions = words[-1]
                words[-1] = (text + token, [*positions, position])
            else:
                words.append((token, [position]))
        return words


def _ranked(counts: Counter[str]) -> list[str]:
    """By count, then alphabet: equal counts must not change ids from one run to the next."""
    return sorted(counts, key=lambda word: (-counts[word], word))
