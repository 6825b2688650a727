"""Optimizers, learning-rate schedules and averaged weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

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
    if name != "rmsprop":
        extra["fused"] = True  # one pass over the weights instead of six: on a CPU a sixth of the time
    return OPTIMIZERS[name](settings, **extra)


class Schedule:
    """The factor on every learning rate: linear warm-up, then cosine, constant, or halved on a plateau."""

    def __init__(self, optimizer: torch.optim.Optimizer, kind: str, warmup: int, total: int, wait: int = 2):
        self.optimizer, self.kind, self.warmup, self.total, self.wait = optimizer, kind, warmup, total, wait
        self.rates = [group["lr"] for group in optimizer.param_groups]
        self.done, self.factor, self.best, self.bad = 0, 1.0, -math.inf, 0
        self.apply()

    def scale(self) -> float:
        if self.done < self.warmup:
            return (self.done + 1) / self.warmup
        if self.kind != "cosine":
            return self.factor
        share = min(1.0, (self.done - self.warmup) / max(1, self.total - self.warmup))
        return 0.5 * (1 + math.cos(math.pi * share))

    def apply(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.rates):
            group["lr"] = rate * self.scale()

    def step(self) -> None:
        self.done += 1
        self.apply()

    def evaluated(self, score: float) -> None:
        """After an evaluation: on a plateau halve the rates once it has not improved ``wait`` times."""
        if score > self.best:
            self.best, self.bad = score, 0
            return
        self.bad += 1
        if self.kind == "plateau" and self.bad >= self.wait:
            self.factor, self.bad = self.factor / 2, 0
            self.apply()

    def state(self) -> dict[str, float]:
        return {"done": self.done, "factor": self.factor, "best": self.best, "bad": self.bad}

    def restore(self, state: dict[str, Any]) -> None:
        self.done, self.bad = int(state["done"]), int(state["bad"])
        self.factor, self.best = float(state["factor"]), float(state["best"])
        self.apply()


class AveragedWeights:
    """An exponential moving average of the trained weights, swapped in for evaluation and for the saved model."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay, self.updates = decay, 0
        self.average = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))  # forget the random start quickly
        for name, parameter in model.named_parameters():
            if name in self.average:
                self.average[name].lerp_(parameter, 1 - decay)

    @torch.no_grad()
    def swap(self, model: nn.Module) -> None:
        """Exchange the model's weights with the averaged ones; a second call undoes the first."""
        for name, parameter in model.named_parameters():
            if name in self.average:
                kept = parameter.detach().clone()
                parameter.copy_(self.average[name])
                self.average[name].copy_(kept)
