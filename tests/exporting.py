"""What the tests of exported models share: a tiny model, its export with the page's, and pictures to caption."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from sightline.cli import run
from sightline.nn.checkpoint import CaptionModel, Checkpoint, save_checkpoint
from sightline.nn.decoders import build_decoder
from sightline.nn.encoders import build_encoder
from sightline.tokenizers import train_tokenizer


def tiny_checkpoint(seed: int = 0, width: int = 32) -> Checkpoint:
    """An untrained transformer over patches that captions different pictures differently."""
    torch.manual_seed(seed)
    texts = ["a red dog runs on the green grass", "two blue cats"]
    tokenizer = train_tokenizer("word", texts, min_count=1, max_length=9)
    encoder = build_encoder("patches", image_size=32, patch_size=8, width=width // 2, heads=2, blocks=1)
    sizes = {"features": width // 2, "vocabulary": tokenizer.size, "max_length": 9}
    decoder = build_decoder("transformer", **sizes, width=width, heads=2, blocks=1)
    with torch.no_grad():
        decoder.output.weight.mul_(8)
    return Checkpoint(CaptionModel(encoder, decoder), tokenizer, {"beam": 2, "no_repeat_ngram": 2})


def model_folder(folder: Path) -> Path:
    save_checkpoint(folder, tiny_checkpoint())
    (folder / "README.md").write_text("# A card\n")
    return folder


def export_both(root: Path) -> tuple[Path, Path]:
    """A model folder, and its export in float with the page's in int8."""
    model, out, output = model_folder(root / "model"), root / "out", io.StringIO()
    with contextlib.redirect_stdout(output):
        assert run(["export", str(model), "-o", str(out), "--web", str(root / "site"), "--licence", "CC0-1.0"]) == 0
    float32, int8, page, difference = output.getvalue().splitlines()
    assert re.fullmatch(rf"{out}: float32, 0.\d MB \(encoder.onnx 0.\d, start.onnx 0.\d, step.onnx 0.\d\)", float32)
    assert int8.startswith(f"{page_model(out)}: int8, 0.")
    assert page.endswith(f"python3 -m http.server -d {root / 'site'}")
    assert re.fullmatch(r"the float graphs' logits are torch's to \de-0[678]", difference)
    return model, out


def page_model(out: Path) -> Path:
    """The files that the page loads."""
    return out.parent / "site" / "model"


def pictures() -> list[Image.Image]:
    random = np.random.default_rng(1)
    noise = [Image.fromarray(random.integers(0, 256, (40, 50, 3), np.uint8)) for _ in range(6)]
    return [*noise, Image.new("RGB", (64, 20), "red"), Image.new("L", (5, 90), 200)]
