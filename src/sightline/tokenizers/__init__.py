"""Text to ids and back. A new tokenizer is one file and one line here."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from sightline.errors import CheckpointError, ConfigError
from sightline.tokenizers.base import Tokenizer
from sightline.tokenizers.bpe import BpeTokenizer
from sightline.tokenizers.char import CharTokenizer
from sightline.tokenizers.word import WordTokenizer

TOKENIZERS: dict[str, type[Tokenizer]] = {"char": CharTokenizer, "word": WordTokenizer, "bpe": BpeTokenizer}


def train_tokenizer(name: str, captions: Iterable[str], **options: Any) -> Tokenizer:
    """A tokenizer by name, learned from the training split's captions; a name or option it has not is a ConfigError."""
    if name not in TOKENIZERS:
        raise ConfigError(f"unknown tokenizer {name!r}; choose from {', '.join(TOKENIZERS)}")
    known = [option for option in inspect.signature(TOKENIZERS[name].train).parameters if option != "captions"]
    foreign = [option for option in options if option not in known]
    if foreign:
        raise ConfigError(f"the {name} tokenizer has no option {', '.join(foreign)}; it has {', '.join(known)}")
    return TOKENIZERS[name].train(captions, **options)


def tokenizer_from_json(data: Any) -> Tokenizer:
    """The tokenizer that ``to_json`` described."""
    name = data.get("name") if isinstance(data, dict) else None
    if not isinstance(name, str) or name not in TOKENIZERS:
        raise CheckpointError(f"the saved tokenizer is named {name!r}; known are {', '.join(TOKENIZERS)}")
    return TOKENIZERS[name].from_json(data)


__all__ = ["TOKENIZERS", "Tokenizer", "tokenizer_from_json", "train_tokenizer"]
