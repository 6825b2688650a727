"""Which tokens may come next: special ids, minimum length, repetition; and the weights that sampling gives the rest."""

from __future__ import annotations

import numpy as np

from sightline.decoding.options import DecodingOptions
from sightline.tokenizers.base import Tokenizer

NEVER = float("-inf")


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """The model's log-probabilities (R, V), a new array."""
    with np.errstate(invalid="ignore"):  # `check_usable` reports values that are not finite, once
        shifted: np.ndarray = logits - logits.max(1, keepdims=True)
        shifted -= np.log(np.exp(shifted).sum(1, keepdims=True))
    return shifted


def forbid(log_probs: np.ndarray, history: np.ndarray | None, length: int, options: DecodingOptions) -> np.ndarray:
    """Set forbidden tokens of ``log_probs`` (R, V) to -inf, in place; the others keep the model's values.

    ``history`` (R, t) holds the tokens so far and is needed for repetition only; ``length`` is t.
    """
    log_probs[:, [Tokenizer.pad, Tokenizer.start]] = NEVER
    if not options.allow_unknown:
        log_probs[:, Tokenizer.unknown] = NEVER
    ending = log_probs[:, Tokenizer.end].copy()
    if length < options.min_length:
        log_probs[:, Tokenizer.end] = NEVER
    if options.no_repeat_ngram and history is not None and length >= options.no_repeat_ngram:
        _forbid_repeats(log_probs, history, options.no_repeat_ngram)
        if length < options.min_length:  # where every longer caption would repeat itself, a shorter one is allowed
            stuck = log_probs.max(1) == NEVER
            log_probs[stuck, Tokenizer.end] = ending[stuck]
    return log_probs


def _forbid_repeats(log_probs: np.ndarray, history: np.ndarray, size: int) -> None:
    runs = np.lib.stride_tricks.sliding_window_view(history, size, axis=1)  # (R, t - size + 1, size): every run so far
    recent = history[:, history.shape[1] - (size - 1) :]  # (R, size - 1): what the next token would complete
    rows, positions = (runs[:, :, :-1] == recent[:, None]).all(2).nonzero()
    log_probs[rows, runs[rows, positions, -1]] = NEVER


def sampling_weights(log_probs: np.ndarray, options: DecodingOptions) -> np.ndarray:
    """Probabilities (R, V) to sample from: temperature first, then the top k, then the top p of what is left."""
    weights: np.ndarray = np.exp(log_softmax(log_probs / options.temperature))
    if options.top_k == 0 and options.top_p == 1:
        return weights
    index = np.argsort(-weights, axis=1, kind="stable")
    ordered = np.take_along_axis(weights, index, 1)
    if options.top_k:
        ordered[:, options.top_k :] = 0
        ordered /= ordered.sum(1, keepdims=True)
    before = ordered.cumsum(1) - ordered  # the probability of all likelier tokens
    ordered[:, 1:][before[:, 1:] >= options.top_p] = 0  # the likeliest stays: a tiny top_p is 0 as a float32
    kept: np.ndarray = np.zeros_like(weights)
    np.put_along_axis(kept, index, ordered, 1)
    return kept
