"""Captions sampled from the model's distribution: for variety, and for self-critical training (Rennie et al. 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sightline.decoding.hypotheses import (
    Backpointers,
    Endings,
    Features,
    StepDecoder,
    check_usable,
    empty_history,
    forbid,
    log_softmax,
    worth_dropping,
)
from sightline.decoding.options import DecodingOptions
from sightline.tokenizers.base import Tokenizer
from sightline.types import ImageFeatures

if TYPE_CHECKING:
    import torch


def sample(
    decoder: StepDecoder,
    features: ImageFeatures,
    count: int,
    options: DecodingOptions,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """``count`` sampled captions of each photo, (B * count, T) laid out as encoded ones: start … end, then pad.

    For training: a torch tensor, sampled with torch's random numbers. A cut caption has no end. Carries no gradient:
    the caller computes log-probabilities by teacher forcing.
    """
    import torch  # captioning without torch imports this module, too

    device = features.pooled.device
    source = generator.device if generator is not None else device
    uniform = torch.rand(len(features), count, options.max_length - 1, generator=generator, device=source)
    backpointers, endings = sample_search(decoder, features, uniform.cpu().numpy(), options)
    check_usable(endings.score.reshape(-1, 1))
    words = backpointers.read(endings)["tokens"]  # (B * count, longest)
    captions = np.full((words.shape[0], words.shape[1] + 2), Tokenizer.pad)
    captions[:, 0] = Tokenizer.start
    captions[:, 1:-1] = words
    rows = endings.finished.flatten().nonzero()[0]
    captions[rows, endings.length.flatten()[rows] + 1] = Tokenizer.end
    longest = int((endings.length + endings.finished).max()) + 1
    return torch.from_numpy(captions[:, :longest].copy()).to(device)


def seeded_uniform(batch: int, count: int, options: DecodingOptions) -> np.ndarray:
    """The seed's random numbers (B, count, T), equal for every photo: its captions do not depend on its batch."""
    generator = np.random.default_rng(options.seed % 2**64)  # a negative seed is valid, too
    uniform = generator.random((count, options.max_length - 1))
    return np.broadcast_to(uniform, (batch, *uniform.shape))


def sample_search(
    decoder: StepDecoder,
    features: Features,
    uniform: np.ndarray,
    options: DecodingOptions,
    words: np.ndarray | None = None,
) -> tuple[Backpointers, Endings]:
    """A caption for every row of ``uniform`` (B, C, T), random numbers from 0 to 1, one for each token."""
    batch, count = uniform.shape[:2]
    backpointers = Backpointers(batch, options)
    photos = np.arange(batch)  # (A,): the photos carried
    history = empty_history(batch, options, words)  # (A*C, t)
    tokens = np.full((batch, 1), Tokenizer.start)
    state = decoder.start(features)
    total = np.zeros((batch, count), np.float32)
    end_log_prob = np.zeros_like(total)
    length = np.full((batch, count), options.max_length - 1)
    finished = np.zeros((batch, count), bool)

    for number in range(options.max_length - 1):
        logits, state, extras = decoder.step(tokens.flatten(), state)
        log_probs = forbid(log_softmax(logits), history, number, options, words)  # (A, V), then (A*C, V)
        carried, beams = len(photos), len(log_probs) // len(photos)
        weights = sampling_weights(log_probs, options)
        sampled = _inverse_cdf(weights, uniform[photos, :, number].reshape(len(log_probs), -1))
        token_log_probs = np.take_along_axis(log_probs, sampled, 1).reshape(carried, count)
        tokens = sampled.reshape(carried, count)
        parents = np.broadcast_to(np.minimum(np.arange(count), beams - 1), tokens.shape)
        backpointers.record(photos, tokens, parents, token_log_probs, log_probs, extras)

        going_on = ~finished[photos]
        ends = going_on & (tokens == Tokenizer.end)
        total[photos] += np.where(going_on, token_log_probs, 0)
        end_log_prob[photos] = np.where(ends, token_log_probs, end_log_prob[photos])
        length[photos] = np.where(ends, number, length[photos])
        finished[photos] |= ends

        open_photos = np.logical_not(finished[photos].all(1))
        if not open_photos.any():
            break
        rows = parents + beams * np.arange(carried)[:, None]  # (A, C) into the old rows
        if worth_dropping(open_photos):
            keep = open_photos.nonzero()[0]
            photos, tokens, rows = photos[keep], tokens[keep], rows[keep]
            state = state.keep(keep, rows.flatten())
        elif beams < count:
            state = state.reorder(rows.flatten())
        if history is not None:
            history = np.concatenate([history[rows.flatten()], tokens.reshape(-1, 1)], axis=1)

    score = total / (length + finished) ** options.length_penalty
    beam = np.broadcast_to(np.arange(count), length.shape)
    return backpointers, Endings(score.astype(np.float32), length, beam, end_log_prob, finished)


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


def _inverse_cdf(weights: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """The token (R, c) of each random number: the first whose cumulative weight exceeds it, never one of weight 0."""
    cumulative = weights.astype(np.float64).cumsum(1)
    thresholds = uniform * cumulative[:, -1:]
    found = np.stack([np.searchsorted(row, values, side="right") for row, values in zip(cumulative, thresholds)])
    tokens: np.ndarray = np.minimum(found, weights.shape[1] - 1)
    return tokens
