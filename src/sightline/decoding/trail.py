"""Captions in the making: what every step chose stays in tensors, and captions are read off backwards at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import torch
from torch import Tensor

from sightline.decoding.filters import NEVER
from sightline.decoding.options import DecodingOptions
from sightline.errors import CheckpointError
from sightline.tokenizers.base import Tokenizer
from sightline.types import DecoderState, ImageFeatures


class StepDecoder(Protocol):
    """All that decoding asks of a decoder, so that an exported one or an ensemble serves as well as a module."""

    def start(self, features: Any) -> DecoderState: ...

    def step(self, token: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState, dict[str, Tensor]]: ...


Features = ImageFeatures | Sequence[ImageFeatures]  # one for each member of an ensemble


@dataclass(frozen=True)
class Hypothesis:
    """One caption of one photo. ``log_probs`` are the model's own: no temperature, no filter, nothing renormalised."""

    tokens: list[int]  # without start and end
    log_probs: list[float]  # of each token, then of the end if finished
    score: float  # sum(log_probs) / len(log_probs) ** length_penalty
    finished: bool  # False where max_length cut it
    attention: Tensor | None = None  # (T, N)
    gate: Tensor | None = None  # (T,)
    alternatives: list[list[tuple[int, float]]] = field(
        default_factory=list
    )  # runners-up of each token: id, probability


@dataclass(frozen=True)
class Endings:
    """Where captions end, C of each photo; every tensor is (B, C). A score of -inf means there is none."""

    score: Tensor
    length: Tensor  # tokens before the end
    beam: Tensor  # which beam of the last of these tokens' step
    end_log_prob: Tensor
    finished: Tensor

    def joined(self, other: Endings) -> Endings:
        return Endings(*(torch.cat([getattr(self, name), getattr(other, name)], 1) for name in _names(Endings)))

    def ranked(self, count: int) -> Endings:
        """The best ``count`` of each photo: finished captions before cut ones, then by score."""
        order = self.score.argsort(dim=1, descending=True, stable=True)
        later = (~self.finished | (self.score == NEVER)).gather(1, order).int()
        order = order.gather(1, later.argsort(dim=1, stable=True))[:, :count]
        return Endings(*(getattr(self, name).gather(1, order) for name in _names(Endings)))


def _names(kind: type) -> list[str]:
    return [entry.name for entry in fields(kind)]


@dataclass(frozen=True)
class _Step:
    place: Tensor  # (B,): the row of each photo in the tensors below, -1 once it was dropped
    tokens: Tensor  # (A, K): A photos still carried
    parents: Tensor  # (A, K): the beam of the step before
    log_probs: Tensor  # (A, K)
    extras: dict[str, Tensor]  # each (A, beams of the step before, ...)


class Trail:
    """The steps of one search over B photos."""

    def __init__(self, photos: int, options: DecodingOptions) -> None:
        self.photos = photos
        self.options = options
        self.steps: list[_Step] = []

    def extras(self, log_probs: Tensor, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """What to keep of a step beside its tokens, one row per hypothesis of the step before."""
        kept: dict[str, Tensor] = {}
        if self.options.want_attention:
            kept |= {name: given[name] for name in ("attention", "gate") if name in given}
        if self.options.alternatives:
            many = min(
                self.options.alternatives + 1, log_probs.shape[1]
            )  # one more: the chosen token may be among them
            kept["runner_log_probs"], kept["runners"] = log_probs.topk(many, dim=1)
        return kept

    def record(
        self, photos: Tensor, tokens: Tensor, parents: Tensor, log_probs: Tensor, extras: dict[str, Tensor]
    ) -> None:
        """One step: ``photos`` (A,) are those carried, the rest is (A, K) but for extras, (A * beams before, ...)."""
        place = photos.new_full((self.photos,), -1)
        place[photos] = torch.arange(len(photos), device=photos.device)
        extras = {name: value.unflatten(0, (len(photos), -1)) for name, value in extras.items()}
        self.steps.append(_Step(place, tokens, parents, log_probs, extras))

    def read(self, endings: Endings) -> dict[str, Tensor]:
        """Tokens, log_probs and extras of B * C captions, each (B * C, T, ...) and 0 beyond a caption's length."""
        photo = torch.arange(self.photos, device=endings.beam.device).repeat_interleave(endings.beam.shape[1])
        length = endings.length.where(endings.score > NEVER, 0).flatten()
        beam = endings.beam.flatten().clone()
        longest = int(length.max())
        found: dict[str, Tensor] = {
            "tokens": length.new_full((len(length), longest), Tokenizer.pad),
            "log_probs": endings.score.new_zeros(len(length), longest),
        }
        for name, value in self.steps[0].extras.items():
            found[name] = value.new_zeros(len(length), longest, *value.shape[2:])
        for number in reversed(range(longest)):
            step = self.steps[number]
            rows = (length > number).nonzero().squeeze(1)
            place, column = step.place[photo[rows]], beam[rows]
            parent = step.parents[place, column]
            found["tokens"][rows, number] = step.tokens[place, column]
            found["log_probs"][rows, number] = step.log_probs[place, column]
            for name, value in step.extras.items():
                found[name][rows, number] = value[place, parent]
            beam[rows] = parent
        return found

    def hypotheses(self, endings: Endings) -> list[list[Hypothesis]]:
        """Every photo's captions in the order of ``endings``, those that do not exist left out."""
        check_usable(endings.score)
        found = {name: value.cpu() for name, value in self.read(endings).items()}
        per_photo = endings.score.shape[1]
        plain = [getattr(endings, name).flatten().tolist() for name in ("score", "length", "finished", "end_log_prob")]
        captions: list[list[Hypothesis]] = [[] for _ in range(self.photos)]
        for row, (score, length, finished, end_log_prob) in enumerate(zip(*plain)):
            if score > NEVER:
                caption = _hypothesis(found, row, length, self.options.alternatives)
                if finished:
                    caption["log_probs"].append(end_log_prob)
                captions[row // per_photo].append(Hypothesis(**caption, score=score, finished=finished))
        return captions


def _hypothesis(found: dict[str, Tensor], row: int, length: int, alternatives: int) -> dict[str, Any]:
    caption: dict[str, Any] = {name: found[name][row, :length].tolist() for name in ("tokens", "log_probs")}
    caption |= {name: found[name][row, :length] for name in ("attention", "gate") if name in found}
    if alternatives:
        runners = found["runners"][row, :length].tolist()
        probabilities = found["runner_log_probs"][row, :length].exp().tolist()
        caption["alternatives"] = [
            [pair for pair in zip(*step) if pair[0] != token and pair[1] > 0][:alternatives]
            for token, *step in zip(caption["tokens"], runners, probabilities)
        ]
    return caption


def check_usable(score: Tensor) -> None:
    """Raise where a row of ``score`` (B, C) has no caption at all, as weights that are not numbers make it."""
    broken = (~(score > NEVER)).all(1).nonzero().flatten().tolist()
    if broken:
        raise CheckpointError(
            f"the decoder gives no usable probability for {len(broken)} of {len(score)} captions; its weights or the "
            "features hold values that are not finite: copy or train the model again"
        )


def batch_of(features: Features) -> tuple[int, torch.device]:
    """How many photos there are, and where."""
    first = features if isinstance(features, ImageFeatures) else features[0]
    return len(first), first.pooled.device


def worth_dropping(open_photos: Tensor) -> bool:
    """Whether to stop carrying the finished photos: copying the rest costs about as much as a step or two."""
    closed = len(open_photos) - int(open_photos.sum())
    return 4 * closed >= len(open_photos)
