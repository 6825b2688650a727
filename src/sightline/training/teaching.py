"""What a teacher gives its student: the same views of the photos, captions of its own, and a decoder to begin with."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.data import Example
from sightline.data.loader import Batch, CachedPhotos
from sightline.engine.captioner import Captioner
from sightline.engine.torch_backend import TorchBackend
from sightline.errors import ConfigError
from sightline.io.files import cache_folder, write_atomically
from sightline.io.progress import track
from sightline.nn.caption_model import CaptionModel
from sightline.nn.checkpoint import Checkpoint
from sightline.training.feature_cache import FeatureCache
from sightline.types import ImageFeatures

log = logging.getLogger("sightline.training")
ENOUGH = 512  # photos to fit the map from a student's features to its teacher's: some 25,000 places
RIDGE = 1e-3  # of a feature's variance
AT_ONCE = 50  # photos captioned together


def teacher_photos(teacher: Checkpoint, examples: Sequence[Example], views: int = 1) -> CachedPhotos:
    """The photos, and with ``views`` their augmented views, as the teacher's cached features."""
    teacher.model.encoder.set_trainable("frozen")
    grid = teacher.model.decoder.uses_grid
    return CachedPhotos(FeatureCache(teacher.model.encoder, examples, grid=grid, views=views).fill())


def teacher_captions(teacher: Checkpoint, photos: CachedPhotos, count: int) -> list[list[str]]:
    """The teacher's best captions of each plain photo: found once, then kept beside the features."""
    about = [teacher.signature(), teacher.decoding, count]
    name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    kept = cache_folder() / "captions" / f"{photos.cache.folder.name}-{name}.json"
    if kept.is_file():
        found: list[list[str]] = json.loads(kept.read_text(encoding="utf-8"))
        return found
    captioner = Captioner([TorchBackend(teacher)])
    options = captioner.options(want_attention=False, candidates=count)
    numbers, captions = range(len(photos.cache.examples)), []
    for start in track(range(0, len(numbers), AT_ONCE), "the teacher's captions", -(-len(numbers) // AT_ONCE)):
        features = [photos.cache.features(numbers[start : start + AT_ONCE])]
        for best in captioner.finish(captioner.decode(features, options), features):
            captions.append([best.text, *(other.text for other in best.others)])
    write_atomically(kept, json.dumps(captions, ensure_ascii=False) + "\n")
    return captions


@torch.no_grad()
def borrow_decoder(student: CaptionModel, teacher: CaptionModel, batches: Iterable[Batch]) -> None:
    """The teacher's decoder becomes the student's, which sees through the linear map that fits its features best.

    Least squares over the places of some photos: from what the student's encoder says of a place to what the
    teacher's decoder is used to reading there. Training goes on from captions, not from noise.
    """
    ours, theirs = getattr(student.decoder, "photo", None), getattr(teacher.decoder, "photo", None)
    spec, taught = ({**model.decoder.spec, "features": 0, "dropout": 0} for model in (student, teacher))
    if spec != taught or not isinstance(ours, nn.Linear) or theirs is None:
        wrong = sorted(key for key in spec | taught if spec.get(key) != taught.get(key)) or ["name"]
        shown = ", ".join(f"decoder.{key} {spec.get(key)} is not {taught.get(key)}" for key in wrong)
        raise ConfigError(f"objective.borrow wants the teacher's own kind of transformer: {shown}")
    student.eval()
    seen: list[Tensor] = []
    wanted: list[Tensor] = []
    for batch in batches:
        assert batch.teacher is not None
        features = student.features(batch.photos)
        seen.append(places(features).flatten(0, 1).double())
        wanted.append(theirs(places(pooled_to(teacher.features(batch.teacher), features))).flatten(0, 1).double())
        if sum(map(len, seen)) >= ENOUGH * (features.height * features.width + 1):
            break
    state: dict[str, Any] = teacher.decoder.state_dict()
    own = student.decoder.state_dict()
    student.decoder.load_state_dict({key: own[key] if key.startswith("photo.") else state[key] for key in own})
    weight, bias, explained = _fit(torch.cat(seen), torch.cat(wanted))
    ours.weight.copy_(weight)
    ours.bias.copy_(bias)
    log.info("the student begins with its teacher's decoder; a linear map explains %.0f %% of what it reads",
             100 * explained)  # fmt: skip


def _fit(seen: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, float]:
    """Weight and bias of the best linear map, and the share of variance it explains."""
    x, y = seen - seen.mean(0), wanted - wanted.mean(0)
    ridge = RIDGE * len(x) * x.var() * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    weight = torch.linalg.solve(x.T @ x + ridge, x.T @ y)
    explained = 1 - (y - x @ weight).square().sum() / y.square().sum()
    return weight.T, wanted.mean(0) - seen.mean(0) @ weight, float(explained)


def places(features: ImageFeatures) -> Tensor:
    """(B, N + 1, D): the grid and the whole photo."""
    return torch.cat([features.grid, features.pooled[:, None]], 1)


def pooled_to(features: ImageFeatures, like: ImageFeatures) -> ImageFeatures:
    """A larger grid averaged to another's size."""
    side = (min(features.height, like.height), min(features.width, like.width))
    maps = features.grid.transpose(1, 2).unflatten(2, (features.height, features.width))
    grid = F.adaptive_avg_pool2d(maps, side).flatten(2).transpose(1, 2)
    return ImageFeatures(grid, features.pooled, *side)
