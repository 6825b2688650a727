"""Optimizers, learning-rate schedules and averaged weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, ReduceLROnPlateau, SequentialLR
from torch.optim.swa_utils import AveragedModel

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "rmsprop": torch.optim.RMSprop,
}


def build_optimizer(
    step: nn.Module, name: str, learning_rate: float, weight_decay: float, encoder_rate: float
) -> torch.optim.Optimizer:
    """Matrices are decayed, vectors (biases, norms) are not; a trained encoder has its own learning rate."""
    groups: dict[tuple[bool, bool], list[Tensor]] = {}
    for key, parameter in step.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((".encoder." in f".{key}", parameter.dim() > 1), []).append(parameter)
    settings = [
        {
            "params": parameters,
            "lr": encoder_rate if encoder else learning_rate,
            "weight_decay": weight_decay if decayed and name == "adamw" else 0.0,
        }
        for (encoder, decayed), parameters in groups.items()
    ]
    extra: dict[str, Any] = {"betas": (0.9, 0.98)} if name == "adamw" else {}
    if (
        name == "rmsprop"
    ):  # with momentum and a centred variance (Graves, 2013), as Show, Attend and Tell's program has it
        extra |= {"alpha": 0.95, "momentum": 0.9, "centered": True, "eps": 1e-3}
    else:
        extra["fused"] = True  # one pass over the weights instead of six: on a CPU a sixth of the time
    return OPTIMIZERS[name](settings, **extra)


class Schedule:
    """The learning rates: linear warm-up, then cosine to zero, constant, or halved on a plateau of the score.

    torch's schedulers, one stepped after each update and one after each evaluation. Their state is plain JSON.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, kind: str, warmup: int, total: int):
        self.optimizer = optimizer
        self.by_update = _by_update(optimizer, kind, warmup, total)
        self.by_score: ReduceLROnPlateau | None = None
        if kind == "plateau":  # torch's patience counts the evaluations it still tolerates
            self.by_score = ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=1, threshold=0.0, eps=0.0)

    def step(self) -> None:
        self.by_update.step()

    def evaluated(self, score: float) -> None:
        """After an evaluation: on a plateau halve the rates once it has not improved twice in a row."""
        if self.by_score:
            self.by_score.step(score)

    def state(self) -> dict[str, Any]:
        """What `restore` needs. The schedulers change the rates they find, so these are part of it."""
        return {
            "rates": [group["lr"] for group in self.optimizer.param_groups],
            "by_update": self.by_update.state_dict(),
            "by_score": self.by_score.state_dict() if self.by_score else {},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; a ValueError names what does not belong to this schedule."""
        _check_alike(state, self.state(), "schedule")
        self.by_update.load_state_dict(state["by_update"])
        if self.by_score:
            self.by_score.load_state_dict(state["by_score"])
        for group, rate in zip(self.optimizer.param_groups, state["rates"]):
            group["lr"] = rate


def _by_update(optimizer: torch.optim.Optimizer, kind: str, warmup: int, total: int) -> LRScheduler:
    """(step + 1) / warmup while warming up, then constant, or (1 + cos(pi * share of the rest)) / 2."""
    steps = max(1, warmup)
    if kind != "cosine":
        return LinearLR(optimizer, start_factor=1 / steps, total_iters=steps - 1)
    cosine_steps = max(1, total - warmup)
    if warmup == 0:
        return CosineAnnealingLR(optimizer, cosine_steps)
    linear = LinearLR(optimizer, start_factor=1 / steps, total_iters=steps - 1)
    return SequentialLR(optimizer, [linear, CosineAnnealingLR(optimizer, cosine_steps)], milestones=[warmup])


def _check_alike(found: Any, expected: Any, name: str) -> None:
    """Raise a ValueError unless a saved value has the keys, lengths and types of a fresh one."""
    if isinstance(expected, dict) and isinstance(found, dict) and found.keys() == expected.keys():
        for key, value in expected.items():
            _check_alike(found[key], value, f"{name}.{key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        for position, value in enumerate(expected):
            _check_alike(found[position], value, f"{name}.{position}")
    elif type(found) is not type(expected) or isinstance(expected, dict | list):
        raise ValueError(f"{name} does not fit this recipe")


class AveragedWeights:
    """An exponential moving average of the trained weights, swapped in for evaluation and for the saved model.

    Early updates decay faster, at (1 + n) / (10 + n) for the n-th, to forget the first weights soon.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.trained = nn.ParameterList(trained.values())  # the model's own tensors; frozen ones need no copy
        self.averaged = AveragedModel(self.trained, multi_avg_fn=self._average)
        self.averaged.update_parameters(self.trained)  # the first call copies: average number 1 is the start
        self.average = dict(zip(trained, (p.detach() for p in self.averaged.parameters())))

    def _average(self, averages: Any, weights: Any, updates: Tensor | int) -> None:
        decay = min(self.decay, (1 + int(updates)) / (10 + int(updates)))
        torch._foreach_lerp_(averages, weights, 1 - decay)

    @property
    def updates(self) -> int:
        return int(self.averaged.n_averaged) - 1

    @updates.setter
    def updates(self, count: int) -> None:
        self.averaged.n_averaged.fill_(count + 1)

    def update(self) -> None:
        self.averaged.update_parameters(self.trained)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's weights with the averaged ones; a second call undoes the first."""
        for weight, average in zip(self.trained, self.average.values()):
            kept = weight.detach().clone()
            weight.copy_(average)
            average.copy_(kept)
