"""What a run leaves to look at: curves, captions with attention, words; and that a picture never ends a training."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import tiny_recipe
from PIL import Image

from sightline.data import load_dataset
from sightline.data.dataset import Example
from sightline.data.reading import read_results
from sightline.errors import SightlineError
from sightline.recipes.config import load_recipe
from sightline.training import report
from sightline.training.report import Chart, make_charts, ticks, word_shares
from sightline.training.trainer import Trainer


@pytest.fixture(scope="module")
def run(tiny_flickr8k_kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that fails in its third epoch."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "tiny.toml").write_text(tiny_recipe())
    recipe = load_recipe(str(folder / "tiny.toml"), ["training.epochs=3"])
    trainer = Trainer(recipe, load_dataset(tiny_flickr8k_kept), folder / "tiny")
    evaluate = trainer._evaluate

    def fail_at_last() -> dict:
        if trainer.progress["epoch"] == 2:
            raise SightlineError("the loss is nan")
        return evaluate()

    trainer._evaluate = fail_at_last  # type: ignore[method-assign]
    with pytest.raises(SightlineError, match="the loss is nan"):
        trainer.run()
    return folder / "tiny"


def test_a_run_leaves_a_page_even_if_it_fails(run: Path) -> None:
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "<h1>tiny</h1>" in page and "2 epochs ·" in page
    assert page.count("<svg viewBox") == 3, "the mark and two charts"
    assert page.count('<circle cx="') == 2 * (2 + 4), "two losses and four scores of two epochs"
    assert page.count('src="data:image/jpeg') == 2, "both val photos"
    assert "more often than people" in page and "less often than people" in page
    assert "--background" in page, "the stylesheet of all pages"
    with Image.open(run / "curves.png") as picture:
        assert picture.size == (1040, 1200)
        assert len(picture.convert("RGB").getcolors(1 << 20) or ()) > 50
    assert len(read_results(run / "val_captions.json")) == 2


def test_a_report_that_fails_is_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no font")

    monkeypatch.setattr(report, "draw_charts", fail)
    report.try_report(run, [])
    assert caplog.messages == ["no report of this run: RuntimeError: no font"]


def test_word_shares_count_captions_and_leave_rare_words_out() -> None:
    examples = [Example(Path(f"{n}.jpg"), ("a dog runs", "the dog"), str(n)) for n in range(100)]
    examples[0] = Example(Path("0.jpg"), ("a dog runs", "the giraffe"), "0")
    shares = word_shares({str(n): "a a dog" for n in range(100)}, examples)
    assert shares == {"a": (1, 0.5), "dog": (1, 0.995), "runs": (0, 0.5), "the": (0, 0.5)}


def test_charts_take_what_the_history_has() -> None:
    history = [{"epoch": 0, "train_nll": 3.0, "val_nll": float("nan"), "cider": 0.5}, {"epoch": 1, "train_nll": 2.0}]
    losses, scores, reward = make_charts(history)
    assert losses.curves == {"train": [(1, 3.0), (2, 2.0)]}
    assert scores.curves == {"CIDEr-D": [(1, 50.0)]}
    assert reward.curves == {}
    assert report.chart_svg(scores).count("<circle") == 1, "one epoch makes a chart, too"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (1.2, 3.1, [1, 1.5, 2, 2.5, 3, 3.5]), (5, 5, [4, 4.5, 5, 5.5, 6])],
)
def test_ticks_are_round_and_enclose(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_points_lie_inside_the_picture() -> None:
    chart = Chart("x", {"a": [(1, -3.0), (40, 1e-9)], "b": [(7, 2.5)]})
    for points in chart.curves.values():
        for point in points:
            x, y = chart.place(point)
            assert report.LEFT <= x <= report.WIDTH - report.RIGHT
            assert report.TOP <= y <= report.HEIGHT - report.BOTTOM
