"""Networks that turn a photo into a grid of feature vectors. A new one is a file and a line here."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from sightline.errors import ConfigError
from sightline.io.preprocess import Preprocess
from sightline.nn.encoders.base import Encoder
from sightline.nn.encoders.concatenation import Concatenation
from sightline.nn.encoders.patches import Patches
from sightline.nn.encoders.timm_model import ALIASES, TimmModel, find_architecture
from sightline.nn.encoders.torchvision_cnn import NETWORKS, TorchvisionCNN
from sightline.recipes.config import PLUS

ENCODERS: dict[str, type[Encoder]] = {
    "patches": Patches,
    **dict.fromkeys(NETWORKS, TorchvisionCNN),
    **dict.fromkeys(ALIASES, TimmModel),
}


def build_encoder(name: str, **options: Any) -> Encoder:
    """A registered encoder, any timm model by its name there, or several of them joined by "+"."""
    if PLUS in name:
        return Concatenation(build_encoder, name, **options)
    kind = ENCODERS.get(name, TimmModel)
    try:
        inspect.signature(kind).bind(name=name, **options)
    except TypeError as error:
        raise ConfigError(
            f"encoder {name!r} cannot be built: {kind.__name__} {error}; CONTRIBUTING.md lists what an encoder is given"
        ) from None
    return kind(name=name, **options)


def check_encoder_name(name: str) -> None:
    """Raise `ConfigError` unless the encoder, or each of several, is registered or timm has it."""
    for part in name.split(PLUS):
        if part not in ENCODERS:
            find_architecture(part)


def encoder_from_spec(spec: Mapping[str, Any]) -> Encoder:
    """The network of a model folder, without weights."""
    options = dict(spec)
    return build_encoder(**options | {"preprocess": Preprocess.from_json(options["preprocess"])})
