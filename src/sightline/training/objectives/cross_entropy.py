"""Cross-entropy under teacher forcing, with label smoothing and soft attention's doubly stochastic penalty."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sightline.data.loader import Batch
from sightline.errors import ConfigError
from sightline.training.objectives.base import Logs, Objective, doubly_stochastic, token_losses


class CrossEntropy(Objective):
    def __init__(self, pad: int, label_smoothing: float = 0.0, doubly_stochastic: float = 0.0):
        super().__init__()
        self.pad, self.smoothing, self.penalty = pad, label_smoothing, doubly_stochastic

    def forward(self, model: Any, batch: Batch) -> tuple[Tensor, Logs]:
        output = model(batch.photos, batch.tokens[:, :-1])
        losses, nll, mask = token_losses(output, batch.tokens, self.pad, self.smoothing)
        loss = losses.sum() / batch.token_count
        logs = {"nll": nll.sum().detach() / batch.token_count}
        if self.penalty:
            if output.attention is None:
                raise ConfigError(
                    "objective.doubly_stochastic needs a decoder with attention over time: attention-lstm"
                )
            penalty = doubly_stochastic(output.attention, mask).sum() / batch.caption_count
            # Per caption like the penalty: the paper's loss is a sum over words, ours a mean over the batch's words.
            loss = loss + self.penalty * penalty * batch.caption_count / batch.token_count
            logs["doubly_stochastic"] = penalty.detach()
        return loss, logs
