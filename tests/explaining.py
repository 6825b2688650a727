"""What the tests of explanations share: tiny models of every kind, a photo, and a caption whose maps have one peak."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from sightline.nn.checkpoint import CaptionModel, Checkpoint
from sightline.nn.decoders import build_decoder
from sightline.nn.encoders import build_encoder
from sightline.tokenizers import train_tokenizer
from sightline.types import Caption, Word

CAPTIONS = ["a black dog runs through the green grass", "two children play in the snow with a red ball"]
KINDS = {
    "soft": {"name": "attention-lstm", "mode": "soft", "hidden": 16, "attention": 8},
    "hard": {"name": "attention-lstm", "mode": "hard", "hidden": 16, "attention": 8},
    "transformer": {"name": "transformer", "heads": 2, "blocks": 3},
    "lstm": {"name": "lstm", "hidden": 16},
}


def checkpoint(kind: str, seed: int = 0) -> Checkpoint:
    torch.manual_seed(seed)
    tokenizer = train_tokenizer("word", CAPTIONS, min_count=1, max_length=10)
    encoder = build_encoder("patches", image_size=32, patch_size=8, width=16, blocks=1, heads=2)
    sizes = {"features": 16, "vocabulary": tokenizer.size, "max_length": 10, "width": 16}
    return Checkpoint(
        CaptionModel(encoder, build_decoder(**KINDS[kind], **sizes)), tokenizer, {"beam": 3, "min_length": 3}
    )


def photo(width: int = 60, height: int = 40, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def peaked(row: int = 1, column: int = 5, shape: tuple[int, int] = (7, 7)) -> np.ndarray:
    grid = np.full(shape, 0.01)
    grid[row, column] = 0.52
    return grid


def caption(*texts: str, **changes) -> Caption:
    words = tuple(Word(text, 0.5, peaked(), alternatives=(("cat", 0.2),)) for text in texts)
    return Caption(" ".join(texts), words, -1.0, **{"photo": Image.new("RGB", (140, 70), "white"), **changes})
