"""What a step of a search works with: the decoder's state, which tokens may follow, and the hypotheses so far.

Tokens and backpointers of every step are kept, and captions are read from them backwards at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sightline.decoding.options import DecodingOptions
from sightline.errors import CheckpointError, ConfigError
from sightline.tokenizers.base import Tokenizer
from sightline.tokenizers.content_words import word_groups
from sightline.types import ImageFeatures

if TYPE_CHECKING:
    from torch import Tensor

NEVER = float("-inf")

# -- what a search asks of a decoder ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class DecoderState:
    """A decoder's state between two steps.

    ``encoder_cache`` holds what was computed once per photo (projected features, cross-attention keys and values);
    hypotheses never leave their photo, so it is neither copied nor reordered. ``hypotheses`` has one row for each.
    """

    encoder_cache: dict[str, Tensor]  # each (B, ...)
    hypotheses: dict[str, Tensor]  # each (B*K, ...)

    def repeat(self, times: int) -> DecoderState:
        """Each hypothesis ``times`` times, those of one photo staying adjacent."""
        repeated = {name: value.repeat_interleave(times, 0) for name, value in self.hypotheses.items()}
        return replace(self, hypotheses=repeated)

    def reorder(self, rows: np.ndarray | Tensor) -> DecoderState:
        """Hypothesis i becomes what hypothesis ``rows[i]`` was."""
        return replace(self, hypotheses={name: _rows_of(value, rows) for name, value in self.hypotheses.items()})

    def keep(self, photos: np.ndarray | Tensor, rows: np.ndarray | Tensor) -> DecoderState:
        """Only these photos, with these hypotheses: finished photos cost nothing more."""
        return DecoderState(
            {name: _rows_of(value, photos) for name, value in self.encoder_cache.items()},
            {name: _rows_of(value, rows) for name, value in self.hypotheses.items()},
        )


Features = ImageFeatures | Sequence[ImageFeatures]  # one set, or one for each member of an ensemble


class StepDecoder(Protocol):
    """What a search asks of a decoder: arrays in, arrays out, whichever library computes in between.

    Both backends are step decoders, and so are an ensemble and the kNN-augmented decoder.
    """

    def start(self, features: Any) -> DecoderState:
        """What is computed once per photo, and one fresh hypothesis for each."""
        ...

    def step(self, tokens: np.ndarray, state: DecoderState) -> tuple[np.ndarray, DecoderState, dict[str, np.ndarray]]:
        """The next token of R hypotheses: logits (R, V), the new state, and attention (R, N) or gate (R,) if any."""
        ...


def _rows_of(value: Any, rows: np.ndarray | Tensor) -> Any:
    """These rows of a tensor or an array."""
    if not hasattr(value, "index_select"):
        return value[rows]
    from torch import as_tensor  # by its own row numbers: indexing with an array takes thirty times as long

    return value.index_select(0, as_tensor(rows, device=value.device))


# -- which tokens may follow ------------------------------------------------------------------------------------------


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """The model's log-probabilities (R, V), a new array."""
    with np.errstate(invalid="ignore"):  # `check_usable` reports values that are not finite, once
        shifted: np.ndarray = logits - logits.max(1, keepdims=True)
        shifted -= np.log(np.exp(shifted).sum(1, keepdims=True))
    return shifted


def same_words(tokenizer: Tokenizer) -> np.ndarray:
    """(V, M): for each token the ids of its content word's forms, itself included, filled up with the pad."""
    forms: dict[int, list[int]] = {}
    for token, group in enumerate(word_groups(tokenizer)):
        if group:
            forms.setdefault(group, []).append(token)
    table = np.full((tokenizer.size, max(map(len, forms.values()), default=0)), Tokenizer.pad)
    for tokens in forms.values():
        table[tokens, : len(tokens)] = tokens
    return table


def empty_history(photos: int, options: DecodingOptions, words: np.ndarray | None) -> np.ndarray | None:
    """The tokens so far (R, t), here none yet, for the options that forbid repetition; None without such options."""
    if options.no_repeat_words and words is None:
        raise ConfigError("no_repeat_words needs the table that same_words(tokenizer) gives")
    return np.empty((photos, 0), np.int64) if options.no_repeat_ngram or options.no_repeat_words else None


def forbid(
    log_probs: np.ndarray,
    history: np.ndarray | None,
    length: int,
    options: DecodingOptions,
    words: np.ndarray | None = None,
) -> np.ndarray:
    """Set forbidden tokens of ``log_probs`` (R, V) to -inf, in place; the others keep the model's values.

    ``history`` (R, t) holds the tokens so far and is needed for repetition only; ``length`` is t. ``words`` is the
    table of `same_words`.
    """
    log_probs[:, [Tokenizer.pad, Tokenizer.start]] = NEVER
    if not options.allow_unknown:
        log_probs[:, Tokenizer.unknown] = NEVER
    ending = log_probs[:, Tokenizer.end].copy()
    if length < options.min_length:
        log_probs[:, Tokenizer.end] = NEVER
    if history is not None:
        if options.no_repeat_ngram and length >= options.no_repeat_ngram:
            _forbid_ngrams(log_probs, history, options.no_repeat_ngram)
        if options.no_repeat_words and words is not None:
            log_probs[np.arange(len(history))[:, None, None], words[history]] = NEVER  # the pad is forbidden anyway
        if length < options.min_length:  # where every longer caption would repeat itself, a shorter one is allowed
            stuck = log_probs.max(1) == NEVER
            log_probs[stuck, Tokenizer.end] = ending[stuck]
    return log_probs


