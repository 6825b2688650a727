"""What the tests of decoders share: a small variant of each decoder, and photos and words for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sightline.nn.decoders import Decoder, build_decoder
from sightline.types import ImageFeatures

FEATURES, CELLS, VOCABULARY, LENGTH = 6, 4, 11, 7

# Every registered decoder, and each of its options that changes how it computes.
VARIANTS: dict[str, dict[str, Any]] = {
    "lstm": {"name": "lstm", "width": 8, "hidden": 10},
    "attention-lstm": {"name": "attention-lstm", "width": 8, "hidden": 10, "attention": 5},
    "attention-lstm without gate": {"name": "attention-lstm", "width": 8, "hidden": 10, "attention": 5, "gate": False},
    "hard attention, expectation": {
        "name": "attention-lstm", "mode": "hard", "width": 8, "hidden": 10, "attention": 5, "attend": "expectation",
    },
    "hard attention, most likely": {
        "name": "attention-lstm", "mode": "hard", "width": 8, "hidden": 10, "attention": 5, "attend": "most-likely",
    },
    "attention-lstm, bilinear score": {
        "name": "attention-lstm", "width": 8, "hidden": 10, "attention": 5, "score": "bilinear",
    },
    "transformer": {"name": "transformer", "width": 8, "heads": 2, "blocks": 2},
    "transformer without pooled": {"name": "transformer", "width": 8, "heads": 2, "blocks": 2, "pooled": False},
    "transformer with tied output": {"name": "transformer", "width": 8, "heads": 2, "blocks": 2, "tie_output": True},
    "transformer with evidence maps": {
        "name": "transformer", "width": 8, "heads": 2, "blocks": 2, "attention_maps": "evidence",
    },
    "transformer of the photo's width": {"name": "transformer", "width": 6, "heads": 3, "blocks": 1, "feedforward": 5},
}  # fmt: skip


def build(options: dict[str, Any], seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    decoder = build_decoder(features=FEATURES, vocabulary=VOCABULARY, max_length=LENGTH, dropout=0.3, **options)
    with torch.no_grad():
        for parameter in decoder.parameters():  # far from the small start values, where much would look equal
            parameter.add_(torch.randn_like(parameter) * 0.3)
    for module in decoder.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return decoder.eval()


def photos(count: int, seed: int = 1) -> ImageFeatures:
    generator = torch.Generator().manual_seed(seed)
    grid = torch.randn(count, CELLS, FEATURES, generator=generator)
    return ImageFeatures(grid, torch.randn(count, FEATURES, generator=generator), 2, 2)


def words(rows: int, length: int = LENGTH, seed: int = 2) -> Tensor:
    """No padding among them: id 0 is not a word."""
    return torch.randint(1, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, atol=1e-5, rtol=1e-5)
