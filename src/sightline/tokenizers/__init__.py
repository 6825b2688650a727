"""Text to ids and back. A new tokenizer is one file and one line here."""

from __future__ import annotations

from typing import Any

from sightline.errors import CheckpointError
from sightline.tokenizers.base import Tokenizer
from sightline.tokenizers.bpe import BpeTokenizer
from sightline.tokenizers.char import CharTokenizer
from sightline.tokenizers.word import WordTokenizer

TOKENIZERS: dict[str, type[Tokenizer]] = {"char": CharTokenizer, "word": WordTokenizer, "bpe": BpeTokenizer}


def tokenizer_from_json(data: Any) -> Tokenizer:
    """The tokenizer that ``to_json`` described."""
    name = data.get("name") if isinstance(data, dict) else None
    if not isinstance(name, str) or name not in TOKENIZERS:
        raise CheckpointError(f"the saved tokenizer is named {name!r}; known are {', '.join(TOKENIZERS)}")
    return TOKENIZERS[name].from_json(data)


__all__ = ["TOKENIZERS", "Tokenizer", "tokenizer_from_json"]
