"""Hard attention's variational bound (Xu et al., 2015, section 4.1), maximised with the score-function estimator.

For a caption y and places s drawn from the model's own attention, the gradient of E_s[log p(y|s,a)] is estimated by

    d log p(y|s) + (log p(y|s) - b) d log p(s)  +  entropy weight * d H[s]

with one draw per caption. The baseline b is the paper's moving average, taken per word (a caption of twenty words has a
log-likelihood far below one of eight: one number per caption would be a poor guess of either) and times the caption's
length; it depends on earlier batches only, so the estimate stays unbiased. Captions trained on the expected place (half
of them) are soft attention: their gradient flows through the weights and they have no score-function term.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sightline.data.loader import Batch
from sightline.errors import ConfigError
from sightline.training.objectives.base import (
    Logs,
    Objective,
    across_processes,
    doubly_stochastic,
    token_losses,
)


class HardAttention(Objective):
    baseline: Tensor
    seen: Tensor

    def __init__(
        self,
        pad: int,
        entropy: float = 0.002,
        baseline_decay: float = 0.9,
        expectation: float = 0.5,
        score_weight: float = 1.0,
        doubly_stochastic: float = 0.0,
        label_smoothing: float = 0.0,
    ):
        super().__init__()
        self.pad, self.entropy, self.decay, self.expectation = pad, entropy, baseline_decay, expectation
        self.score_weight, self.penalty, self.smoothing = score_weight, doubly_stochastic, label_smoothing
        self.register_buffer("baseline", torch.zeros(()))  # mean log-likelihood of a word so far
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def prepare(self, model: Any, context: Any) -> None:
        if getattr(model.decoder, "mode", None) != "hard":
            raise ConfigError(
                "objective 'hard-attention' needs --set decoder.name=attention-lstm with decoder.mode=hard"
            )
        model.decoder.expectation = self.expectation

    def forward(self, model: Any, batch: Batch) -> tuple[Tensor, Logs]:
        output = model(batch.photos, batch.tokens[:, :-1])
        losses, nll, mask = token_losses(output, batch.tokens, self.pad, self.smoothing)
        loss = losses.sum() / batch.token_count
        logs = {"nll": nll.sum().detach() / batch.token_count}
        if "place_log_prob" in output.extras:
            drawn = ~output.extras["on_expectation"]
            reward = -nll.detach().sum(1)  # (R,): log p(y|s)
            words = mask.sum(1)
            advantage = (reward - self.baseline * words) * drawn
            score = (advantage * (output.extras["place_log_prob"] * mask).sum(1)).sum()
            entropy = (output.extras["place_entropy"] * mask).sum() / batch.token_count
            loss = loss - self.score_weight * score / batch.token_count - self.entropy * entropy
            logs |= {"entropy": entropy.detach(), "advantage": advantage.abs().sum() / batch.caption_count}
            self._update(reward[drawn].sum(), words[drawn].sum())
        if self.penalty:
            assert output.attention is not None
            loss = loss + self.penalty * doubly_stochastic(output.attention, mask).sum() / batch.token_count
        return loss, logs

    @torch.no_grad()
    def _update(self, reward: Tensor, words: Tensor) -> None:
        both = across_processes(torch.stack([reward, words.to(reward.dtype)]))
        if both[1] > 0:
            fresh = both[0] / both[1]
            decay = self.decay if self.seen > 0 else 0.0  # the first batch sets it
            self.baseline.copy_(decay * self.baseline + (1 - decay) * fresh)
            self.seen += 1
