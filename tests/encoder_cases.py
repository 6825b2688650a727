"""What the tests of encoders share: the sizes each network promises, and noise to encode."""

from __future__ import annotations

import torch
from torch import Tensor

from sightline.nn.encoders import Encoder

# As each network gives it at its own size: depth, height and width, and that size.
NATIVE = {
    "patches": (128, 16, 16, 128),
    "alexnet": (256, 14, 14, 240),
    "googlenet": (832, 14, 14, 224),
    "vgg16": (512, 14, 14, 224),
    "vgg19": (512, 14, 14, 224),
    "resnet50": (2048, 7, 7, 224),
    "resnet101": (2048, 7, 7, 224),
    "resnet152": (2048, 7, 7, 224),
    "densenet121": (1024, 7, 7, 224),
    "densenet201": (1920, 7, 7, 224),
    "clip-vit-b16": (768, 14, 14, 224),
    "clip-vit-b32": (768, 7, 7, 224),
    "dinov2-vits14": (384, 16, 16, 224),
    "efficientnet-lite0": (1280, 7, 7, 224),
    "efficientnet-lite1": (1280, 8, 8, 240),
    "efficientnet-lite2": (1280, 9, 9, 260),
    "tiny-vit-5m": (320, 7, 7, 224),
}


def noise(encoder: Encoder, count: int = 1, seed: int = 0) -> Tensor:
    size = encoder.preprocess.size
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def outputs(encoder: Encoder, images: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        features = encoder(images)
    return features.grid, features.pooled
