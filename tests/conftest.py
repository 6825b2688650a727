"""Fixtures that several tests share: a tiny Flickr8k drawn on the spot, and the real data where it lies at hand."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side: one thread each

import pytest
from PIL import Image, ImageDraw


@dataclass(frozen=True)
class Drawing:
    """One generated photo: a coloured shape on a coloured ground."""

    colour: str
    shape: str
    ground: str
    place: str

    @property
    def name(self) -> str:
        return f"{self.colour}_{self.shape}_{self.ground}.jpg"

    @property
    def captions(self) -> tuple[str, ...]:
        return (
            f"A {self.colour} {self.shape} on a {self.ground} {self.place} .",
            f"a {self.shape} that is {self.colour} lies on the {self.ground} {self.place}",
            f"The {self.ground} {self.place} has one {self.colour} {self.shape} on it .",
            f"One {self.colour} {self.shape} .",
            f"There is a {self.shape} , painted {self.colour} , in the middle of a {self.place} .",
        )

    def draw(self, size: tuple[int, int] = (96, 80)) -> Image.Image:
        image = Image.new("RGB", size, self.ground)
        pen = ImageDraw.Draw(image)
        left, top, right, bottom = size[0] * 0.25, size[1] * 0.2, size[0] * 0.75, size[1] * 0.8
        match self.shape:
            case "circle":
                pen.ellipse((left, top, right, bottom), fill=self.colour)
            case "square":
                pen.rectangle((left, top, right, bottom), fill=self.colour)
            case "triangle":
                pen.polygon([(left, bottom), (right, bottom), ((left + right) / 2, top)], fill=self.colour)
            case _:  # a stripe
                pen.rectangle((0, size[1] * 0.4, size[0], size[1] * 0.6), fill=self.colour)
        return image


TRAIN = (
    Drawing("red", "circle", "white", "wall"),
    Drawing("blue", "square", "yellow", "field"),
    Drawing("green", "triangle", "black", "table"),
    Drawing("yellow", "stripe", "purple", "carpet"),
    Drawing("orange", "circle", "blue", "sea"),
    Drawing("white", "square", "green", "meadow"),
    Drawing("purple", "triangle", "white", "wall"),
    Drawing("black", "stripe", "orange", "carpet"),
)
DEV = (Drawing("red", "square", "black", "table"), Drawing("white", "circle", "blue", "sea"))
TEST = (Drawing("blue", "triangle", "yellow", "field"), Drawing("yellow", "circle", "green", "meadow"))
DRAWINGS = {"train": TRAIN, "dev": DEV, "test": TEST}
EVERY = TRAIN + DEV + TEST


def make_flickr8k(root: Path) -> Path:
    """Flickr8k's original layout with 8 train, 2 dev and 2 test photos of five captions each."""
    images, text = root / "Flicker8k_Dataset", root / "Flickr8k_text"
    images.mkdir(parents=True)
    text.mkdir()
    rows = []
    for drawing in EVERY:
        drawing.draw().save(images / drawing.name, quality=95)
        rows += [f"{drawing.name}#{number}\t{caption}\n" for number, caption in enumerate(drawing.captions)]
    (text / "Flickr8k.token.txt").write_text("".join(rows))
    for split, drawings in DRAWINGS.items():
        (text / f"Flickr_8k.{split}Images.txt").write_text("".join(f"{drawing.name}\n" for drawing in drawings))
    return root


@pytest.fixture
def tiny_flickr8k(tmp_path: Path) -> Path:
    """A fresh tiny Flickr8k, free to be spoilt."""
    return make_flickr8k(tmp_path / "flickr8k")


@pytest.fixture(scope="session")
def tiny_flickr8k_kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, made once for all tests that only read it."""
    return make_flickr8k(tmp_path_factory.mktemp("data") / "flickr8k")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the real data: $SIGHTLINE_SHARED, or ``shared`` beside the repository; else a skip."""
    folder = Path(os.environ.get("SIGHTLINE_SHARED") or Path(__file__).parents[2] / "shared")
    if not folder.is_dir():
        pytest.skip("real data not found: set SIGHTLINE_SHARED to the folder that holds flickr8k/")
    return folder


@pytest.fixture(scope="session")
def real_flickr8k(shared: Path) -> Path:
    folder = shared / "flickr8k"
    if not folder.is_dir():
        pytest.skip(f"no flickr8k under {shared}")
    return folder


@pytest.fixture(scope="session")
def tiny_model(tiny_flickr8k_kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model folder, small enough to caption in milliseconds; only to be read."""
    import torch

    from sightline.checkpoint import Checkpoint, save_checkpoint
    from sightline.data import load_dataset
    from sightline.decoders import build_decoder
    from sightline.encoders import build_encoder
    from sightline.model import CaptionModel
    from sightline.tokenizers import train_tokenizer

    torch.manual_seed(1)
    captions = load_dataset(tiny_flickr8k_kept).captions("train")
    tokenizer = train_tokenizer("word", captions, min_count=1, max_length=12)
    encoder = build_encoder("patches", image_size=32, patch_size=8, width=32, blocks=1, heads=2)
    decoder = build_decoder(
        "transformer", features=32, vocabulary=tokenizer.size, max_length=12, width=32, heads=2, blocks=1
    )
    folder = tmp_path_factory.mktemp("models") / "tiny"
    recipe = '[tokenizer]\nname = "word"\nmin_count = 1\n'
    save_checkpoint(folder, Checkpoint(CaptionModel(encoder, decoder), tokenizer, {"beam": 2}, recipe=recipe))
    return folder
