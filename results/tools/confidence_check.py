"""Measure and draw a model's confidence: reliability on val before and after, that of its captions on test, and which
share of out-of-distribution pictures it marks.

    sightline calibrate MODEL --data coco/ --data flickr8k/
    python results/tools/confidence_check.py MODEL --data coco/ --data flickr8k/

The first fits and checks on val photos; this draws what it found, captions the test photos, shows the model pictures
that are no photos and counts its "unsure". Then run table.py once, so that RESULTS.md shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foreign import KINDS, pictures
from plots import GRID, INK, SOFT, STYLE, save
from rows import write_json
from script import RESULTS, parser, run
from sightline.data import Dataset, load_datasets
from sightline.engine.captioner import Captioner, load
from sightline.errors import ConfigError, DataError
from sightline.evaluation import calibration
from sightline.io.progress import track
from sightline.nn.checkpoint import checkpoint_hash
from sightline.types import Caption

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = {"words": "words", "content_words": "content words", "captions": "captions"}
AFTER = "#0072b2"
BATCH = 16
SEED = 1  # with others of the same kinds (seed 0) it was chosen which directions of the feature space to use


def measure(captioner: Captioner, count: int) -> dict[str, Any]:
    """What the calibration's own check found, and the share of each out-of-distribution kind that is marked."""
    if captioner.confidence is None or captioner.folders[0] is None:
        raise DataError("this model is not calibrated: run `sightline calibrate MODEL --data flickr8k/` first")
    found: dict[str, list[tuple[bool, float]]] = {kind: [] for kind in KINDS}
    waiting: list[tuple[str, Any]] = []
    total = count * len(KINDS)
    for number, one in enumerate(track(pictures(count, SEED), "out-of-distribution pictures", total), 1):
        waiting.append(one)
        if len(waiting) == BATCH or number == total:
            for (kind, _), caption in zip(waiting, captioner.stream([picture for _, picture in waiting])):
                assert isinstance(caption, Caption)  # a drawing, not a file that could be damaged
                found[kind].append((caption.unsure, caption.confidence))
            waiting = []
    return {
        "checkpoint": checkpoint_hash(captioner.folders[0]),
        **captioner.confidence.record,
        "strange": {
            kind: {
                "pictures": len(own),
                "marked": round(sum(unsure for unsure, _ in own) / len(own), 4),
                "confidence": round(sum(confidence for _, confidence in own) / len(own), 4),
            }
            for kind, own in found.items()
        },
    }


def on_test(captioner: Captioner, dataset: Dataset) -> dict[str, Any]:
    """The captions' reliability before and after, and the share marked: of each source of a mixture, and of all."""
    observed = calibration.observe(captioner, dataset.examples("test"), BATCH)
    sources = sorted({one.source for one in observed})
    groups = {source: [one for one in observed if one.source == source] for source in sources} if sources[1:] else {}
    found = {}
    for name, group in {**groups, dataset.name: observed}.items():
        before, after = (
            calibration.reliability([(getattr(one.caption, number), one.right) for one in group])
            for number in ("likelihood", "confidence")
        )
        marked = sum(one.caption.unsure for one in group) / len(group)
        found[name] = {"before": before, "after": after, "marked": round(marked, 4)}
    return found


def reliability(check: dict[str, Any]) -> Figure:
    """What was promised against what held, before and after; a dot's area is the number of words or captions."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(PANELS), figsize=(11, 4.1), sharey=True, layout="constrained")
    for axes, (key, title) in zip(panels, PANELS.items()):
        axes.plot([0, 1], [0, 1], color=SOFT, linewidth=1, linestyle=(0, (4, 3)))
        for name, shade in (("before", SOFT), ("after", AFTER)):
            own = check[key][name]
            counts, means, held = zip(*own["bins"])
            axes.plot(means, held, color=shade, linewidth=1.5)
            sizes = [12 + 260 * number / own["count"] for number in counts]
            axes.scatter(means, held, s=sizes, color=shade, edgecolors="white", linewidths=0.8, zorder=3)
        ece = [f"{100 * check[key][name]['ece']:.1f}" for name in ("before", "after")]
        axes.set_title(f"{title}: ECE {ece[0]} → {ece[1]}", fontsize=10, color=INK, loc="left")
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="confidence")
        axes.grid(color=GRID)
    panels[0].set_ylabel("share that was right")
    for label, shade, height in (("probability", SOFT, 0.93), ("calibrated", AFTER, 0.86)):
        panels[0].text(0.04, height, label, color=shade, fontsize=10)
    return figure


def draw(values: dict[str, Any], path: Path) -> None:
    try:
        import matplotlib as mpl
    except ImportError:
        raise ConfigError('plots need matplotlib: pip install "sightline-captions[results]"') from None
    mpl.use("Agg")
    with mpl.rc_context(STYLE):
        save(reliability(values["check"]), path)


def main(arguments: Sequence[str]) -> None:
    reader = parser(__doc__)
    reader.add_argument("model", help="a calibrated model folder, or `default`")
    reader.add_argument("--data", action="append", required=True, help="a dataset; repeat it for each of a mixture")
    reader.add_argument("--pictures", type=int, default=50, help="out-of-distribution pictures of each kind")
    reader.add_argument("--results", type=Path, default=RESULTS, help="where confidence.json and plots/ are")
    given = reader.parse_args(arguments)
    captioner = load(given.model)
    values = measure(captioner, max(1, given.pictures))
    values["test"] = on_test(captioner, load_datasets(given.data))
    draw(values, given.results / "plots" / "reliability.png")
    write_json(given.results / "confidence.json", values)
    for kind, own in values["strange"].items():
        print(f"{kind}: {100 * own['marked']:.0f} % of {own['pictures']} marked unsure")


if __name__ == "__main__":
    raise SystemExit(run(main))
