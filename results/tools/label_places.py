"""Names beside the points of a plot, none on top of another: each takes the nearest free place around its point."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

SIZE = 8.5  # points of type
CLEAR = 7  # pixels around a point that no label may touch
REACH = 8  # rings of places that are tried


def place_labels(
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
    """The nearest place for a label; where every one is taken, the one that covers least."""
    boxes = list(_places(x, y, width, height, scale))
    inside = [box for box in boxes if _within(box, frame)] or boxes
    return next(
        (box for box in inside if not any(box.overlaps(other) for other in taken)),
        min(inside, key=lambda box: sum(_covered(box, other) for other in taken)),
    )


def _places(x: float, y: float, width: float, height: float, scale: float) -> Iterator[Bbox]:
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