def _forbid_ngrams(log_probs: np.ndarray, history: np.ndarray, size: int) -> None:
    runs = np.lib.stride_tricks.sliding_window_view(history, size, axis=1)  # (R, t - size + 1, size): every run so far
    recent = history[:, history.shape[1] - (size - 1) :]  # (R, size - 1): what the next token would complete
    rows, positions = (runs[:, :, :-1] == recent[:, None]).all(2).nonzero()
    log_probs[rows, runs[rows, positions, -1]] = NEVER


# -- what a search found ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hypothesis:
    """One caption of one photo. ``log_probs`` are the model's: no temperature, no filter, nothing renormalised."""

    tokens: list[int]  # without start and end
    log_probs: list[float]  # of each token, then of the end if finished
    score: float  # sum(log_probs) / len(log_probs) ** length_penalty
    finished: bool  # False where max_length cut it
    attention: np.ndarray | None = None  # (T, N)
    gate: np.ndarray | None = None  # (T,)
    alternatives: list[list[tuple[int, float]]] = field(default_factory=list)  # of each token: other ids, probability


@dataclass(frozen=True)
class Endings:
    """Where captions end, C of each photo; every array is (B, C). A score of -inf means there is none."""

    score: np.ndarray
    length: np.ndarray  # tokens before the end
    beam: np.ndarray  # which beam of the last of these tokens' step
    end_log_prob: np.ndarray
    finished: np.ndarray

    def joined(self, other: Endings) -> Endings:
        return Endings(*(np.concatenate([getattr(self, name), getattr(other, name)], 1) for name in _names(Endings)))

    def ranked(self, count: int) -> Endings:
        """The best ``count`` of each photo: finished captions before cut ones, then by score."""
        order = np.argsort(-self.score, axis=1, kind="stable")
        later = np.take_along_axis(~self.finished | (self.score == NEVER), order, 1)
        order = np.take_along_axis(order, np.argsort(later, axis=1, kind="stable"), 1)[:, :count]
        return Endings(*(np.take_along_axis(getattr(self, name), order, 1) for name in _names(Endings)))


def _names(kind: type) -> list[str]:
    return [entry.name for entry in fields(kind)]


@dataclass(frozen=True)
class _StepRecord:
    row: np.ndarray  # (B,): the row of each photo in the arrays below, -1 once it was dropped
    tokens: np.ndarray  # (A, K): A photos still carried
    parents: np.ndarray  # (A, K): the beam of the step before
    log_probs: np.ndarray  # (A, K)
    extras: dict[str, np.ndarray]  # each (A, beams of the step before, ...)


class Backpointers:
    """The steps of one search over B photos."""

    def __init__(self, photos: int, options: DecodingOptions) -> None:
        self.photos = photos
        self.options = options
        self.steps: list[_StepRecord] = []

    def record(
        self,
        photos: np.ndarray,
        tokens: np.ndarray,
        parents: np.ndarray,
        token_log_probs: np.ndarray,
        log_probs: np.ndarray,
        extras: dict[str, np.ndarray],
    ) -> None:
        """One step. ``photos`` (A,) are those carried; the next three are (A, K).

        ``log_probs`` (A * beams before, V) and ``extras`` are the decoder's, one row per hypothesis of the step before.
        """
        row = np.full(self.photos, -1)
        row[photos] = np.arange(len(photos))
        kept: dict[str, np.ndarray] = {}
        if self.options.want_attention:
            kept |= {name: extras[name] for name in ("attention", "gate") if name in extras}
        if self.options.alternatives:  # one more than asked for: the chosen token may be among them
            kept["top_k_log_probs"], kept["top_k"] = best(log_probs, self.options.alternatives + 1)
        kept = {name: value.reshape(len(photos), -1, *value.shape[1:]) for name, value in kept.items()}
        self.steps.append(_StepRecord(row, tokens, parents, token_log_probs, kept))

    def read(self, endings: Endings) -> dict[str, np.ndarray]:
        """Tokens, log_probs and extras of B * C captions, each (B * C, T, ...) and 0 beyond a caption's length."""
        photo = np.arange(self.photos).repeat(endings.beam.shape[1])
        length = np.where(endings.score > NEVER, endings.length, 0).flatten()
        beam = endings.beam.flatten()
        longest = int(length.max())
        found: dict[str, np.ndarray] = {
            "tokens": np.full((len(length), longest), Tokenizer.pad),
            "log_probs": np.zeros((len(length), longest), np.float32),
        }
        for name, value in self.steps[0].extras.items():
            found[name] = np.zeros((len(length), longest, *value.shape[2:]), value.dtype)
        for number in reversed(range(longest)):
            step = self.steps[number]
            rows = (length > number).nonzero()[0]
            row, column = step.row[photo[rows]], beam[rows]
            parent = step.parents[row, column]
            found["tokens"][rows, number] = step.tokens[row, column]
            found["log_probs"][rows, number] = step.log_probs[row, column]
            for name, value in step.extras.items():
                found[name][rows, number] = value[row, parent]
            beam[rows] = parent
        return found

    def hypotheses(self, endings: Endings) -> list[list[Hypothesis]]:
        """Every photo's captions in the order of ``endings``, those that do not exist left out."""
        check_usable(endings.score)
        found = self.read(endings)
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


