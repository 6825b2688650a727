"""A ready caption fed through a decoder again, word by word, for what the search does not carry along.

The search stays lean; what only an explanation needs (each head's attention, the score under a changed photo) is
collected here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sightline.decoding.constraints import log_softmax
from sightline.decoding.steps import Features, as_steps, photos_in
from sightline.tokenizers.base import Tokenizer


@dataclass(frozen=True)
class Trace:
    """What a decoder says to T given tokens before each of B photos."""

    log_probs: np.ndarray  # (B, T): of each token, the ones before it given
    extras: dict[str, np.ndarray]  # each (B, T, ...), e.g. attention, gate, attention_by_head


def replay(decoder: Any, features: Features, tokens: Sequence[int]) -> Trace:
    """``tokens`` are a caption's, without start and end; all photos get the same ones."""
    steps, batch = as_steps(decoder), photos_in(features)
    state = steps.start(features)
    log_probs, collected = [], []
    for before, token in zip([Tokenizer.start, *tokens], tokens):
        logits, state, extras = steps.step(np.full(batch, before), state)
        log_probs.append(log_softmax(logits)[:, token])
        collected.append(extras)
    if not log_probs:
        return Trace(np.zeros((batch, 0)), {})
    stacked = {name: np.stack([extras[name] for extras in collected], 1) for name in collected[0]}
    return Trace(np.stack(log_probs, 1), stacked)


def attention_by_head(
    decoder: Any, features: Features, tokens: Sequence[int], words: Sequence[Sequence[int]]
) -> np.ndarray | None:
    """(words, blocks, heads, N) for one photo, or None where the decoder has no heads.

    ``words`` are the positions in ``tokens`` of each displayed word; a word of several tokens gets their mean.
    """
    by_head = replay(decoder, features, tokens).extras.get("attention_by_head")  # (1, T, blocks, heads, N)
    if by_head is None or not words:
        return None
    return np.stack([by_head[0, list(positions)].mean(0) for positions in words])
