"""Draw the attention of several models, word by word, side by side on the same photos.

    python results/tools/attention.py soft=runs/sat-soft-vgg19 hard=runs/sat-hard-vgg19 \\
        transformer=runs/dinov2-transformer --data flickr8k/ --full elsewhere/

Takes six val photos, evenly spaced in the list. The dataset's photos are not ours to give away: for the repository
(results/attention/) their maps are drawn without them, on a plain ground, one square for each cell of the model's
grid; with --full the same pictures with the photos go to a folder outside. Photos in examples/ are in the public domain
and are drawn whole. Then run table.py once, so that RESULTS.md shows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rows import read_json, write_json
from script import RESULTS, ROOT, check_outside, evenly, named, parser, run
from sightline.data import Example, load_dataset
from sightline.engine.captioner import Captioner, load
from sightline.errors import ConfigError, DataError
from sightline.explain.heatmap import overlay, scaled
from sightline.io.files import atomic_path
from sightline.nn.checkpoint import checkpoint_hash
from sightline.types import Caption

PHOTOS = 6
WIDTH, MARGIN, GAP, HEAD = 1500, 40, 14, 250  # HEAD: the column with the model's name, its photo and its caption
TILE, LABEL, BETWEEN = 104, 34, 30
PAPER, INK, GREY, GROUND, HEAT = (252, 251, 248), (28, 28, 32), (122, 120, 116), (232, 229, 222), (190, 72, 8)


def heat(grid: np.ndarray, size: tuple[int, int]) -> Image.Image:
    """A map of values up to 1 as coloured squares on a plain ground, ``size`` (width, height)."""
    shares = grid.clip(0, 1)[:, :, None]
    colours = (1 - shares) * np.array(GROUND) + shares * np.array(HEAT)
    return Image.fromarray(np.rint(colours).astype(np.uint8)).resize(size, Image.Resampling.NEAREST)


def levels(grids: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The maps of a caption's words for `heat`: 0 at their mean, 1 at their peak, faint ones left faint."""
    return [heatmap / max(1.0, float(heatmap.max())) for heatmap in scaled(grids)]


def picture(captions: Mapping[str, Caption], with_photo: bool) -> Image.Image:
    """One band for each model: its name and caption at the left, a tile for every word at the right."""
    bands = [_band(name, caption, with_photo) for name, caption in captions.items()]
    height = 2 * MARGIN + sum(band.height for band in bands) + BETWEEN * (len(bands) - 1)
    canvas = Image.new("RGB", (WIDTH, height), PAPER)
    top = MARGIN
    for band in bands:
        canvas.paste(band, (MARGIN, top))
        top += band.height + BETWEEN
    return canvas


