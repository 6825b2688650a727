"""What every objective is: ``loss, logs = objective(model, batch)``. Its buffers are part of the training state.

The plain one is cross-entropy under teacher forcing, with label smoothing and soft attention's doubly stochastic
penalty.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.data.loader import Batch
from sightline.errors import ConfigError
from sightline.types import DecoderOutput

Logs = dict[str, Tensor]
log = logging.getLogger(__name__)


class Objective(nn.Module):
    wants_trained = False  # trains on the model's own samples, which random weights make useless

    def prepare(self, model: Any, context: Any) -> None:
        """Called once before training with the model and the run's parts (tokenizer, references)."""

    def forward(self, model: Any, batch: Batch) -> tuple[Tensor, Logs]:
        raise NotImplementedError


def token_losses(
    output: DecoderOutput, tokens: Tensor, pad: int, smoothing: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and plain negative log-likelihood of each next token (R, T), zero where there is none; and the mask."""
    targets = tokens[:, 1:]
    mask = targets != pad
    log_probs = output.logits[mask].log_softmax(-1)  # (n, V): the real words only
    nll = -log_probs.gather(1, targets[mask][:, None]).squeeze(1)
    padded = nll.new_zeros(mask.shape).masked_scatter(mask, nll)
    if smoothing == 0:
        return padded, padded, mask
    smoothed = (1 - smoothing) * nll - smoothing * log_probs.mean(-1)
    return nll.new_zeros(mask.shape).masked_scatter(mask, smoothed), padded, mask


def doubly_stochastic(attention: Tensor, mask: Tensor, tau: float = 1.0) -> Tensor:
    """sum_i (tau - sum_t alpha_ti)^2 of each caption (R,): attention to each cell should sum to tau over a caption.

    The weight lambda is normalised per caption: a sum over cells here, a mean over the captions of the batch by the
    caller, as the paper writes it (Xu et al., 2015, section 4.2.1, equation 9, tau = 1). The authors' program sums over
    the batch and takes the mean over cells. Its lambda = 1 is B / L here: 64 captions / 196 cells = 0.33.
    """
    total = (attention * mask[:, :, None]).sum(1)  # (R, N)
    return (tau - total).square().sum(1) * mask.any(1)


def check_tau(tau: float, encoder: Any) -> None:
    """The paper asks for tau >= L / D, with L cells of D numbers."""
    lowest = encoder.height * encoder.width / encoder.dimension
    if tau < lowest:
        log.warning(
            "objective.tau=%g is below L / D = %d x %d / %d = %.2f, the least that Show, Attend and Tell allows",
            tau, encoder.height, encoder.width, encoder.dimension, lowest,
        )  # fmt: skip


def across_processes(total: Tensor) -> Tensor:
    """The mean of a number over all processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        total = total.clone()
        torch.distributed.all_reduce(total)
        total /= torch.distributed.get_world_size()
    return total


def softened(logits: Tensor, temperature: float) -> Tensor:
    return F.log_softmax(logits / temperature, dim=-1)


class CrossEntropy(Objective):
    def __init__(self, pad: int, label_smoothing: float = 0.0, doubly_stochastic: float = 0.0, tau: float = 1.0):
        super().__init__()
        self.pad, self.smoothing, self.penalty, self.tau = pad, label_smoothing, doubly_stochastic, tau

    def prepare(self, model: Any, context: Any) -> None:
        if self.penalty:
            check_tau(self.tau, model.encoder)

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
            penalty = doubly_stochastic(output.attention, mask, self.tau).sum() / batch.caption_count
            # Per caption like the penalty: the paper's loss is a sum over words, ours a mean over the batch's words.
            loss = loss + self.penalty * penalty * batch.caption_count / batch.token_count
            logs["doubly_stochastic"] = penalty.detach()
        return loss, logs
