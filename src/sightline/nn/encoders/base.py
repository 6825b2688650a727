"""What every encoder is: a network from pixels to a grid of vectors, with the preprocessing its weights expect."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.errors import ConfigError
from sightline.io.images import Preprocess
from sightline.types import ImageFeatures

Norms = (nn.modules.batchnorm._BatchNorm,)


class Encoder(nn.Module):
    """Subclasses set ``preprocess`` and implement ``maps``; ``spec`` rebuilds the same network without its weights."""

    name: str
    preprocess: Preprocess
    dimension: int
    height: int
    width: int
    trained: bool = True
    grid: int | None
    options: dict[str, Any]

    def maps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, S, S) to a feature map (B, D, H, W) and a vector (B, D)."""
        raise NotImplementedError

    def spec(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "grid": self.grid,
            "options": self.options,
            "preprocess": self.preprocess.to_json(),
            "shape": [self.dimension, self.height, self.width],
        }

    def forward(self, images: Tensor) -> ImageFeatures:
        maps, pooled = self.maps(images.contiguous(memory_format=torch.channels_last))  # twice as fast on a CPU
        return ImageFeatures(maps.flatten(2).transpose(1, 2), pooled, maps.shape[2], maps.shape[3])

    def measure(self, shape: tuple[int, int, int] | None = None) -> None:
        """The grid's depth, height and width: as given, or found by encoding one black image."""
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if shape:
            self.dimension, self.height, self.width = shape
            return
        with torch.no_grad():
            features = self.eval()(torch.zeros(1, 3, self.preprocess.size, self.preprocess.size))
        self.dimension, self.height, self.width = features.grid.shape[2], features.height, features.width

    def set_trainable(self, train: str) -> None:
        """ "frozen", "all", or the name of the first layer to be trained (it and all after it are)."""
        names = [name for name, _ in self.named_parameters()]
        first = {"frozen": len(names), "all": 0}.get(train)
        if first is None:
            first = next((i for i, name in enumerate(names) if f".{train}." in f".{name}."), None)
        if first is None:
            layers = ", ".join(dict.fromkeys(map(_layer, names)))
            raise ConfigError(f"encoder.train is {train!r}: {self.name} has no such layer; it has {layers}")
        self.trained = first < len(names)
        idle = self._idle() if self.trained else set()
        for index, (name, parameter) in enumerate(self.named_parameters()):
            parameter.requires_grad_(index >= first and name not in idle)
        self.train(self.training)

    def _idle(self) -> set[str]:
        """Weights no feature depends on, as a removed classifier's norm: processes would wait for their gradients."""
        names, parameters = zip(*self.requires_grad_(True).named_parameters())
        training = self.training
        size, device = self.preprocess.size, parameters[0].device
        with torch.enable_grad():
            features = self.eval()(torch.zeros(1, 3, size, size, device=device))
            total = features.grid.sum() + features.pooled.sum()
            gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        self.train(training)
        return {name for name, gradient in zip(names, gradients) if gradient is None}

    def train(self, mode: bool = True) -> Encoder:
        """Frozen means eval mode; a fine-tuned pretrained network keeps its batch norms' statistics."""
        super().train(mode and self.trained)
        for module in self.modules():
            if isinstance(module, Norms):
                module.eval()
        return self


def _layer(name: str) -> str:
    """The layer a weight belongs to, as one may type it: "layer4", "blocks.10"."""
    parts = name.removeprefix("trunk.").removeprefix("network.").split(".")
    return ".".join(parts[:2]) if parts[0] in ("blocks", "stages", "layers") else parts[0]


def pool_to(maps: Tensor, grid: int | None) -> Tensor:
    """Adaptive average pooling to grid x grid, only ever downwards: upwards it would repeat vectors."""
    return maps if grid is None or maps.shape[-2:] == (grid, grid) else F.adaptive_avg_pool2d(maps, grid)


def check_grid(name: str, maps_size: int, grid: int | None, image_size: int) -> None:
    if grid and grid > maps_size:
        wanted = -(-image_size * grid // maps_size // 32) * 32
        raise ConfigError(
            f"encoder.grid={grid}: {name} gives {maps_size}x{maps_size} cells at {image_size} pixels and pooling up "
            f"would repeat vectors; set encoder.image_size={wanted} or a smaller grid"
        )