def _hypothesis(found: dict[str, np.ndarray], row: int, length: int, alternatives: int) -> dict[str, Any]:
    caption: dict[str, Any] = {name: found[name][row, :length].tolist() for name in ("tokens", "log_probs")}
    caption |= {name: found[name][row, :length] for name in ("attention", "gate") if name in found}
    if alternatives:
        top_k = found["top_k"][row, :length].tolist()
        probabilities = np.exp(found["top_k_log_probs"][row, :length]).tolist()
        caption["alternatives"] = [
            [pair for pair in zip(*step) if pair[0] != token and pair[1] > 0][:alternatives]
            for token, *step in zip(caption["tokens"], top_k, probabilities)
        ]
    return caption


class FinishedHypotheses:
    """The best K finished captions of each photo of a beam search, best first."""

    def __init__(self, batch: int, options: DecodingOptions) -> None:
        self.options = options
        self.score = np.full((batch, options.beam), NEVER, np.float32)
        self.end_log_prob = np.zeros_like(self.score)
        self.beam = np.zeros_like(self.score, np.int64)
        self.length = np.zeros_like(self.beam)

    def add(
        self, photos: np.ndarray, totals: np.ndarray, parents: np.ndarray, end_log_probs: np.ndarray, length: int
    ) -> None:
        """Captions of ``length`` tokens that end now; ``totals`` (A, C) are -inf where one does not."""
        new = {
            "score": totals / (length + 1) ** self.options.length_penalty,
            "end_log_prob": end_log_probs,
            "beam": parents,
            "length": np.full_like(parents, length),
        }
        joined = {name: np.concatenate([getattr(self, name)[photos], value], axis=1) for name, value in new.items()}
        order = np.argsort(-joined["score"], axis=1, kind="stable")[:, : self.options.beam]
        for name, value in joined.items():
            getattr(self, name)[photos] = np.take_along_axis(value, order, 1)

    def settled(self, photos: np.ndarray, best_total: np.ndarray, length: int) -> np.ndarray:
        """(A,): whether a photo's search may stop, its best unfinished caption having ``length`` tokens.

        Log-probabilities only fall, so the best score that caption may still reach is its total now over the greatest
        length. K finished captions alone are no reason to stop: with a confident model they are short and bad, and are
        found first.
        """
        score, penalty = self.score[photos], self.options.length_penalty
        worst_asked = score[:, self.options.candidates - 1]
        full = score[:, -1] > NEVER
        reachable = best_total / (self.options.max_length - 1) ** penalty
        next_end = best_total / (length + 1) ** penalty
        settled: np.ndarray = (worst_asked >= reachable) | (full & (worst_asked >= next_end))
        return settled

    def with_cut(self, photos: np.ndarray, totals: np.ndarray) -> Endings:
        """The finished captions, and those (A, K) of open photos that the greatest length cut."""
        length = self.options.max_length - 1
        score = np.full((len(self.score), totals.shape[1]), NEVER, np.float32)
        score[photos] = totals / length**self.options.length_penalty
        beam = np.broadcast_to(np.arange(score.shape[1]), score.shape)
        no, yes = np.zeros(beam.shape, bool), np.ones(self.beam.shape, bool)
        cut = Endings(score, np.full(beam.shape, length), beam, np.zeros_like(score), finished=no)
        done = Endings(self.score, self.length, self.beam, self.end_log_prob, finished=yes)
        return done.joined(cut)


def best(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The ``count`` greatest of each row, greatest first, and their columns; of equal ones the first column first."""
    count = min(count, values.shape[1])
    columns = np.argpartition(values, -count, axis=1)[:, -count:]
    columns.sort(axis=1)
    found = np.take_along_axis(values, columns, 1)
    order = np.argsort(-found, axis=1, kind="stable")
    return np.take_along_axis(found, order, 1), np.take_along_axis(columns, order, 1)


def check_usable(score: np.ndarray) -> None:
    """Raise where a row of ``score`` (B, C) has no caption at all, as weights that are not numbers make it."""
    broken = int((~(score > NEVER)).all(1).sum())
    if broken:
        raise CheckpointError(
            f"the decoder gives no usable probability for {broken} of {len(score)} captions; its weights or the "
            "features hold values that are not finite: copy or train the model again"
        )


def worth_dropping(open_photos: np.ndarray) -> bool:
    """Whether to stop carrying the finished photos: copying the rest costs about as much as a step or two."""
    closed = len(open_photos) - int(open_photos.sum())
    return 4 * closed >= len(open_photos)
