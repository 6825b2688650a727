"""Plots: every system labelled, no label on another, small files."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from PIL import Image

import plots
from label_places import place_labels
from script import run
from sections import PLOTS

pytest.importorskip("matplotlib").use("Agg")


def crowded(count: int) -> dict[str, tuple[float, float, str]]:
    """Points so near each other that labels at their right would cover one another."""
    return {f"system-number-{n}": (10 + 0.2 * (n % 4), 50 + 0.4 * n, "black") for n in range(count)}


def test_no_label_covers_another_or_a_point() -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 5))
    points = crowded(14)
    axes.plot([x for x, _, _ in points.values()], [y for _, y, _ in points.values()], "o")
    axes.set_xlim(5, 20)
    axes.set_ylim(40, 70)
    figure.canvas.draw()
    place_labels(axes, points)
    boxes = {text.get_text(): text.get_window_extent() for text in axes.texts}
    assert set(boxes) == set(points)
    assert not [pair for pair in itertools.combinations(boxes, 2) if boxes[pair[0]].overlaps(boxes[pair[1]])]
    spots = axes.transData.transform([(x, y) for x, y, _ in points.values()])
    assert not any(box.contains(*spot) for box in boxes.values() for spot in spots)
    frame = axes.get_window_extent()
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in boxes.values())
    plt.close(figure)


def test_all_plots_are_drawn_and_small(made_results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row, curve = (json.loads((made_results / f"sat-soft-vgg19{end}.json").read_text()) for end in ("", ".curve"))
    for number, recipe in enumerate(("nic-resnet50", "sat-hard-vgg19", "tinyvit-finetune", "dinov2-scst")):
        scores = {key: value + number for key, value in row["test"].items()}
        changed = row | {"recipe": recipe, "test": scores, "parameters": 10**7 * (number + 1)}
        (made_results / f"{recipe}.json").write_text(json.dumps(changed))
        curve["minutes_before"] = None if number else 30.0
        curve["epochs"] = curve["epochs"][: 1 + number]
        (made_results / f"{recipe}.curve.json").write_text(json.dumps(curve))
    assert run(plots.main, ["--results", str(made_results)]) == 0
    files = capsys.readouterr().out.split()
    assert [Path(file).name for file in files] == list(PLOTS)
    for file in files:
        with Image.open(file) as picture:
            assert picture.width > 1200 and picture.getpixel((0, 0)) == picture.getpixel((picture.width - 1, 0))
        assert Path(file).stat().st_size < 150_000


def test_without_a_row_there_is_nothing_to_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(plots.main, ["--results", str(tmp_path)]) == 1
    assert "no row with test scores" in capsys.readouterr().err