def _band(name: str, caption: Caption, with_photo: bool) -> Image.Image:
    grids = [word.attention for word in caption.words if word.attention is not None]
    if caption.photo is None or len(grids) < len(caption.words):
        raise ConfigError(f"model {name!r} has no attention: take one that has")
    photo = caption.photo.convert("RGB")
    tile = (TILE, round(TILE * min(1.4, photo.height / photo.width)))
    width = WIDTH - 2 * MARGIN
    columns = (width - HEAD + GAP) // (TILE + GAP)
    rows = -(-len(grids) // columns)
    head = _head(name, caption, photo if with_photo else None)
    height = max(head.height, rows * (tile[1] + LABEL + GAP))
    band = Image.new("RGB", (width, height), PAPER)
    band.paste(head, (0, 0))
    pen = ImageDraw.Draw(band)
    small = photo.resize(tile, Image.Resampling.LANCZOS, reducing_gap=3.0)
    shown: list[Image.Image] = []
    if grids:
        shown = (
            [overlay(small, own) for own in scaled(grids)] if with_photo else [heat(own, tile) for own in levels(grids)]
        )
    for number, (word, own) in enumerate(zip(caption.words, shown)):
        row, column = divmod(number, columns)
        corner = (HEAD + column * (TILE + GAP), row * (tile[1] + LABEL + GAP))
        band.paste(own, corner)
        pen.text((corner[0], corner[1] + tile[1] + 5), word.text[:11], INK, ImageFont.load_default(19))
    return band


def _head(name: str, caption: Caption, photo: Image.Image | None) -> Image.Image:
    """The model's name, the photo as it sees it if that may be shown, and what it says."""
    width = HEAD - 30
    font = ImageFont.load_default(19)
    lines = _wrapped(caption.sentence() or "No words.", font, width)
    thumbnail = photo.resize((width, round(width * min(1.4, photo.height / photo.width)))) if photo else None
    top = 36 + (thumbnail.height + 12 if thumbnail else 0)
    head = Image.new("RGB", (HEAD, top + 26 * len(lines)), PAPER)
    pen = ImageDraw.Draw(head)
    pen.text((0, 0), name, INK, ImageFont.load_default(24))
    if thumbnail:
        head.paste(thumbnail, (0, 36))
    for number, line in enumerate(lines):
        pen.text((0, top + 26 * number), line, GREY, font)
    return head


def _wrapped(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def save(picture: Image.Image, path: Path, colours: int | None = None) -> None:
    small = picture.quantize(colours, dither=Image.Dither.NONE) if colours else picture
    with atomic_path(path) as temporary:
        small.save(temporary, "PNG", optimize=True)


def draw(
    captioners: Mapping[str, Captioner],
    examples: Sequence[Example],
    own: Sequence[Path],
    output: Path,
    full: Path | None,
) -> None:
    """Write all pictures, and ``index.json`` for the page."""
    shown = []
    for example in examples:
        captions = {name: captioner.caption(example.image) for name, captioner in captioners.items()}
        file = f"{Path(example.name).stem}.png"
        save(picture(captions, with_photo=False), output / file, colours=64)
        if full:
            save(picture(captions, with_photo=True), full / file)
        shown.append({"photo": example.name, "picture": file, "captions": {n: c.text for n, c in captions.items()}})
    for photo in own:
        captions = {name: captioner.caption(photo) for name, captioner in captioners.items()}
        save(picture(captions, with_photo=True), output / f"{photo.stem}.png", colours=256)
        shown.append({"photo": f"examples/{photo.name}", "picture": f"{photo.stem}.png"})
    folders = {name: captioner.folders[0] for name, captioner in captioners.items()}
    models = {name: checkpoint_hash(folder) for name, folder in folders.items() if folder}
    write_json(output / "index.json", {"models": models, "photos": shown})


def choose(examples: Sequence[Example], names: Sequence[str]) -> list[Example]:
    """The photos of these names, or six spread over the list."""
    if not names:
        return evenly(examples, PHOTOS)
    known = {example.name: example for example in examples}
    if missing := [name for name in names if name not in known]:
        raise DataError(f"there is no photo {missing[0]!r} in the val split: check --photos")
    return [known[name] for name in names]


def main(arguments: Sequence[str]) -> None:
    reader = parser(__doc__)
    reader.add_argument("models", nargs="+", metavar="NAME=FOLDER", help="what a model is called, and its folder")
    reader.add_argument("--data", required=True, help="the dataset's folder")
    reader.add_argument("--photos", nargs="*", default=[], help="file names of val photos, instead of the six")
    reader.add_argument("--examples", type=Path, default=ROOT / "examples", help="folder of photos anyone may show")
    reader.add_argument("--full", type=Path, help="folder outside the repository for the pictures with photos")
    reader.add_argument("--output", type=Path, default=RESULTS / "attention")
    given = reader.parse_args(arguments)
    full = check_outside(given.full) if given.full else None
    captioners = {name: load(folder) for name, folder in named(given.models).items()}
    examples = choose(load_dataset(given.data).examples("val"), given.photos)
    draw(captioners, examples, sorted(given.examples.glob("*.jpg")), given.output, full)
    print(*(entry["picture"] for entry in read_json(given.output / "index.json")["photos"]))


if __name__ == "__main__":
    raise SystemExit(run(main))
