"""Draw results/plots/: quality against parameters and training minutes, and every system's learning curves.

    python results/tools/plots.py

Reads the rows and curves in results/; needs matplotlib (pip install "sightline-captions[results]"). Then run table.py
once, so that RESULTS.md shows them.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from rows import Row, read_json, read_rows
from script import RESULTS, parser, run
from sightline.errors import ConfigError, DataError
from sightline.io.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox


SIZE = 8.5  # points of type
CLEAR = 7  # pixels around a point that no label may touch
REACH = 8  # rings of positions that are tried


def draw_labels(
    axes: Axes, points: Mapping[str, tuple[float, float, str]], bars: Sequence[tuple[float, float, float]] = ()
) -> None:
    """``points``: x, y and colour by name; ``bars``: x, low and high of upright lines to keep off.

    The figure must have been drawn once, so that pixels are known.
    """
    from matplotlib.transforms import Bbox

    spots = {name: axes.transData.transform((x, y)) for name, (x, y, _) in points.items()}
    taken = [Bbox.from_bounds(x - CLEAR, y - CLEAR, 2 * CLEAR, 2 * CLEAR) for x, y in spots.values()]
    for x, low, high in bars:
        (left, bottom), (_, top) = axes.transData.transform([(x, low), (x, high)])
        taken.append(Bbox.from_bounds(left - 2, bottom, 4, top - bottom))
    frame = axes.get_window_extent()
    scale = axes.figure.dpi / 72
    for name in sorted(spots, key=lambda name: -spots[name][1]):
        x, y = spots[name]
        text = axes.text(0, 0, name, fontsize=SIZE, color=points[name][2], va="bottom")
        extent = text.get_window_extent()
        box = _free(x, y, extent.width, extent.height, taken, frame, scale)
        taken.append(box)
        left, low = axes.transData.inverted().transform((box.x0, box.y0))
        text.set_position((float(left), float(low)))
        if _distance(x, y, box) > 14 * scale:
            nearest = (min(max(x, box.x0), box.x1), min(max(y, box.y0), box.y1))
            to = axes.transData.inverted().transform(nearest)
            axes.plot(
                [points[name][0], to[0]], [points[name][1], to[1]], color=points[name][2], linewidth=0.7, alpha=0.6
            )


def _free(x: float, y: float, width: float, height: float, taken: list[Bbox], frame: Bbox, scale: float) -> Bbox:
    """The nearest free box for a label; where every one is taken, the one that covers least."""
    boxes = list(_candidates(x, y, width, height, scale))
    inside = [box for box in boxes if _within(box, frame)] or boxes
    return next(
        (box for box in inside if not any(box.overlaps(other) for other in taken)),
        min(inside, key=lambda box: sum(_covered(box, other) for other in taken)),
    )


def _candidates(x: float, y: float, width: float, height: float, scale: float) -> Iterator[Bbox]:
    """Right, left, above and below first, then around in growing rings."""
    from matplotlib.transforms import Bbox

    for ring in range(1, REACH + 1):
        away = (4 + 5 * ring) * scale
        for turn in (0, 180, 90, 270, 30, 150, 330, 210, 60, 120, 300, 240):
            across, up = math.cos(math.radians(turn)), math.sin(math.radians(turn))
            left = x + away * across + (0 if across > 0.1 else -width if across < -0.1 else -width / 2)
            low = y + away * up + (0 if up > 0.6 else -height if up < -0.6 else -height / 2)
            yield Bbox.from_bounds(left, low, width, height)


def _within(box: Bbox, frame: Bbox) -> bool:
    return box.x0 >= frame.x0 and box.x1 <= frame.x1 and box.y0 >= frame.y0 and box.y1 <= frame.y1


def _covered(box: Bbox, other: Bbox) -> float:
    across = min(box.x1, other.x1) - max(box.x0, other.x0)
    up = min(box.y1, other.y1) - max(box.y0, other.y0)
    return max(0.0, across) * max(0.0, up)


def _distance(x: float, y: float, box: Bbox) -> float:
    return math.hypot(max(box.x0 - x, 0, x - box.x1), max(box.y0 - y, 0, y - box.y1))


COLUMNS = 4  # panels in a row
INK, SOFT, PALE, GRID = "#22242a", "#8a8d96", "#d3d5da", "#ecedf0"
# Okabe and Ito's colours, which the colour-blind can tell apart; one for each family of systems.
FAMILIES = {
    "nic": "#0072b2", "sat-soft": "#009e73", "sat-hard": "#d55e00", "patch": "#cc79a7", "clip": "#56b4e9",
    "dinov2": "#e69f00", "tinyvit": "#7a5cc0", "distilled": "#8c6d31",
}  # fmt: skip
STYLE: Any = {
    "font.size": 10,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
}


def colour(row: Row) -> str:
    return next((shade for family, shade in FAMILIES.items() if row.recipe.startswith(family)), INK)


def quality(rows: dict[str, Row]) -> Figure:
    """CIDEr-D with its interval against what a system costs to keep and to make."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(12, 5.2), sharey=True, layout="constrained")
    costs: list[tuple[str, Callable[[Row], float]]] = [
        ("parameters, millions", lambda row: row.parameters / 1e6),
        ("minutes of training, one or two CPU cores", lambda row: max(row.train_minutes, 0.1)),
    ]
    for axes, (label, cost) in zip(panels, costs):
        points_drawn = [(cost(row), row.test["cider"]) for row in rows.values()]
        for (x, y), row in zip(points_drawn, rows.values()):
            axes.plot([x, x], row.interval["cider"], color=colour(row), alpha=0.3, linewidth=2, solid_capstyle="butt")
            axes.plot(x, y, "o", color=colour(row), markersize=7, markeredgecolor="white")
        _log_axis(axes, [x for x, _ in points_drawn], spread=2.2)
        axes.set_xlabel(label)
        axes.margins(y=0.12)
    panels[0].set_ylabel("CIDEr-D on test, 95 % interval")
    figure.canvas.draw()  # labels are placed in pixels, which are known only now
    for axes, (_, cost) in zip(panels, costs):
        points = {name: (cost(row), row.test["cider"], colour(row)) for name, row in rows.items()}
        draw_labels(axes, points, [(cost(row), *row.interval["cider"]) for row in rows.values()])
    return figure


