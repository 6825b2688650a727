"""Beam search over a whole batch at once; a beam of one is greedy search.

Each step keeps the best K unfinished captions of a photo. A caption that ends while among the best K moves to the
photo's finished ones, scored by log-probability / length ** penalty (plain, without GNMT's constant). A photo stops
when no unfinished caption can still overtake those asked for; once K are finished, when none would by ending next.
"""

from __future__ import annotations

import numpy as np

from sightline.decoding.hypotheses import (
    NEVER,
    Backpointers,
    Endings,
    Features,
    FinishedHypotheses,
    Hypothesis,
    StepDecoder,
    best,
    empty_history,
    forbid,
    log_softmax,
    worth_dropping,
)
from sightline.decoding.options import DecodingOptions
from sightline.decoding.sampling import sample_search, seeded_uniform
from sightline.tokenizers.base import Tokenizer
from sightline.types import ImageFeatures


def decode(
    decoder: StepDecoder,
    features: Features,
    options: DecodingOptions | None = None,
    words: np.ndarray | None = None,
) -> list[list[Hypothesis]]:
    """``options.candidates`` captions of each photo, best first, by beam search or sampling.

    A finished caption comes before one that ``max_length`` cut, whatever their scores. Fewer captions come back only
    where fewer exist. ``words`` is the table of `same_words`, which ``options.no_repeat_words`` needs.
    """
    options = options or DecodingOptions()
    batch = len(features if isinstance(features, ImageFeatures) else features[0])
    if batch == 0:
        return []
    if options.sample:
        uniform = seeded_uniform(batch, options.candidates, options)
        backpointers, endings = sample_search(decoder, features, uniform, options, words)
        endings = endings.ranked(options.candidates)
    else:
        backpointers, endings = beam_search(decoder, features, batch, options, words)
    return backpointers.hypotheses(endings)


def beam_search(
    decoder: StepDecoder, features: Features, batch: int, options: DecodingOptions, words: np.ndarray | None = None
) -> tuple[Backpointers, Endings]:
    """The best captions found of each of ``batch`` photos; ``backpointers.hypotheses(endings)`` reads them."""
    backpointers = Backpointers(batch, options)
    finished = FinishedHypotheses(batch, options)
    photos = np.arange(batch)  # (A,): the photos carried; finished ones are dropped now and then
    open_photos = np.ones(batch, bool)  # (A,): those still searched
    totals = np.zeros((batch, 1), np.float32)  # (A, K): log-probability so far; K is 1 before the first step
    history = empty_history(batch, options, words)  # (A*K, t)
    tokens = np.full((batch, 1), Tokenizer.start)  # (A, K)
    state = decoder.start(features)

    for length in range(options.max_length - 1):
        logits, state, extras = decoder.step(tokens.flatten(), state)
        log_probs = forbid(log_softmax(logits), history, length, options, words)  # (A*K, V)
        (carried, beams), vocabulary = totals.shape, log_probs.shape[1]
        joint = (totals.reshape(-1, 1) + log_probs).reshape(carried, -1)  # (A, K*V)
        # Of twice the beam at most half end, so that a full beam of unfinished captions is left.
        totals, index = best(joint, 2 * options.beam)  # (A, 2K), best first
        token_log_probs = np.take_along_axis(log_probs.reshape(carried, -1), index, 1)
        parents, tokens = index // vocabulary, index % vocabulary

        ends = tokens == Tokenizer.end
        accepted = ends & open_photos[:, None]
        accepted[:, options.beam :] = False
        finished.add(photos, np.where(accepted, totals, NEVER), parents, token_log_probs, length)

        going_on = np.argsort(ends, axis=1, kind="stable")[:, : options.beam]  # (A, K): unfinished first, order kept
        totals = np.take_along_axis(np.where(ends, NEVER, totals), going_on, 1)
        tokens, parents, token_log_probs = (
            np.take_along_axis(value, going_on, 1) for value in (tokens, parents, token_log_probs)
        )
        backpointers.record(photos, tokens, parents, token_log_probs, log_probs, extras)

        open_photos = open_photos & ~finished.settled(photos, totals[:, 0], length + 1)
        if length == options.max_length - 2 or not open_photos.any():
            break
        rows = parents + beams * np.arange(carried)[:, None]  # (A, K) into the old rows
        if worth_dropping(open_photos):
            keep = open_photos.nonzero()[0]
            photos, open_photos, totals = photos[keep], open_photos[keep], totals[keep]
            tokens, rows = tokens[keep], rows[keep]
            state = state.keep(keep, rows.flatten())
        elif options.beam > 1:
            state = state.reorder(rows.flatten())
        if history is not None:
            history = np.concatenate([history[rows.flatten()], tokens.reshape(-1, 1)], axis=1)

    endings = finished.with_cut(photos, np.where(open_photos[:, None], totals, NEVER))
    return backpointers, endings.ranked(options.candidates)
