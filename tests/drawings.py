"""The photos of the tiny dataset the tests share, drawn on the spot, and their captions."""

from __future__ import annotations

from dataclasses import dataclass

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
DRAWINGS = {"train": TRAIN, "val": DEV, "test": TEST}
LISTS = {"train": "train", "val": "dev", "test": "test"}  # as Flickr8k names its split files
EVERY = TRAIN + DEV + TEST