def curves(rows: dict[str, Row], found: dict[str, list[dict[str, Any]]], before: dict[str, float]) -> Figure:
    """Dev CIDEr-D over training time: each system in its own panel, the others pale behind it."""
    figure, panels = _panels(len(found))
    lines = {
        name: [(before[name] + epoch["minutes"], epoch["val"]["cider"]) for epoch in epochs if "cider" in epoch["val"]]
        for name, epochs in found.items()
    }
    times = [max(minutes, 0.1) for line in lines.values() for minutes, _ in line]
    for axes, (name, own) in zip(panels, lines.items()):
        for other in lines.values():
            axes.plot(*zip(*other), color=PALE if len(other) > 1 else "none", linewidth=1.2)
        _curve(axes, own, colour(rows[name]), kept=_kept(found[name], before[name]))
        axes.set_title(name, fontsize=10, color=colour(rows[name]), loc="left")
        _log_axis(axes, times, spread=1.4)
        axes.set_ylim(0, 1.15 * max(score for line in lines.values() for _, score in line))
    _outer_labels(panels, "minutes of training", "val CIDEr-D")
    return figure


def losses(rows: dict[str, Row], found: dict[str, list[dict[str, Any]]]) -> Figure:
    """Loss per token on train and val after each epoch; scales differ, as vocabularies do."""
    from matplotlib.ticker import MaxNLocator

    figure, panels = _panels(len(found), sharey=False)
    for axes, (name, epochs) in zip(panels, found.items()):
        shade = colour(rows[name])
        key = "train_nll" if "train_nll" in epochs[0] else "train_loss"
        train = [(epoch["epoch"], epoch[key]) for epoch in epochs if key in epoch]
        val = [(epoch["epoch"], epoch["val_nll"]) for epoch in epochs if "val_nll" in epoch]
        _curve(axes, train, SOFT)
        _curve(axes, val, shade)
        for line, label, tint in ((train, "train", SOFT), (val, "val", shade)):
            if line:
                axes.annotate(label, line[-1], (5, 0), textcoords="offset points", color=tint, va="center", fontsize=9)
        axes.set_title(name, fontsize=10, color=shade, loc="left")
        axes.margins(y=0.15)
        room = max(0.5, 0.16 * len(epochs))  # for the words
        axes.set_xlim(epochs[0]["epoch"] - room / 2, epochs[-1]["epoch"] + room)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    _outer_labels(panels, "epoch", "loss per token")
    return figure


