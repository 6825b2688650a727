"""What a run leaves to look at: curves, captions with attention, words; and that a picture never ends a training."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from commands import ENVIRONMENT, Command, process, tiny_recipe
from PIL import Image

from sightline.data import load_dataset
from sightline.data.dataset import Example
from sightline.data.reading import read_results
from sightline.errors import SightlineError
from sightline.recipes.config import load_recipe
from sightline.training import report
from sightline.training.report import Chart, make_charts, ticks, word_confusions, word_shares
from sightline.training.state import gain
from sightline.training.trainer import Trainer, train


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
    with Image.open(run / "samples.png") as picture:
        assert picture.height > picture.width / 2, "both val photos, one below the other"
    assert len(read_results(run / "val_captions.json")) == 2


def test_a_page_shows_the_model_that_a_run_started_from(run: Path, tiny_flickr8k_kept: Path, tmp_path: Path) -> None:
    changes = [f"training.init={run}", "training.metric=bleu_1"]
    best = train(load_recipe(str(run.parent / "tiny.toml"), changes), tiny_flickr8k_kept, tmp_path / "next")
    start = json.loads((tmp_path / "next" / "metrics.json").read_text())["start"]
    page = (tmp_path / "next" / "report.html").read_text(encoding="utf-8")
    assert gain(start, best, "bleu_1") in page
    assert page.count('<circle cx="') == 2 * 1 + 4 * 2, "scores before the first epoch, too"


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


def test_confused_words_are_those_of_most_people_and_of_the_model_alone() -> None:
    references = ("a woman on a big horse", "the woman rides", "a girl on a horse")
    examples = [Example(Path(f"{n}.jpg"), references, str(n)) for n in range(3)]
    captions = {"0": "a man on a horse", "1": "a man on the girl", "2": "a woman rides a horse"}
    assert word_confusions(captions, examples) == [("woman", "man", 2)]
    page = report._confusions(captions, examples)
    assert "<td>woman</td><td>man</td><td>2</td>" in page
    assert report._confusions({**captions, "1": "a horse"}, examples) == "", "a pair of one photo is chance"


def test_confused_words_are_ranked_by_more_than_chance() -> None:
    """A shirt that the model sees everywhere comes after the ball that it calls a frisbee."""
    seen = [("a ball", "a frisbee shirt")] * 3 + [("a horse", "a cow shirt"), ("a child", "a shirt")] * 2
    examples = [Example(Path(f"{n}.jpg"), (text,), str(n)) for n, (text, _) in enumerate(seen)]
    found = word_confusions({str(n): text for n, (_, text) in enumerate(seen)}, examples)
    assert found[:2] == [("ball", "frisbee", 3), ("horse", "cow", 2)]
    assert {pair[:2] for pair in found[2:]} == {("ball", "shirt"), ("child", "shirt"), ("horse", "shirt")}


def test_charts_take_what_the_history_has() -> None:
    history = [{"epoch": 0, "train_nll": 3.0, "val_nll": float("nan"), "cider": 0.5}, {"epoch": 1, "train_nll": 2.0}]
    losses, scores, reward = make_charts(history)
    assert losses.curves == {"train": [(1, 3.0), (2, 2.0)]}
    assert scores.curves == {"CIDEr-D": [(1, 50.0)]}
    assert reward.curves == {}
    assert all(chart.title.isascii() for chart in (losses, scores, reward)), "Pillow's own type lacks other signs"
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
            x, y = chart.position(point)
            assert report.LEFT <= x <= report.WIDTH - report.RIGHT
            assert report.TOP <= y <= report.HEIGHT - report.BOTTOM


# -- trackers ---------------------------------------------------------------------------------------------------------

WANDB = """
import json, os
from types import SimpleNamespace

def write(**values):
    with open(os.environ["TRACKED"], "a") as file:
        file.write(json.dumps(values) + "\\n")

config = SimpleNamespace(update=lambda values, **_: write(config=values))

def init(project, **options):
    write(project=project, **options)
    return SimpleNamespace(log=lambda values, step, **_: write(step=step, values=values), finish=lambda: write(end=1))
"""


def test_wandb_gets_the_recipe_and_the_curves(tiny_flickr8k: Path, tmp_path: Path) -> None:
    """A stand-in for its library, which needs an account: whatever it is given is written to a file."""
    (tmp_path / "library" / "wandb-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "library" / "wandb-1.0.dist-info" / "METADATA").write_text("Name: wandb\nVersion: 1.0\n")
    (tmp_path / "library" / "wandb.py").write_text(WANDB)
    (tmp_path / "tiny.toml").write_text(tiny_recipe())
    tracked = tmp_path / "tracked.jsonl"
    paths = f"{ENVIRONMENT['PYTHONPATH']}{os.pathsep}{tmp_path / 'library'}"
    outcome = process(
        "train", tmp_path / "tiny.toml", "--data", tiny_flickr8k, "--output", tmp_path / "mine", "--tracker", "wandb",
        env={**ENVIRONMENT, "PYTHONPATH": paths, "TRACKED": str(tracked)},
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    start, config, *points, end = [json.loads(line) for line in tracked.read_text().splitlines()]
    assert start == {"project": "sightline", "name": "mine"} and end == {"end": 1}
    assert config["config"]["training.epochs"] == 1 and config["config"]["encoder.name"] == "patches"
    (history,) = [json.loads(line) for line in (tmp_path / "mine" / "history.jsonl").read_text().splitlines()]
    assert points[-1]["values"]["epoch/cider"] == history["cider"] and points[-1]["step"] == 2


def test_mlflow_gets_the_curves(tiny_flickr8k: Path, tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed: pip install mlflow-skinny")
    (tmp_path / "tiny.toml").write_text(tiny_recipe())
    store = {"MLFLOW_TRACKING_URI": (tmp_path / "kept").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}
    outcome = process(
        "train", tmp_path / "tiny.toml", "--data", tiny_flickr8k, "--output", tmp_path / "mine", "--tracker", "mlflow",
        env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path), **store},
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    (curve,) = (tmp_path / "kept").glob("*/*/metrics/epoch/cider")
    assert len(curve.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("tracker", "message"),
    [
        ("wandbb", "there is no tracker 'wandbb' (did you mean 'wandb'?): choose wandb or mlflow"),
        ("mlflow", "--tracker mlflow needs MLflow: pip install mlflow"),
    ],
)
def test_a_tracker_that_is_not_there_is_one_line(
    tracker: str, message: str, tiny_flickr8k: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sightline.training.state.find_spec", lambda name: None)
    run = tmp_path / "run"
    outcome = command("train", "nic-resnet50", "--data", tiny_flickr8k, "--output", run, "--tracker", tracker)
    assert (outcome.code, outcome.complaints) == (2, [f"error: {message}"])
    assert not run.exists()
