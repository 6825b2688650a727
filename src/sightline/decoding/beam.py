"""Beam search over a whole batch at once; a beam of one is greedy search.

Each step keeps the best K unfinished captions of a photo. A caption that ends while among the best K moves to the
photo's finished ones, scored by log-probability / length ** penalty (plain, without GNMT's constant). A photo stops
when no unfinished caption can still overtake those asked for; once K are finished, when none would by ending next.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sightline.decoding.filters import NEVER, forbid
from sightline.decoding.options import DecodingOptions
from sightline.decoding.trail import Endings, Features, StepDecoder, Trail, batch_of, worth_dropping
from sightline.tokenizers.base import Tokenizer


@torch.inference_mode()
def beam_search(decoder: StepDecoder, features: Features, options: DecodingOptions) -> tuple[Trail, Endings]:
    """The best captions found of each photo; ``trail.hypotheses(endings)`` reads them."""
    batch, device = batch_of(features)
    trail = Trail(batch, options)
    finished = _Finished(batch, options, device)
    photos = torch.arange(batch, device=device)  # (A,): the photos carried; finished ones are dropped now and then
    open_photos = torch.ones_like(photos, dtype=torch.bool)  # (A,): those still searched
    totals = torch.zeros(batch, 1, device=device)  # (A, K): log-probability so far; K is 1 before the first step
    history = photos.new_empty(batch, 0) if options.no_repeat_ngram else None  # (A*K, t)
    token = torch.full_like(photos, Tokenizer.start)  # (A*K,)
    state = decoder.start(features)

    for length in range(options.max_length - 1):
        logits, state, extras = decoder.step(token, state)
        log_probs = forbid(logits.float().log_softmax(1), history, length, options)  # (A*K, V)
        (carried, beams), vocabulary = totals.shape, log_probs.shape[1]
        joint = (totals.reshape(-1, 1) + log_probs).view(carried, -1)  # (A, K*V)
        # Of twice the beam at most half end, so that a full beam of unfinished captions is left.
        totals, index = joint.topk(min(2 * options.beam, joint.shape[1]), dim=1)  # (A, 2K), best first
        own = log_probs.view(carried, -1).gather(1, index)
        parents, tokens = index // vocabulary, index % vocabulary

        ends = tokens == Tokenizer.end
        accepted = ends & open_photos[:, None]
        accepted[:, options.beam :] = False
        finished.add(photos, totals.masked_fill(~accepted, NEVER), parents, own, length)

        going_on = ends.int().argsort(dim=1, stable=True)[:, : options.beam]  # (A, K): unfinished first, order kept
        totals = totals.masked_fill(ends, NEVER).gather(1, going_on)
        tokens, parents, own = (value.gather(1, going_on) for value in (tokens, parents, own))
        trail.record(photos, tokens, parents, own, trail.extras(log_probs, extras))

        open_photos = open_photos & ~finished.settled(photos, totals[:, 0], length + 1)
        if length == options.max_length - 2 or not bool(open_photos.any()):
            break
        rows = parents + beams * torch.arange(carried, device=device)[:, None]  # (A, K) into the old rows
        if worth_dropping(open_photos):
            keep = open_photos.nonzero().squeeze(1)
            photos, open_photos, totals = photos[keep], open_photos[keep], totals[keep]
            tokens, rows = tokens[keep], rows[keep]
            state = state.keep(keep, rows.flatten())
        elif options.beam > 1:
            state = state.reorder(rows.flatten())
        token = tokens.flatten()
        if history is not None:
            history = torch.cat([history[rows.flatten()], token[:, None]], dim=1)

    return trail, finished.with_cut(photos, totals.masked_fill(~open_photos[:, None], NEVER)).ranked(options.candidates)


class _Finished:
    """The best K finished captions of each photo, best first."""

    def __init__(self, batch: int, options: DecodingOptions, device: torch.device) -> None:
        self.options = options
        self.score = torch.full((batch, options.beam), NEVER, device=device)
        self.end_log_prob = torch.zeros_like(self.score)
        self.beam = torch.zeros_like(self.score, dtype=torch.long)
        self.length = torch.zeros_like(self.beam)

    def add(self, photos: Tensor, totals: Tensor, parents: Tensor, own: Tensor, length: int) -> None:
        """Captions of ``length`` tokens that end now; ``totals`` (A, C) are -inf where one does not."""
        new = {
            "score": totals / (length + 1) ** self.options.length_penalty,
            "end_log_prob": own,
            "beam": parents,
            "length": torch.full_like(parents, length),
        }
        joined = {name: torch.cat([getattr(self, name)[photos], value], dim=1) for name, value in new.items()}
        best = joined["score"].argsort(dim=1, descending=True, stable=True)[:, : self.options.beam]
        for name, value in joined.items():
            getattr(self, name)[photos] = value.gather(1, best)

    def settled(self, photos: Tensor, best_total: Tensor, length: int) -> Tensor:
        """(A,): whether a photo has all it needs, its best unfinished caption having ``length`` tokens.

        Log-probabilities only fall, so what that caption may still reach is its total now over the greatest length.
        K finished captions alone are no reason to stop: with a sure model they are short and bad, and come first.
        """
        score, penalty = self.score[photos], self.options.length_penalty
        worst_asked = score[:, self.options.candidates - 1]
        full = score[:, -1] > NEVER
        reachable = best_total / (self.options.max_length - 1) ** penalty
        next_end = best_total / (length + 1) ** penalty
        return (worst_asked >= reachable) | (full & (worst_asked >= next_end))

    def with_cut(self, photos: Tensor, totals: Tensor) -> Endings:
        """The finished captions, and those (A, K) of open photos that the greatest length cut."""
        length = self.options.max_length - 1
        score = torch.full((len(self.score), totals.shape[1]), NEVER, device=totals.device)
        score[photos] = totals / length**self.options.length_penalty
        beam = torch.arange(score.shape[1], device=totals.device).expand_as(score)
        no, yes = torch.zeros_like(beam, dtype=torch.bool), torch.ones_like(self.beam, dtype=torch.bool)
        cut = Endings(score, torch.full_like(beam, length), beam, torch.zeros_like(score), finished=no)
        done = Endings(self.score, self.length, self.beam, self.end_log_prob, finished=yes)
        return done.joined(cut)
