"""A decoder and batches so small that every caption and every path of attention can be enumerated."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from sightline.data.loader import Batch
from sightline.nn.decoders import build_decoder
from sightline.types import DecoderOutput, ImageFeatures

CELLS, DEPTH = 3, 4


class Tiny(nn.Module):
    """A decoder over fixed features, shaped like a CaptionModel."""

    def __init__(self, name: str, vocabulary: int, max_length: int = 6, **options):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = SimpleNamespace(dimension=DEPTH)
        self.decoder = build_decoder(name, DEPTH, vocabulary, max_length, dropout=0.0, **options).double()

    def features(self, photos):
        return photos

    def forward(self, photos, tokens) -> DecoderOutput:
        return self.decoder(self.features(photos), tokens)


def some_features(photos: int = 1) -> ImageFeatures:
    generator = torch.Generator().manual_seed(1)
    grid = torch.randn(photos, CELLS, DEPTH, generator=generator, dtype=torch.float64)
    return ImageFeatures(grid, grid.mean(1), 1, CELLS)


def batch_of(tokens, photos: int = 1) -> Batch:
    tokens = torch.as_tensor(tokens)
    words = int((tokens[:, 1:] != 0).sum())
    return Batch(some_features(photos), tokens, tuple(range(photos)), words, len(tokens))


def gradient(value: torch.Tensor, model: nn.Module) -> torch.Tensor:
    grads = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    return torch.cat([
        torch.zeros(p.numel(), dtype=torch.float64) if g is None else g.flatten()
        for p, g in zip(model.parameters(), grads)
    ])  # fmt: skip