def _kept(epochs: list[dict[str, Any]], before: float) -> tuple[float, float] | None:
    kept = [epoch for epoch in epochs if epoch["best"] and "cider" in epoch["val"]]
    return (before + kept[-1]["minutes"], kept[-1]["val"]["cider"]) if kept else None


def _curve(
    axes: Axes, line: Sequence[tuple[float, float]], shade: str, kept: tuple[float, float] | None = None
) -> None:
    if line:
        axes.plot(*zip(*line), color=shade, linewidth=2, marker="o" if len(line) < 3 else "", markersize=4)
    if kept:
        axes.plot(*kept, "o", color=shade, markersize=6, markeredgecolor="white")
        axes.annotate(f"{kept[1]:.1f}", kept, (0, 7), textcoords="offset points", color=shade, ha="center", fontsize=9)


def _panels(count: int, sharey: bool = True) -> tuple[Figure, list[Axes]]:
    import matplotlib.pyplot as plt

    lines = -(-count // COLUMNS)
    wide = min(count, COLUMNS)
    figure, grid = plt.subplots(
        lines, wide, figsize=(3 * wide, 2.3 * lines + 0.3), sharey=sharey, squeeze=False, layout="constrained"
    )
    panels = list(grid.flat)
    for unused in panels[count:]:
        unused.set_visible(False)
    return figure, panels[:count]


def _outer_labels(panels: Sequence[Axes], below: str, left: str) -> None:
    """Words only at the left and at each column's last panel."""
    for number, axes in enumerate(panels):
        if number % COLUMNS == 0:
            axes.set_ylabel(left)
        if number + COLUMNS >= len(panels):
            axes.set_xlabel(below)


def _log_axis(axes: Axes, values: Sequence[float], spread: float) -> None:
    """A logarithmic axis with plain numbers, ``spread`` times wider than its values on both sides."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.set_xlim(min(values) / spread, max(values) * spread)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def save(figure: Figure, path: Path) -> None:
    """A PNG of 256 colours: as crisp, a third of the size."""
    import matplotlib.pyplot as plt

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=160, facecolor="white")
    plt.close(figure)
    picture = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    with atomic_path(path) as temporary:
        picture.save(temporary, "PNG", optimize=True)


def draw(results: Path, output: Path) -> list[Path]:
    """All plots there is data for; returns their files."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise ConfigError('plots need matplotlib: pip install "sightline-captions[results]"') from None
    mpl.use("Agg")
    rows = {name: row for name, row in read_rows(results).items() if row.test and row.parameters}
    if not rows:
        raise DataError(f"{results} has no row with test scores yet: add one with add_row.py")
    files = {name: results / f"{name}.curve.json" for name in rows}
    read = {name: read_json(path) for name, path in files.items() if path.is_file()}
    found = {name: curve["epochs"] for name, curve in read.items() if any(own["val"] for own in curve["epochs"])}
    before = {name: read[name]["minutes_before"] or 0.0 for name in found}
    with mpl.rc_context(STYLE):
        figures = {"quality": quality(rows)}
        if found:
            figures |= {"curves": curves(rows, found, before), "losses": losses(rows, found)}
        for name, figure in figures.items():
            save(figure, output / f"{name}.png")
    return [output / f"{name}.png" for name in figures]


def main(arguments: Sequence[str]) -> None:
    reader = parser(__doc__)
    reader.add_argument("--results", type=Path, default=RESULTS, help="where the rows are")
    reader.add_argument("--output", type=Path, help="where the pictures go: plots/ in the rows' folder if not given")
    given = reader.parse_args(arguments)
    for path in draw(given.results, given.output or given.results / "plots"):
        print(path)


if __name__ == "__main__":
    raise SystemExit(run(main))
