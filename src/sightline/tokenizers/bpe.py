"""Byte-pair encoding (Sennrich et al., 2016): frequent words whole, rare ones in pieces.

It reads the same punctuation-free words as the word tokenizer, so that comparing the two changes one thing only.
A piece that opens a word begins with "▁". No bytes below characters: half a character can never be written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from sightline.errors import CheckpointError, ConfigError, require
from sightline.tokenizers.base import (
    SPECIAL,
    Tokenizer,
    check_json,
    check_max_length,
    count_tokens,
    join_words,
    split_words,
)

if TYPE_CHECKING:  # imported where there are pieces: models of whole words start without it
    from tokenizers import Tokenizer as Library
    from tokenizers import models

OPENING = "▁"


class BpeTokenizer(Tokenizer):
    """``merges`` are the pairs joined, in the order learned; pieces and merges together are the whole model."""

    name = "bpe"

    def __init__(self, tokens: Sequence[str], max_length: int, merges: Sequence[tuple[str, str]]) -> None:
        require("bpe", "a BPE tokenizer")

        from tokenizers import models

        super().__init__(tokens, max_length)
        self.merges = tuple(merges)
        model = models.BPE(vocab=self.ids, merges=list(self.merges), unk_token=SPECIAL[self.unknown], fuse_unk=True)
        self._library = _split_at_spaces(model)

    @classmethod
    def train(cls, captions: Iterable[str], *, size: int = 4000, max_length: int = 24) -> Self:
        """At most ``size`` tokens; the special ones and every character of the captions are always among them."""
        require("bpe", "a BPE tokenizer")

        from tokenizers import models, trainers

        check_max_length(max_length)
        texts = [join_words(split_words(caption)) for caption in captions]
        smallest = len(SPECIAL) + len(set(count_tokens(texts)) - {" "}) + 1  # one for the opening mark
        if size < smallest:
            raise ConfigError(f"size is {size}; give {smallest} or more, these captions have that many characters")
        library = _split_at_spaces(models.BPE(unk_token=SPECIAL[cls.unknown]))
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(SPECIAL), show_progress=False)
        library.train_from_iterator(texts, trainer)
        model = json.loads(library.to_str())["model"]
        tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
        return cls(tokens, max_length, [(first, second) for first, second in model["merges"]])

    def normalise(self, text: str) -> str:
        return join_words(split_words(text))

    def text_ids(self, text: str) -> list[int]:
        return self._library.encode(self.normalise(text)).ids

    def prefix(self, text: str, tokens: int) -> str:
        normalised = self.normalise(text)
        ends = [end for _, end in self._library.encode(normalised).offsets[:tokens]]
        return normalised[: max(ends, default=0)]

    def words(self, ids: Sequence[int]) -> list[tuple[str, list[int]]]:
        words: list[tuple[str, list[int]]] = []
        for position, piece in self._positions(ids):
            if piece.startswith(OPENING) or not words:
                words.append((piece.removeprefix(OPENING), [position]))
            else:
                text, positions = words[-1]
                words[-1] = (text + piece, [*positions, position])
        return [(text, positions) for text, positions in words if text]

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "merges": [list(pair) for pair in self.merges]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        check_json(data, cls.name, {"name", "max_length", "tokens", "merges"})
        known = set(data["tokens"])
        merges = data["merges"] if isinstance(data["merges"], list) else [data["merges"]]
        for pair in merges:
            whole = isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
            if not whole or not known.issuperset([*pair, "".join(pair)]):
                raise CheckpointError(
                    f"the saved bpe tokenizer is damaged: merge {pair!r} does not join two of its tokens into a third; "
                    "copy the file again"
                )
        return cls(data["tokens"], data["max_length"], [(first, second) for first, second in merges])


def _split_at_spaces(model: models.BPE) -> Library:
    from tokenizers import Tokenizer as Library
    from tokenizers import pre_tokenizers

    library = Library(model)
    library.pre_tokenizer = pre_tokenizers.Metaspace(replacement=OPENING, prepend_scheme="always")
    return library
