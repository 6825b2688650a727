"""Self-critical training on CIDEr-D (Rennie et al., 2017): captions the model itself draws, weighted by how much better
they are than a baseline.

The baseline is the greedy caption's reward, or the mean reward of the *other* samples of the photo, which keeps the
estimate unbiased. The end token counts as a word on both sides: without it, captions learn to stop too early ("a dog in
a"). Dropout is off for drawing and for the gradient, so both speak of the same policy. A temperature below 1 sharpens
that policy: a model trained with label smoothing draws wild captions, among which the shortest is the least wrong, and
so unlearns length; beam search, which judges it in the end, looks for its best captions, not its average ones.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sightline.data.loader import Batch
from sightline.decoding import DecodingOptions, decode, sample
from sightline.engine.torch_backend import TorchDecoder
from sightline.errors import ConfigError
from sightline.evaluation.metrics.cider import CiderReward
from sightline.evaluation.metrics.ptb import tokenize
from sightline.training.objectives.base import Logs, Objective, token_losses
from sightline.types import DecoderOutput

END = "<end>"


class SelfCritical(Objective):
    wants_trained = True

    def __init__(
        self, pad: int, samples: int = 5, baseline: Literal["mean", "greedy"] = "mean", temperature: float = 1.0
    ):
        super().__init__()
        self.pad, self.samples, self.baseline, self.temperature = pad, samples, baseline, temperature
        if baseline == "mean" and samples < 2:
            raise ConfigError("objective.samples=1 leaves no other sample to compare with; set 2 or baseline='greedy'")

    def prepare(self, model: Any, context: Any) -> None:
        """``context`` gives the tokenizer and the training photos' captions."""
        self.tokenizer = context.tokenizer
        references = [[[*tokenize(text), END] for text in captions] for captions in context.references]
        self.reward = CiderReward(references)
        self.max_length = context.tokenizer.max_length

    def forward(self, model: Any, batch: Batch) -> tuple[Tensor, Logs]:
        model.decoder.eval()
        features = model.features(batch.photos)  # once: a trained encoder is most of the work
        with torch.no_grad():
            tokens = self._draw(model.decoder, features)  # (B*S, T), start first
            rewards = self._score(tokens, np.repeat(batch.indices, self.samples)).view(-1, self.samples)  # (B, S)
            advantage = (rewards - self._baseline(model.decoder, features, batch, rewards)).flatten()
        output = model(features, tokens[:, :-1])
        tempered = DecoderOutput(output.logits / self.temperature)  # the policy that drew them
        nll, _, _ = token_losses(tempered, tokens, self.pad)
        count = batch.caption_count / max(1, len(batch.tokens) / len(batch.indices)) * self.samples
        loss = (advantage[:, None] * nll).sum() / count
        return loss, {"reward": rewards.mean(), "nll": nll.sum().detach() / (nll > 0).sum()}

    def _draw(self, decoder: Any, features: Any) -> Tensor:
        options = DecodingOptions(
            sample=True, temperature=self.temperature, max_length=self.max_length, allow_unknown=True
        )
        return sample(TorchDecoder(decoder), features, count=self.samples, options=options)

    def _baseline(self, decoder: Any, features: Any, batch: Batch, rewards: Tensor) -> Tensor:
        if self.baseline == "mean":
            return (rewards.sum(1, keepdim=True) - rewards) / (self.samples - 1)
        options = DecodingOptions(beam=1, max_length=self.max_length, allow_unknown=True)
        best = [found[0] for found in decode(TorchDecoder(decoder), features, options)]
        texts = [[*self._words(caption.tokens), *([END] if caption.finished else [])] for caption in best]
        return torch.as_tensor(self.reward.score(batch.indices, texts), dtype=rewards.dtype)[:, None]

    def _score(self, tokens: Tensor, photos: np.ndarray) -> Tensor:
        texts = []
        for row in tokens[:, 1:].tolist():
            ended = self.tokenizer.end in row
            ids = row[: row.index(self.tokenizer.end)] if ended else [token for token in row if token != self.pad]
            texts.append([*self._words(ids), *([END] if ended else [])])
        return torch.as_tensor(self.reward.score(photos.tolist(), texts), dtype=torch.float32)

    def _words(self, ids: list[int]) -> list[str]:
        return tokenize(self.tokenizer.decode(ids))
