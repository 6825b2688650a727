"""Distillation (Hinton et al., 2015): a small model learns a trained one's word distributions and the human captions.

The teacher is any model folder. Its vocabulary is the student's. With ``borrow`` the student begins with the teacher's
decoder, too, and only has to learn to see. With ``feature_weight`` the photo's features are learned: what the decoder
reads of them where it is borrowed, else the teacher's own, through a linear map that is thrown away afterwards.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.data.loader import Batch
from sightline.nn.caption_model import CaptionModel
from sightline.training.objectives.base import Logs, Objective, softened, token_losses
from sightline.training.teaching import borrow_decoder, places, pooled_to
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
        borrow: bool = False,
    ):
        super().__init__()
        self.pad, self.temperature, self.borrow = pad, temperature, borrow
        self.teacher_weight, self.feature_weight = teacher_weight, feature_weight
        teacher.eval().requires_grad_(False)
        self._teacher = [teacher]  # in a list: its weights are not part of our state
        mapped = feature_weight and not borrow
        self.map = nn.Linear(student_dimension, teacher.encoder.dimension) if mapped else None

    def prepare(self, model: Any, context: Any) -> None:
        if self.borrow:
            borrow_decoder(model, self._teacher[0], context.train.epoch(0))

    def forward(self, model: Any, batch: Batch) -> tuple[Tensor, Logs]:
        assert batch.teacher is not None
        inputs = batch.tokens[:, :-1]
        features = model.features(batch.photos)
        output = model(features, inputs)
        _, nll, mask = token_losses(output, batch.tokens, self.pad)
        with torch.no_grad():
            taught_features = self._teacher[0].features(batch.teacher)
            taught = softened(self._teacher[0](taught_features, inputs).logits[mask], self.temperature)
        learned = softened(output.logits[mask], self.temperature)  # (n, V): the real words only
        divergence = F.kl_div(learned, taught, reduction="sum", log_target=True)
        human = nll.sum() / batch.token_count
        copied = divergence / batch.token_count * self.temperature**2
        loss = (1 - self.teacher_weight) * human + self.teacher_weight * copied
        logs = {"nll": human.detach(), "divergence": copied.detach()}
        if self.feature_weight:
            distance = self._distance(model, features, taught_features)
            loss = loss + self.feature_weight * distance
            logs["features"] = distance.detach()
        return loss, logs

    def _distance(self, model: Any, student: ImageFeatures, teacher: ImageFeatures) -> Tensor:
        """One minus the cosine of what the student sees at each place and what the teacher does, grids of one size."""
        ours, theirs = pooled_to(student, teacher), pooled_to(teacher, student)
        if self.map is not None:
            return (1 - F.cosine_similarity(self.map(ours.grid), theirs.grid, dim=-1)).mean()
        teacher_decoder: Any = self._teacher[0].decoder
        read, taught = model.decoder.photo(places(ours)), teacher_decoder.photo(places(theirs))
        return (1 - F.cosine_similarity(read, taught, dim=-1)).mean()
