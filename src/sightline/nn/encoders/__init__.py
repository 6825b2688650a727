"""Networks that turn a photo into a grid of feature vectors. A new one is a file and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sightline.io.preprocess import Preprocess
from sightline.nn.encoders.base import Encoder
from sightline.nn.encoders.patches import Patches
from sightline.nn.encoders.timm_model import ALIASES, TimmModel
from sightline.nn.encoders.torchvision_cnn import NETWORKS, TorchvisionCNN

ENCODERS: dict[str, type[Encoder]] = {
    "patches": Patches,
    **dict.fromkeys(NETWORKS, TorchvisionCNN),
    **dict.fromkeys(ALIASES, TimmModel),
}


def build_encoder(name: str, **options: Any) -> Encoder:
    """A registered encoder, or any timm model by its name there."""
    return ENCODERS.get(name, TimmModel)(name=name, **options)


def encoder_from_spec(spec: Mapping[str, Any]) -> Encoder:
    """The network of a model folder, without weights."""
    options = dict(spec)
    return build_encoder(**options | {"preprocess": Preprocess.from_json(options["preprocess"])})
