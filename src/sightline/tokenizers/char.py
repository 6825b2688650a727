"""Characters as tokens: every lower-case character of the training captions, the space included."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

from sightline.tokenizers.base import SPECIAL, Tokenizer, check_max_length, count_tokens, normalise


class CharTokenizer(Tokenizer):
    """Keeps punctuation as written; 48 tokens hold an average Flickr8k caption, longer ones are cut without an end."""

    name = "char"

    @classmethod
    def train(cls, captions: Iterable[str], *, max_length: int = 48) -> Self:
        check_max_length(max_length)
        counts = count_tokens(normalise(caption) for caption in captions)
        return cls([*SPECIAL, *sorted(counts)], max_length)

    def normalise(self, text: str) -> str:
        return normalise(text)

    def text_ids(self, text: str) -> list[int]:
        return [self.ids.get(character, self.unknown) for character in normalise(text)]

    def prefix(self, text: str, tokens: int) -> str:
        return normalise(text)[:tokens]

    def words(self, ids: Sequence[int]) -> list[tuple[str, list[int]]]:
        """A space belongs to the word it closes: choosing it is choosing "dog" over "dogs"."""
        words: list[tuple[str, list[int]]] = []
        closed = True
        for position, character in self._positions(ids):
            if character == " ":
                closed = True
                if words:
                    words[-1][1].append(position)
            elif closed:
                closed = False
                words.append((character, [position]))
            else:
                text, positions = words[-1]
                words[-1] = (text + character, [*positions, position])
        return words
