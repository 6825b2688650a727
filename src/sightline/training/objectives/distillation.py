"""Distillation (Hinton et al., 2015): a small model learns a trained one's word distributions and the human captions.

The teacher is any model folder. Its vocabulary is the student's, and with ``feature_weight`` its photo features are
learned too, through a linear map that is thrown away afterwards.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.data.loader import Batch
from sightline.model import CaptionModel
from sightline.training.objectives.base import Logs, Objective, softened, token_losses
from sightline.types import ImageFeatures


class Distillation(Objective):
    def __init__(
        self,
        pad: int,
        teacher: CaptionModel,
        student_dimension: int,
        temperature: float = 1.0,
        teacher_weight: float = 0.7,
        feature_weight: float = 0.0,
    ):
        super().__init__()
        self.pad, self.temperature = pad, temperature
        self.teacher_weight, self.feature_weight = teacher_weight, feature_weight
        teacher.eval().requires_grad_(False)
        self._teacher = [teacher]  # in a list: its weights are not part of our state
        self.map = nn.Linear(student_dimension, teacher.encoder.dimension) if feature_weight else None

    def forward(self, model: Any, batch: Batch) -> tuple[Tensor, Logs]:
        assert batch.teacher is not None
        inputs = batch.tokens[:, :-1]
        features = model.features(batch.photos)
        output = model(features, inputs)
        _, nll, mask = token_losses(output, batch.tokens, self.pad)
        with torch.no_grad():
            taught_features = self._teacher[0].features(batch.teacher)
            taught = softened(self._teacher[0](taught_features, inputs).logits, self.temperature)
        learned = softened(output.logits, self.temperature)
        divergence = F.kl_div(learned, taught, reduction="none", log_target=True).sum(-1) * mask  # (R, T)
        human = nll.sum() / batch.token_count
        copied = divergence.sum() / batch.token_count * self.temperature**2
        loss = (1 - self.teacher_weight) * human + self.teacher_weight * copied
        logs = {"nll": human.detach(), "divergence": copied.detach()}
        if self.map is not None:
            distance = self._distance(features, taught_features)
            loss = loss + self.feature_weight * distance
            logs["features"] = distance.detach()
        return loss, logs

    def _distance(self, student: ImageFeatures, teacher: ImageFeatures) -> Tensor:
        """One minus the cosine of the student's mapped grid and the teacher's, pooled to the smaller one's size."""
        assert self.map is not None
        side = (min(student.height, teacher.height), min(student.width, teacher.width))
        ours, theirs = self.map(_pool(student, side)), _pool(teacher, side)
        return (1 - F.cosine_similarity(ours, theirs, dim=-1)).mean()


def _pool(features: ImageFeatures, side: tuple[int, int]) -> Tensor:
    maps = features.grid.transpose(1, 2).unflatten(2, (features.height, features.width))
    return F.adaptive_avg_pool2d(maps, side).flatten(2).transpose(1, 2)  # (B, N, D)
