"""A small vision transformer from scratch: 8x8 patches as tokens, learned positions, pre-norm blocks.

After ViT (Dosovitskiy et al., 2021), in the sizes of the image-captioning tutorial of the repository "learn-llm"
(train-image-caption.py). There is no class token: the pooled vector is the patches' mean.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sightline.errors import ConfigError
from sightline.io.preprocess import Preprocess
from sightline.nn.decoders.transformer import EncoderBlock
from sightline.nn.encoders.base import Encoder


class Patches(Encoder):
    def __init__(
        self,
        name: str = "patches",
        image_size: int = 128,
        patch_size: int = 8,
        width: int = 128,
        blocks: int = 2,
        heads: int = 4,
        dropout: float = 0.1,
        preprocess: Preprocess | None = None,
    ):
        super().__init__()
        self.name, self.dimension = name, width
        self.height = self.width = image_size // patch_size
        self._spec = {
            "name": name, "image_size": image_size, "patch_size": patch_size, "width": width, "blocks": blocks,
            "heads": heads, "dropout": dropout,
        }  # fmt: skip
        self.preprocess = preprocess or Preprocess(
            size=image_size, resize=image_size, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), fit="squash"
        )
        if self.preprocess.size != image_size:
            raise ConfigError(
                f"preprocess.size is {self.preprocess.size}, encoder.image_size {image_size}: they are one"
            )
        self.projection = nn.Conv2d(3, width, patch_size, stride=patch_size)  # 8x8x3 = 192 numbers to ``width``
        self.positions = nn.Parameter(torch.randn(1, self.height * self.width, width) * 0.02)
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads, dropout) for _ in range(blocks)))

    def maps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.projection(images).flatten(2).transpose(1, 2) + self.positions  # (B, N, D)
        tokens = self.blocks(tokens)
        return tokens.transpose(1, 2).unflatten(2, (self.height, self.width)), tokens.mean(1)

    def spec(self) -> dict[str, Any]:
        return self._spec | {"preprocess": self.preprocess.to_json()}
