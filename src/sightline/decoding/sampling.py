"""Captions drawn from the model's distribution: for variety, and for self-critical training (Rennie et al. 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.decoding.constraints import drawing_weights, forbid, log_softmax
from sightline.decoding.hypotheses import Endings, Trail, check_usable, worth_dropping
from sightline.decoding.options import DecodingOptions
from sightline.decoding.steps import Features, StepDecoder, as_steps, photos_in
from sightline.tokenizers.base import Tokenizer

if TYPE_CHECKING:
    import torch


def sample(
    decoder: Any,
    features: Any,
    count: int,
    options: DecodingOptions,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """``count`` drawn captions of each photo, (B * count, T) laid out as encoded ones: start … end, then pad.

    For training: a torch tensor, drawn by torch's random numbers. A cut caption has no end. Carries no gradient: the
    caller computes log-probabilities by teacher forcing.
    """
    import torch  # who only captions has no need of it

    device = features.pooled.device
    source = generator.device if generator is not None else device
    chances = torch.rand(len(features), count, options.max_length - 1, generator=generator, device=source)
    trail, endings = draw(as_steps(decoder), features, chances.cpu().numpy(), options)
    check_usable(endings.score.reshape(-1, 1))
    words = trail.read(endings)["tokens"]  # (B * count, longest)
    captions = np.full((words.shape[0], words.shape[1] + 2), Tokenizer.pad)
    captions[:, 0] = Tokenizer.start
    captions[:, 1:-1] = words
    rows = endings.finished.flatten().nonzero()[0]
    captions[rows, endings.length.flatten()[rows] + 1] = Tokenizer.end
    longest = int((endings.length + endings.finished).max()) + 1
    return torch.from_numpy(captions[:, :longest].copy()).to(device)


def same_chances(batch: int, count: int, options: DecodingOptions) -> np.ndarray:
    """The seed's random numbers (B, count, T), alike for every photo: its captions do not depend on its batch."""
    generator = np.random.default_rng(options.seed % 2**64)  # a negative seed is one like any other
    chances = generator.random((count, options.max_length - 1))
    return np.broadcast_to(chances, (batch, *chances.shape))


def draw(
    decoder: StepDecoder, features: Features, chances: np.ndarray, options: DecodingOptions
) -> tuple[Trail, Endings]:
    """A caption for every row of ``chances`` (B, C, T), which are uniform random numbers, one for each token."""
    batch, count = photos_in(features), chances.shape[1]
    trail = Trail(batch, options)
    photos = np.arange(batch)  # (A,): the photos carried
    history = np.empty((batch, 0), np.int64) if options.no_repeat_ngram else None  # (A*C, t)
    tokens = np.full((batch, 1), Tokenizer.start)
    state = decoder.start(features)
    total = np.zeros((batch, count), np.float32)
    end_log_prob = np.zeros_like(total)
    length = np.full((batch, count), options.max_length - 1)
    finished = np.zeros((batch, count), bool)

    for number in range(options.max_length - 1):
        logits, state, extras = decoder.step(tokens.flatten(), state)
        log_probs = forbid(log_softmax(logits), history, number, options)  # (A, V), then (A*C, V)
        carried, beams = len(photos), len(log_probs) // len(photos)
        drawn = _drawn(drawing_weights(log_probs, options), chances[photos, :, number].reshape(len(log_probs), -1))
        own = np.take_along_axis(log_probs, drawn, 1).reshape(carried, count)
        tokens = drawn.reshape(carried, count)
        parents = np.broadcast_to(np.minimum(np.arange(count), beams - 1), tokens.shape)
        trail.record(photos, tokens, parents, own, trail.extras(log_probs, extras))

        going_on = ~finished[photos]
        ends = going_on & (tokens == Tokenizer.end)
        total[photos] += np.where(going_on, own, 0)
        end_log_prob[photos] = np.where(ends, own, end_log_prob[photos])
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
    return trail, Endings(score.astype(np.float32), length, beam, end_log_prob, finished)


def _drawn(weights: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """The token (R, c) of each random number: the first whose heaped weight exceeds it; a weight of 0 never does."""
    heaped = weights.astype(np.float64).cumsum(1)
    shares = chances * heaped[:, -1:]
    found = np.stack([np.searchsorted(heap, share, side="right") for heap, share in zip(heaped, shares)])
    return np.minimum(found, weights.shape[1] - 1)
