"""Networks that turn image features into captions. A new one is a file and a line here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sightline.errors import ConfigError
from sightline.nn.decoders.attention_lstm import AttentionLSTM
from sightline.nn.decoders.base import Decoder, Embedding, glove_embedding
from sightline.nn.decoders.lstm import LSTM
from sightline.nn.decoders.transformer import Transformer

DECODERS: dict[str, type[Decoder]] = {"lstm": LSTM, "attention-lstm": AttentionLSTM, "transformer": Transformer}


def build_decoder(
    name: str,
    features: int,
    vocabulary: int,
    max_length: int,
    width: int,
    word_dimension: int | None = None,
    embedding: Embedding | None = None,
    **options: Any,
) -> Decoder:
    """A registered decoder for ``features``-deep photos; word vectors are built here unless given."""
    embedding = embedding or Embedding(vocabulary, width, word_dimension)
    arguments = {"features": features, "max_length": max_length, "width": width, **options}
    decoder = DECODERS[name](embedding=embedding, **arguments)
    decoder.spec = {"name": name, "vocabulary": vocabulary, "word_dimension": embedding.dimension, **arguments}
    return decoder


def build_embedding(
    name: str, words: Sequence[str], width: int, file: str | None, frozen: bool, dimension: int | None = None
) -> Embedding:
    """Word vectors for a vocabulary: "learned", by default as wide as the decoder, or "glove" as its file has them."""
    if name != "glove":
        return Embedding(len(words), width, dimension, frozen)
    if dimension:
        raise ConfigError(f"embedding.dimension={dimension} is for learned word vectors: GloVe's file has its own")
    return glove_embedding(words, width, file, frozen)
