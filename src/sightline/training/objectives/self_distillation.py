"""Self-distillation: a trained captioner learns from a copy of itself (Hinton et al., 2015) whose choice of words is
corrected. It takes minutes and fixes what self-critical training leaves behind, few words and some broken sentences:

- words that people hardly ever write one after another do not follow: "a sits", and no caption ends "in front of a";
- "a" and "an" agree with the next word as people write it: the probability of "a orange" goes to "an orange";
- no content word is said again within three words: "a red red tie";
- with ``missed_words``, content words that people use more often than the model does are favoured: that many times the
  logarithm of the ratio is added to their logits. It can be given for some sources of a mixture alone, since where
  captions are much alike it costs more than it brings.

The model learns these corrected distributions from human captions and from captions of its own drawing, one of each
photo. Only the decoder has a teacher, so the encoder should be frozen.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.data import check_sources
from sightline.data.loader import Batch
from sightline.decoding import DecodingOptions, sample
from sightline.engine.torch_backend import TorchDecoder
from sightline.tokenizers import Tokenizer
from sightline.tokenizers.content_words import FUNCTION_WORDS
from sightline.training.objectives.base import Logs, Objective, across_processes
from sightline.types import ImageFeatures

COUNTED = 10_000  # photos on which the model's use of words is compared with people's
EXPECTED = 50  # how often two words should meet by chance for the captions to say that they do not
UNWRITTEN = 0.02  # how often they do meet, as a share of that
NEAR = 3  # words within which none is said again


class SelfDistillation(Objective):
    wants_trained = True

    def __init__(self, pad: int, temperature: float = 0.7, missed_words: float | dict[str, float] = 0.0):
        super().__init__()
        self.pad, self.temperature, self.missed_words = pad, temperature, missed_words

    def prepare(self, model: Any, context: Any) -> None:
        """``context`` gives the tokenizer, the batches, and the captions and sources of the training photos."""
        sources = list(dict.fromkeys(context.sources))
        given = self.missed_words
        by_source = given if isinstance(given, dict) else dict.fromkeys(sources, given)
        check_sources("objective.missed_words", by_source, sources)
        self.strengths = torch.tensor([by_source.get(source, 0.0) for source in context.sources])
        self._teacher = [copy.deepcopy(model.decoder).eval().requires_grad_(False)]  # a list: no part of our state
        shift = torch.zeros(context.tokenizer.size)
        if self.strengths.any():
            shift = missed_words(model, context.tokenizer, _captioned(model, context.train))
        self.corrections = Corrections(context.tokenizer, context.references, shift)
        self.options = DecodingOptions(
            sample=True,
            temperature=self.temperature,
            max_length=context.tokenizer.max_length,
            allow_unknown=True,
            want_attention=False,
        )

    def forward(self, model: Any, batch: Batch) -> tuple[Tensor, Logs]:
        model.decoder.eval()  # no dropout: the teacher has none
        features = model.features(batch.photos)
        teacher = self._teacher[0].to(batch.tokens.device)
        with torch.no_grad():
            drawn = sample(TorchDecoder(model.decoder), features, count=1, options=self.options)
            tokens = _joined(batch.tokens, drawn, len(batch.indices), self.pad)  # (B*(K+1), T)
            inputs, real = tokens[:, :-1], tokens[:, 1:] != self.pad
            strengths = self.strengths[list(batch.indices)].repeat_interleave(len(tokens) // len(batch.indices))
            logits = teacher(features, inputs).logits.float()
            target = self.corrections(logits, inputs, strengths.to(logits))[real]  # (n, V): the real words only
        log_probs = model(features, inputs).logits[real].float().log_softmax(-1)
        divergence = F.kl_div(log_probs, target, reduction="sum") / len(target)  # KL(target || model)
        return divergence, {"divergence": divergence.detach()}


class Corrections(nn.Module):
    """The corrected probabilities of the next word, by what the training captions say of each word."""

    shift: Tensor
    content: Tensor
    common: Tensor
    row: Tensor
    unwritten: Tensor

    def __init__(self, tokenizer: Tokenizer, captions: Iterable[Iterable[str]], shift: Tensor):
        super().__init__()
        pairs: Counter[tuple[int, int]] = Counter()
        counts: Counter[int] = Counter()
        for texts in captions:
            for text in texts:
                tokens = tokenizer.encode(text)
                counts.update(tokens)
                pairs.update(pairwise(tokens))
        words = range(tokenizer.size)
        self.end = tokenizer.end
        self._keep("shift", shift)
        self._keep("content", content_words(tokenizer))
        # Pairs are judged among the frequent words, of which there are some hundreds; row 0 is for all others.
        number = torch.tensor([counts[word] for word in words], dtype=torch.float64)
        total = number.sum()
        common = (number * number.max() >= EXPECTED * total).nonzero()[:, 0]
        common = common[common != tokenizer.pad]
        self._keep("common", common)
        self._keep(
            "row", torch.zeros(len(words), dtype=torch.long).index_copy_(0, common, torch.arange(1, len(common) + 1))
        )
        met = torch.tensor([[pairs[first, second] for second in common.tolist()] for first in common.tolist()])
        chance = number[common][:, None] * number[common] / total
        unwritten = (chance >= EXPECTED) & (met < UNWRITTEN * chance)
        self._keep("unwritten", torch.cat([torch.zeros(1, len(common), dtype=torch.bool), unwritten]))
        self.articles: dict[int, str] = {}  # "a" and "an", and the words that people write after the other one
        a, an = tokenizer.ids.get("a"), tokenizer.ids.get("an")
        if a is not None and an is not None:
            after = [(pairs[a, word], pairs[an, word]) for word in words]
            self.articles = {a: "not_after_a", an: "not_after_an"}
            self._keep("not_after_a", torch.tensor([with_a < with_an for with_a, with_an in after]))
            self._keep("not_after_an", torch.tensor([with_a > with_an for with_a, with_an in after]))

    def _keep(self, name: str, values: Tensor) -> None:
        self.register_buffer(name, values, persistent=False)  # made anew by each run, resumed or not

    def forward(self, logits: Tensor, tokens: Tensor, strengths: Tensor) -> Tensor:
        """(R, T, V): the probabilities of what follows each of ``tokens`` (R, T), whose rows favour missed words so
        strongly (R,)."""
        logits = logits + strengths[:, None, None] * self.shift
        forbidden = torch.zeros_like(logits, dtype=torch.bool)
        for distance in range(NEAR):
            earlier = torch.roll(tokens, distance, dims=1)
            earlier[:, :distance] = Tokenizer.pad
            forbidden.scatter_(2, earlier[..., None], self.content[earlier][..., None])
        forbidden[..., self.common] |= self.unwritten[self.row[tokens]]
        for article, name in self.articles.items():
            forbidden |= (tokens == article)[..., None] & getattr(self, name)
        probabilities = logits.masked_fill(forbidden, float("-inf")).softmax(-1)
        # An article keeps the share of its probability that goes on rightly; the rest goes to the other one.
        before = logits[:, 1:].softmax(-1)
        for article, name in self.articles.items():
            (other,) = self.articles.keys() - {article}
            wrong = (before * getattr(self, name)).sum(-1) * (tokens[:, 1:] == article)  # (R, T-1)
            moved = probabilities[:, :-1, article] * wrong
            probabilities[:, :-1, article] -= moved
            probabilities[:, :-1, other] += moved
        return probabilities


@torch.no_grad()
def missed_words(model: Any, tokenizer: Tokenizer, batches: Iterable[tuple[ImageFeatures, Tensor]]) -> Tensor:
    """(V,) for content words the logarithm of how often people write each, over how often the model expects it."""
    written, expected = torch.zeros(2, tokenizer.size)
    for features, tokens in batches:
        targets = tokens[:, 1:]
        real = targets != tokenizer.pad
        probabilities = model.decoder(features, tokens[:, :-1]).logits[real].float().softmax(-1)
        expected += probabilities.sum(0).cpu()
        written += torch.bincount(targets[real].cpu(), minlength=tokenizer.size)
    written, expected = across_processes(written), across_processes(expected)
    return torch.where(content_words(tokenizer), ((written + 2) / (expected + 2)).log(), 0.0)


def content_words(tokenizer: Tokenizer) -> Tensor:
    return torch.tensor([word.isalpha() and word not in FUNCTION_WORDS for word in tokenizer.tokens])


def _captioned(model: Any, loader: Any) -> Iterator[tuple[ImageFeatures, Tensor]]:
    """Features and human captions of the first training photos of the first epoch."""
    model.eval()
    device = next(model.parameters()).device
    for batch in islice(loader.epoch(0), -(-COUNTED // loader.batch_size)):
        moved = batch.to(device)
        yield model.features(moved.photos), moved.tokens


def _joined(human: Tensor, drawn: Tensor, photos: int, pad: int) -> Tensor:
    """(B*K, T) and (B, T') tokens as (B*(K+1), max(T, T')): each photo's own caption after its human ones."""
    longest = max(human.shape[1], drawn.shape[1])
    rows = [F.pad(tokens, (0, longest - tokens.shape[1]), value=pad) for tokens in (human, drawn)]
    return torch.cat([tokens.view(photos, -1, longest) for tokens in rows], 1).flatten(0, 1)
