"""Which tokens may come next: special ids, minimum length, repetition; and, for sampling, how the rest is reshaped."""

from __future__ import annotations

import torch
from torch import Tensor

from sightline.decoding.options import DecodingOptions
from sightline.tokenizers.base import Tokenizer

NEVER = float("-inf")


def forbid(log_probs: Tensor, history: Tensor | None, length: int, options: DecodingOptions) -> Tensor:
    """Set forbidden tokens of ``log_probs`` (R, V) to -inf, in place; the others keep the model's own values.

    ``history`` (R, t) holds the tokens so far and is needed for repetition only; ``length`` is t.
    """
    log_probs[:, [Tokenizer.pad, Tokenizer.start]] = NEVER
    if not options.allow_unknown:
        log_probs[:, Tokenizer.unknown] = NEVER
    ending = log_probs[:, Tokenizer.end].clone()
    if length < options.min_length:
        log_probs[:, Tokenizer.end] = NEVER
    if options.no_repeat_ngram and history is not None and length >= options.no_repeat_ngram:
        _forbid_repeats(log_probs, history, options.no_repeat_ngram)
        if length < options.min_length:  # where every longer caption would repeat itself, a shorter one is allowed
            stuck = log_probs.amax(1) == NEVER
            log_probs[:, Tokenizer.end] = torch.where(stuck, ending, log_probs[:, Tokenizer.end])
    return log_probs


def _forbid_repeats(log_probs: Tensor, history: Tensor, size: int) -> None:
    runs = history.unfold(1, size, 1)  # (R, t - size + 1, size): every run so far
    recent = history[:, history.shape[1] - (size - 1) :]  # (R, size - 1): what the next token would complete
    seen = (runs[:, :, :-1] == recent[:, None]).all(2)
    log_probs.scatter_(1, torch.where(seen, runs[:, :, -1], Tokenizer.pad), NEVER)  # pad is forbidden anyway


def drawing_weights(log_probs: Tensor, options: DecodingOptions) -> Tensor:
    """Probabilities (R, V) to draw from: temperature first, then the top k, then the top p of what is left."""
    weights = (log_probs / options.temperature).softmax(1)
    if options.top_k == 0 and options.top_p == 1:
        return weights
    ordered, index = weights.sort(dim=1, descending=True, stable=True)
    if options.top_k:
        ordered[:, options.top_k :] = 0
        ordered /= ordered.sum(1, keepdim=True)
    before = ordered.cumsum(1) - ordered  # the probability of all likelier tokens
    ordered[before >= options.top_p] = 0
    return torch.zeros_like(weights).scatter_(1, index, ordered)
