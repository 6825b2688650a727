"""Self-critical training on CIDEr-D (Rennie et al., 2017): the model draws captions of its own, and each one's
log-probability is weighted by how much its reward exceeds a baseline.

The baseline is the greedy caption's reward, or the mean reward of the *other* samples of the photo, which keeps the
estimate unbiased. The end token counts as a word in captions and references: without it, captions learn to stop too
early ("a dog in a"). Dropout is off both for drawing and for the gradient, and neither gives the pad and start tokens
any probability: captions are scored by the policy that drew them. A temperature below 1 sharpens that policy. A model
trained with label smoothing draws unlikely captions at temperature 1; the shortest of them score best, and the model
learns to be brief.

In a mixture of datasets each source counts its own document frequencies, as evaluation does: "dog" says little in
Flickr8k, where every fourth photo shows one, and much in COCO.

With ``truth_penalty`` a caption also loses that much for every object it names that the photo does not show. This needs
photos with labelled objects; those without labels lose nothing. With ``bleu`` a caption also earns that much times its
BLEU-4, smoothed by one n-gram of each order above the first (Lin and Och, 2004), since few captions match four words in
a row: CIDEr-D looks at rare words, BLEU at every phrase. With ``meteor`` it earns that much times its METEOR, which
counts word forms and synonyms as matches and weighs recall most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sightline.data.loader import Batch
from sightline.decoding import DecodingOptions, decode, sample
from sightline.engine.torch_backend import TorchDecoder
from sightline.errors import ConfigError
from sightline.evaluation.metrics.bleu import Bleu
from sightline.evaluation.metrics.chair import Mention, check_categories, mentions
from sightline.evaluation.metrics.cider import CiderReward
from sightline.evaluation.metrics.meteor import Meteor
from sightline.evaluation.metrics.ptb import tokenize
from sightline.tokenizers import Tokenizer
from sightline.training.objectives.base import Logs, Objective, token_losses
from sightline.types import DecoderOutput

END = "<end>"
NEVER_DRAWN = [Tokenizer.pad, Tokenizer.start]


class SelfCritical(Objective):
    wants_trained = True

    def __init__(
        self,
        pad: int,
        samples: int = 5,
        baseline: Literal["mean", "greedy"] = "mean",
        temperature: float = 1.0,
        truth_penalty: float = 0.0,
        bleu: float = 0.0,
        meteor: float = 0.0,
    ):
        super().__init__()
        self.pad, self.samples, self.baseline, self.temperature = pad, samples, baseline, temperature
        self.truth_penalty, self.bleu, self.meteor = truth_penalty, bleu, meteor
        if baseline == "mean" and samples < 2:
            raise ConfigError("objective.samples=1 leaves no other sample to compare with; set 2 or baseline='greedy'")

    def prepare(self, model: Any, context: Any) -> None:
        """``context`` gives the tokenizer, and the captions, sources and labelled objects of the training photos."""
        self.tokenizer = context.tokenizer
        references: dict[str, list[list[list[str]]]] = defaultdict(list)
        self.source_indices: list[tuple[str, int]] = []  # of each photo: its source, and its index there
        for source, captions in zip(context.sources, context.references):
            self.source_indices.append((source, len(references[source])))
            references[source].append([[*tokenize(text), END] for text in captions])
        self.references = references
        self.cider = {source: CiderReward(texts) for source, texts in references.items()}
        self.max_length = context.tokenizer.max_length
        if self.meteor:
            self.meteor_metric = Meteor()
        if not self.truth_penalty:
            return
        self.objects: Sequence[frozenset[str] | None] = context.objects
        check_categories(self.objects)
        if not any(labels is not None for labels in self.objects):
            raise ConfigError(
                f"objective.truth_penalty={self.truth_penalty} needs photos whose objects are labelled, and no "
                "training photo is; set it to 0 or add a dataset with labels, such as COCO with its instances"
            )

    def forward(self, model: Any, batch: Batch) -> tuple[Tensor, Logs]:
        model.decoder.eval()
        features = model.features(batch.photos)  # once: a trained encoder is most of the work
        with torch.no_grad():
            tokens = self._draw(model.decoder, features)  # (B*S, T), start first
            rewards, false_objects = self._rewards(np.repeat(batch.indices, self.samples).tolist(), self._texts(tokens))
            rewards = rewards.view(-1, self.samples)  # (B, S)
            advantage = (rewards - self._baseline(model.decoder, features, batch, rewards)).flatten()
        nll = self._policy_nll(model(features, tokens[:, :-1]).logits, tokens)
        count = batch.caption_count / max(1, len(batch.tokens) / len(batch.indices)) * self.samples
        loss = (advantage.to(nll.device)[:, None] * nll).sum() / count
        logs = {"reward": rewards.mean(), "nll": nll.sum().detach() / (nll > 0).sum()}
        if self.truth_penalty:
            logs["false_objects"] = false_objects.mean()
        return loss, logs

    def _policy_nll(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """(R, T): minus the log-probability with which each token was drawn; zero after the end."""
        allowed = logits.index_fill(-1, torch.tensor(NEVER_DRAWN, device=logits.device), float("-inf"))
        nll, _, _ = token_losses(DecoderOutput(allowed / self.temperature), tokens, self.pad)
        return nll

    def _draw(self, decoder: Any, features: Any) -> Tensor:
        options = DecodingOptions(
            sample=True,
            temperature=self.temperature,
            max_length=self.max_length,
            allow_unknown=True,
            want_attention=False,
        )
        return sample(TorchDecoder(decoder), features, count=self.samples, options=options)

    def _baseline(self, decoder: Any, features: Any, batch: Batch, rewards: Tensor) -> Tensor:
        if self.baseline == "mean":
            return (rewards.sum(1, keepdim=True) - rewards) / (self.samples - 1)
        options = DecodingOptions(beam=1, max_length=self.max_length, allow_unknown=True, want_attention=False)
        best = [found[0] for found in decode(TorchDecoder(decoder), features, options)]
        texts = [[*self._words(caption.tokens), *([END] if caption.finished else [])] for caption in best]
        return self._rewards(batch.indices, texts)[0][:, None]

    def _rewards(self, photos: Sequence[int], texts: Sequence[list[str]]) -> tuple[Tensor, Tensor]:
        """Each caption's reward, and how many different objects it names that its photo lacks: both (R,)."""
        positions = [self.source_indices[photo] for photo in photos]
        found = [self.cider[source].score([index], [words])[0] for (source, index), words in zip(positions, texts)]
        rewards = torch.tensor(found, dtype=torch.float32)
        references = [self.references[source][index] for source, index in positions]
        if self.bleu:
            rewards += self.bleu * torch.tensor(Bleu().smoothed(texts, references), dtype=torch.float32)
        if self.meteor:
            rewards += self.meteor * torch.tensor(self._meteor(texts, references), dtype=torch.float32)
        false_objects = torch.zeros_like(rewards)
        if self.truth_penalty:
            for row, (photo, words) in enumerate(zip(photos, texts)):
                if (labels := self.objects[photo]) is not None:
                    named = _mentions(" ".join(words).removesuffix(END))
                    false_objects[row] = len({mention.categories for mention in named if not mention.is_in(labels)})
        return rewards - self.truth_penalty * false_objects, false_objects

    def _meteor(self, texts: Sequence[list[str]], references: Sequence[list[list[str]]]) -> np.ndarray:
        """METEOR of each caption by itself: the end symbol is no word to it."""
        plain = [[word for word in text if word != END] for text in texts]
        plain_references = [[text[:-1] for text in photo] for photo in references]
        statistics = self.meteor_metric.statistics(plain, plain_references)
        return self.meteor_metric.per_image(statistics)["meteor"]

    def _texts(self, tokens: Tensor) -> list[list[str]]:
        """The words of each caption, with the end symbol where it has one."""
        texts = []
        for row in tokens[:, 1:].tolist():
            ended = self.tokenizer.end in row
            ids = row[: row.index(self.tokenizer.end)] if ended else [token for token in row if token != self.pad]
            texts.append([*self._words(ids), *([END] if ended else [])])
        return texts

    def _words(self, ids: Sequence[int]) -> list[str]:
        return tokenize(self.tokenizer.decode(ids))


@lru_cache(maxsize=1 << 14)  # the captions drawn of a photo are often alike
def _mentions(text: str) -> tuple[Mention, ...]:
    return tuple(mentions(text))
