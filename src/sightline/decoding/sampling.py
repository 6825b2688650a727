"""Captions drawn from the model's distribution: for variety, and for self-critical training (Rennie et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from sightline.decoding.filters import drawing_weights, forbid
from sightline.decoding.options import DecodingOptions
from sightline.decoding.trail import Endings, Features, StepDecoder, Trail, batch_of, check_usable, worth_dropping
from sightline.tokenizers.base import Tokenizer


def sample(
    decoder: StepDecoder,
    features: Features,
    count: int,
    options: DecodingOptions,
    generator: torch.Generator | None = None,
) -> Tensor:
    """``count`` drawn captions of each photo, (B * count, T) laid out as encoded ones: start … end, then pad.

    A cut caption has no end. Carries no gradient: the caller computes log-probabilities by teacher forcing.
    """
    batch, device = batch_of(features)
    source = generator.device if generator is not None else device
    chances = torch.rand(batch, count, options.max_length - 1, generator=generator, device=source)
    trail, endings = draw(decoder, features, chances.to(device), options)
    check_usable(endings.score.view(-1, 1))
    with torch.inference_mode():
        words = trail.read(endings)["tokens"]  # (B * count, longest)
        captions = words.new_full((words.shape[0], words.shape[1] + 2), Tokenizer.pad)
        captions[:, 0] = Tokenizer.start
        captions[:, 1:-1] = words
        rows = endings.finished.flatten().nonzero().squeeze(1)
        captions[rows, endings.length.flatten()[rows] + 1] = Tokenizer.end
        longest = int((endings.length + endings.finished).max()) + 1
    return captions[:, :longest].clone()  # outside inference mode, so that training may use it


def same_chances(batch: int, count: int, options: DecodingOptions, device: torch.device) -> Tensor:
    """The seed's random numbers (B, count, T), alike for every photo: its captions do not depend on its batch."""
    generator = torch.Generator().manual_seed(options.seed)
    return torch.rand(count, options.max_length - 1, generator=generator).to(device).expand(batch, -1, -1)


@torch.inference_mode()
def draw(decoder: StepDecoder, features: Features, chances: Tensor, options: DecodingOptions) -> tuple[Trail, Endings]:
    """A caption for every row of ``chances`` (B, C, T), which are uniform random numbers, one for each token."""
    batch, device = batch_of(features)
    count = chances.shape[1]
    trail = Trail(batch, options)
    photos = torch.arange(batch, device=device)  # (A,): the photos carried
    history = photos.new_empty(batch, 0) if options.no_repeat_ngram else None  # (A*C, t)
    token = torch.full_like(photos, Tokenizer.start)
    state = decoder.start(features)
    total = torch.zeros(batch, count, device=device)
    end_log_prob = torch.zeros_like(total)
    length = torch.full((batch, count), options.max_length - 1, device=device)
    finished = torch.zeros_like(total, dtype=torch.bool)

    for number in range(options.max_length - 1):
        logits, state, extras = decoder.step(token, state)
        log_probs = forbid(logits.float().log_softmax(1), history, number, options)  # (A, V), then (A*C, V)
        carried, beams = len(photos), len(log_probs) // len(photos)
        # The drawn token is the first whose cumulative weight exceeds the random share; a weight of 0 is never drawn.
        heaped = drawing_weights(log_probs, options).double().cumsum(1)
        share = chances[photos, :, number].double().view(len(log_probs), -1) * heaped[:, -1:]
        tokens = torch.searchsorted(heaped, share, right=True).clamp(max=log_probs.shape[1] - 1)
        own = log_probs.gather(1, tokens).view(carried, count)
        tokens = tokens.view(carried, count)
        parents = torch.arange(count, device=device).clamp(max=beams - 1).expand(carried, -1)
        trail.record(photos, tokens, parents, own, trail.extras(log_probs, extras))

        going_on = ~finished[photos]
        ends = going_on & (tokens == Tokenizer.end)
        total[photos] += own.masked_fill(~going_on, 0)
        end_log_prob[photos] = torch.where(ends, own, end_log_prob[photos])
        length[photos] = length[photos].masked_fill(ends, number)
        finished[photos] |= ends

        open_photos = ~finished[photos].all(1)
        if not bool(open_photos.any()):
            break
        rows = parents + beams * torch.arange(carried, device=device)[:, None]  # (A, C) into the old rows
        if worth_dropping(open_photos):
            keep = open_photos.nonzero().squeeze(1)
            photos, tokens, rows = photos[keep], tokens[keep], rows[keep]
            state = state.keep(keep, rows.flatten())
        elif beams < count:
            state = state.reorder(rows.flatten())
        token = tokens.flatten()
        if history is not None:
            history = torch.cat([history[rows.flatten()], token[:, None]], dim=1)

    score = total / (length + finished) ** options.length_penalty
    beam = torch.arange(count, device=device).expand_as(length)
    return trail, Endings(score, length, beam, end_log_prob, finished)
