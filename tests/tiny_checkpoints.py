"""A model of a few hundred weights with every decoder and tokenizer, and what a spoilt folder of it is refused with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sightline.errors import CheckpointError
from sightline.nn.checkpoint import CaptionModel, Checkpoint, load_checkpoint
from sightline.nn.decoders import build_decoder
from sightline.nn.encoders import build_encoder
from sightline.tokenizers import Tokenizer, train_tokenizer

TEXTS = ["a dog runs on the grass", "a red ball lies on the grass", "the dog's ball is red"]
LENGTH = 9
OPTIONS: dict[str, dict[str, Any]] = {
    "lstm": {"width": 8, "hidden": 8, "dropout": 0.5},
    "attention-lstm": {"width": 8, "hidden": 8, "attention": 8, "mode": "soft", "gate": True, "attend": "expectation"},
    "transformer": {"width": 8, "heads": 2, "blocks": 1, "pooled": True, "tie_output": False, "dropout": 0.1},
}


def tokenizer(name: str = "word") -> Tokenizer:
    options = {"min_count": 1} if name == "word" else {}
    return train_tokenizer(name, TEXTS, max_length=LENGTH, **options)


def tiny(name: str = "transformer", text: str = "word", seed: int = 0, **options: Any) -> Checkpoint:
    torch.manual_seed(seed)
    words = tokenizer(text)
    encoder = build_encoder("patches", image_size=16, patch_size=8, width=8, heads=2, blocks=1)
    sizes = {"features": 8, "vocabulary": words.size, "max_length": LENGTH}
    decoder = build_decoder(name, **sizes, **OPTIONS[name] | options)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    model = CaptionModel(encoder, decoder).eval()
    return Checkpoint(model, words, {"beam": 2, "length_penalty": 0.5}, {"cider": 1.25}, 'title = "tiny"\n')


def logits(model: CaptionModel) -> torch.Tensor:
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    tokens = torch.randint(4, 10, (4, 6), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return model(pixels, tokens).logits


def error_message(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    return message
