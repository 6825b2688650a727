"""What a larger model buys: CIDEr-D on test of both datasets, megabytes on disk and milliseconds for a photo.

    python results/tools/trade_off.py dinov2-coco-words=default clip-coco-long=large tinyvit-scst=DIR --photos photos/
    python results/tools/trade_off.py

Each ROW=MODEL names a row of results/ and the model to time. The models caption the photos in turn in one run, from the
file to the sentence, with every core; the median counts. Writes results/trade_off.json, then draws
docs/pictures/trade_off.png from it and the rows; without models it only draws.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plots import INK, SOFT, STYLE, colour, draw_labels, save
from rows import read_json, read_row, write_json
from script import RESULTS, ROOT, named, parser, run
from sightline.engine.captioner import load
from sightline.errors import ConfigError, DataError
from sightline.io.files import find_images
from sightline.nn.hub import resolve
from sightline.types import Failure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATASETS = {"COCO": "coco", "Flickr8k": ""}  # their folders in results/


def measure(models: dict[str, Path], photos: Sequence[Path], rounds: int) -> dict[str, Any]:
    """Median milliseconds of wall-clock and processor time for a photo, and what each folder takes on disk."""
    folders = {row: resolve(str(model)) for row, model in models.items()}
    captioners = {row: load(folder) for row, folder in folders.items()}
    taken: dict[str, list[tuple[float, float]]] = {row: [] for row in models}
    for turn in range(rounds + 1):
        for photo in photos:
            for row, captioner in captioners.items():
                began = time.perf_counter(), time.process_time()
                captioner.caption(photo)
                if turn:  # the first round warms up
                    taken[row].append((time.perf_counter() - began[0], time.process_time() - began[1]))
    found = {}
    for row, times in taken.items():
        wall, processor = (round(1000 * statistics.median(values), 1) for values in zip(*times))
        size = sum(path.stat().st_size for path in folders[row].iterdir()) / 1e6
        found[row] = {
            "model": folders[row].name, "ms": wall, "processor ms": processor, "MB": round(size, 1),
            "runtime": captioners[row].runtimes[0],
        }  # fmt: skip
    return found


def draw(results: Path) -> Figure:
    """A panel for each dataset: CIDEr-D with its interval against milliseconds; the dots' areas are megabytes."""
    import matplotlib.pyplot as plt

    found = read_json(results / "trade_off.json")
    figure, panels = plt.subplots(1, len(DATASETS), figsize=(11, 4.6), layout="constrained")
    for axes, (dataset, folder) in zip(panels, DATASETS.items()):
        points = {}
        for name, numbers in found.items():
            row = read_row(results / folder / f"{name}.json")
            if not row.test:
                raise DataError(f"{name} has no test scores on {dataset}: add them with add_row.py")
            x, y = numbers["ms"], row.test["cider"]
            axes.plot([x, x], row.interval["cider"], color=colour(row), alpha=0.3, linewidth=2, solid_capstyle="butt")
            axes.scatter([x], [y], s=6 * numbers["MB"], color=colour(row), edgecolor="white", zorder=3)
            points[f"{numbers['model']}: {numbers['MB']:.0f} MB, {x:.0f} ms"] = (x, y, INK)
        axes.set_xlim(0, 1.25 * max(numbers["ms"] for numbers in found.values()))
        axes.margins(y=0.2)
        axes.set_xlabel("milliseconds for a photo, from file to caption")
        axes.set_ylabel(f"CIDEr-D on {dataset}'s test photos, 95 % interval")
        figure.draw_without_rendering()
        draw_labels(axes, points)
    panels[0].text(0, 1.02, "area of a dot: megabytes on disk", transform=panels[0].transAxes, color=SOFT, fontsize=9)
    return figure


def main(arguments: Sequence[str]) -> None:
    reader = parser(__doc__)
    reader.add_argument("models", nargs="*", metavar="ROW=MODEL", help="a row's name, and a model folder or name")
    reader.add_argument("--photos", help="a folder of photos to time; needed with models")
    reader.add_argument("--count", type=int, default=20, help="photos; 20 if not given")
    reader.add_argument("--rounds", type=int, default=5)
    reader.add_argument("--results", type=Path, default=RESULTS)
    reader.add_argument("--output", type=Path, default=ROOT / "docs" / "pictures" / "trade_off.png")
    given = reader.parse_args(arguments)
    try:
        import matplotlib as mpl
    except ImportError:
        raise ConfigError('plots need matplotlib: pip install "sightline-captions[results]"') from None
    if given.models:
        if not given.photos:
            raise ConfigError("give --photos, a folder of photos to time the models with")
        photos = [path for path in find_images([given.photos]) if not isinstance(path, Failure)][: given.count]
        if not photos:
            raise DataError(f"{given.photos} has no photos")
        found = measure(named(given.models), photos, given.rounds)
        write_json(given.results / "trade_off.json", found)
        for row, numbers in found.items():
            print(f"{row}: {numbers}")
    mpl.use("Agg")
    with mpl.rc_context(STYLE):
        save(draw(given.results), given.output)
    print(given.output)


if __name__ == "__main__":
    raise SystemExit(run(main))
