"""Hard attention's variational bound (Xu et al., 2015, section 4.1), maximised with the score-function estimator.

For a caption y and locations s drawn from the model's own attention, the gradient of E_s[log p(y|s,a)] is estimated by

    d log p(y|s) + (log p(y|s) - b) d log p(s)  +  entropy weight * d H[s]

as the mean of ``samples`` draws per caption (N in the paper's equation 7; the authors' program draws one). The paper's
baseline b is one moving average (ours is per word, since captions differ in length). Most of the variance it leaves is
between captions, not between locations: rare words are unlikely wherever the model attends. So our b has two parts,
word by word: the log-likelihood of the same caption under the attention used at inference, without draws, and a moving
average of the difference. A location is credited with its own word and those after it, as earlier words cannot depend
on it. Neither choice depends on the locations drawn, so the expectation stays the same. ``baseline="average"`` and
``credit="caption"`` are the paper's.

Captions trained on the expected context (half of them) use soft attention: their gradient flows through the weights and
they have no score-function term.

The weight of the entropy is per word, as the loss is: both are means over the words of the batch. The authors' program
takes the mean of the captions' losses but the sum of their entropies, so its 0.002 with batches of 64 is 0.128 here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from sightline.data.loader import Batch
from sightline.errors import ConfigError
from sightline.training.objectives.base import (
    Logs,
    Objective,
    across_processes,
    check_tau,
    doubly_stochastic,
    token_losses,
)


class HardAttention(Objective):
    wants_trained = True
    baseline: Tensor
    updates: Tensor

    def __init__(
        self,
        pad: int,
        samples: int = 1,
        entropy: float = 0.002,
        baseline_decay: float = 0.9,
        expectation: float = 0.5,
        score_weight: float = 1.0,
        doubly_stochastic: float = 0.0,
        tau: float = 1.0,
        label_smoothing: float = 0.0,
        baseline: Literal["own", "average"] = "own",
        credit: Literal["later", "caption"] = "later",
    ):
        super().__init__()
        self.kind, self.credit, self.samples, self.tau = baseline, credit, samples, tau
        self.pad, self.entropy, self.decay, self.expectation = pad, entropy, baseline_decay, expectation
        self.score_weight, self.penalty, self.smoothing = score_weight, doubly_stochastic, label_smoothing
        self.register_buffer("baseline", torch.zeros(()))  # of a word's log-likelihood, or its difference
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    def prepare(self, model: Any, context: Any) -> None:
        if getattr(model.decoder, "mode", None) != "hard":
            raise ConfigError(
                "objective 'hard-attention' needs --set decoder.name=attention-lstm with decoder.mode=hard"
            )
        model.decoder.expectation = self.expectation
        if self.penalty:
            check_tau(self.tau, model.encoder)

    def forward(self, model: Any, batch: Batch) -> tuple[Tensor, Logs]:
        once = batch
        batch = self._repeated(batch)  # each caption ``samples`` times, every row with draws of its own
        output = model(batch.photos, batch.tokens[:, :-1])
        losses, nll, mask = token_losses(output, batch.tokens, self.pad, self.smoothing)
        loss = losses.sum() / batch.token_count
        logs = {"nll": nll.sum().detach() / batch.token_count}
        if "location_log_prob" in output.extras:
            drawn = ~output.extras["on_expectation"]
            log_probs = -nll.detach()  # (R, T), of each word
            if self.kind == "own":
                log_probs = log_probs - self._without_draws(model, once, drawn, log_probs)
            counted = mask & drawn[:, None]
            advantage = (log_probs - self.baseline) * counted
            if self.credit == "later":
                advantage = advantage.flip(1).cumsum(1).flip(1)
            else:
                advantage = advantage.sum(1, keepdim=True)
            score = (advantage * output.extras["location_log_prob"] * mask).sum()
            entropy = (output.extras["location_entropy"] * mask).sum() / batch.token_count
            loss = loss - self.score_weight * score / batch.token_count - self.entropy * entropy
            logs |= {"entropy": entropy.detach(), "advantage": advantage[:, 0].abs().sum() / batch.caption_count}
            self._update(log_probs[counted].sum(), counted.sum())
        if self.penalty:
            assert output.attention is not None
            loss = loss + self.penalty * doubly_stochastic(output.attention, mask, self.tau).sum() / batch.token_count
        return loss, logs

    def _repeated(self, batch: Batch) -> Batch:
        if self.samples == 1:
            return batch
        return replace(
            batch,
            tokens=batch.tokens.repeat_interleave(self.samples, 0),
            token_count=batch.token_count * self.samples,
            caption_count=batch.caption_count * self.samples,
        )

    @torch.no_grad()
    def _without_draws(self, model: Any, batch: Batch, drawn: Tensor, like: Tensor) -> Tensor:
        """log p of each word (R, T) with the attention used at inference; only the ``drawn`` captions need it.

        ``batch`` has each caption once; its rows are repeated for the ``samples`` of ``drawn`` and ``like``.
        """
        drawn = drawn.view(-1, self.samples).any(1)
        log_probs = torch.zeros_like(like[:: self.samples])
        photos, tokens, rows = batch.photos, batch.tokens, torch.ones_like(drawn)
        if len(tokens) == len(batch.indices):  # one caption for each photo: the others can be left out
            photos, tokens, rows = photos[drawn], tokens[drawn], drawn
        if drawn.any():
            training = model.decoder.training
            model.decoder.eval()
            log_probs[rows] = -token_losses(model(photos, tokens[:, :-1]), tokens, self.pad)[1]
            model.decoder.train(training)
        return log_probs.repeat_interleave(self.samples, 0)

    @torch.no_grad()
    def _update(self, total: Tensor, words: Tensor) -> None:
        both = across_processes(torch.stack([total, words.to(total.dtype)]))
        if both[1] > 0:
            fresh = both[0] / both[1]
            decay = self.decay if self.updates > 0 else 0.0  # the first batch sets it
            self.baseline.copy_(decay * self.baseline + (1 - decay) * fresh)
            self.updates += 1
