"""A finished run becomes a row by one command: the captioner's own captions, and where it comes from."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import add_row
from rows import (
    SCORES,
    curve_of,
    header,
    minutes_of,
    public,
    read_row,
    recipe_of,
    stage_of,
    stages_of,
    title,
    write_json,
)
from script import run
from sightline.data import read_results
from sightline.engine.captioner import load
from sightline.errors import DataError
from sightline.evaluation.metrics import build
from sightline.evaluation.scoring import evaluate
from sightline.nn.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sightline.recipes.config import RECIPES, load_recipe, recipe_names
from sightline.recipes.plans import Paths, load_plans, steps

needs_meteor = pytest.mark.skipif(
    "meteor" not in build(), reason="a row needs METEOR: pip install 'sightline-captions[metrics]'"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sightline.training.feature_cache.cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@needs_meteor
def test_one_command_makes_a_row_equal_to_an_evaluation(
    finished_run: Path, tiny_flickr8k_kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    arguments = [str(finished_run), "--data", str(tiny_flickr8k_kept), "--commit", "1a2b3c4", "--results", str(results)]
    arguments += ["--note", f"Made from {finished_run}.", "--length-penalty", "1.0", "--change", "tiny"]
    assert run(add_row.main, arguments) == 0
    assert "tiny-words: test BLEU-4" in capsys.readouterr().out
    row, plain = read_row(results / "tiny-words.json"), json.loads((results / "tiny-words.json").read_text())
    assert list(plain) == [
        "recipe", "val", "test", "interval", "parameters", "trainable", "train_minutes", "train_photos",
        "change", "note", "commit", "seed", "signature",
    ]  # fmt: skip
    for split in ("val", "test"):
        expected = evaluate(finished_run, tiny_flickr8k_kept, split, length_penalty=1.0)
        assert plain[split] == {key: pytest.approx(100 * expected.scores[key], abs=0.0051) for key in SCORES}
    assert row.signature == expected.signature
    assert row.train_photos == 8
    assert row.interval["cider"] == pytest.approx([100 * bound for bound in expected.intervals["cider"]], abs=0.0051)
    assert read_results(results / "tiny-words.captions.json") == expected.captions
    assert row.recipe == "patch-transformer-word"
    assert title(row) == "Patch transformer from scratch, words: tiny"
    assert row.parameters == row.trainable == load(finished_run).backends[0].parameters
    made = [step.command for step in steps(load_plans(results / "plans.toml"), "tiny-words", Paths())]
    assert made[0].startswith("sightline train patch-transformer-word --data flickr8k/ --output runs/tiny-words --set")
    assert made[1].startswith("sightline evaluate runs/tiny-words --data flickr8k/ --split test --set beam=2 --set len")
    for path in results.iterdir():
        assert str(tmp_path) not in path.read_text() and "/tmp" not in path.read_text()


@needs_meteor
def test_test_is_scored_once_and_val_as_often_as_one_likes(
    finished_run: Path, tiny_flickr8k_kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    arguments = [str(finished_run), "--data", str(tiny_flickr8k_kept), "--commit", "1a2b3c4", "--results", str(results)]
    for beam in ("1", "2"):
        assert run(add_row.main, [*arguments, "--val-only", "--beam", beam]) == 0
        row = read_row(results / "tiny-words.json")
        assert (row.test, row.interval) == ({}, {}) and set(row.val) == set(SCORES)
        assert f"|beam:{beam}|" in row.signature
    assert not (results / "tiny-words.captions.json").exists()
    assert run(add_row.main, arguments) == 0
    before = (results / "tiny-words.json").read_text()
    for more in ([], ["--val-only"]):
        assert run(add_row.main, [*arguments, *more]) == 2
    assert "test is scored once" in capsys.readouterr().err
    assert (results / "tiny-words.json").read_text() == before
    assert run(add_row.main, [*arguments, "--again"]) == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--name", "Two Words"], "cannot be called"),
        ([], "--commit"),
        (["--commit", "1a2b3c4", "--beam", "0"], "beam is 0"),
        (["--commit", "1a2b3c4", "--recipe", "nic-resnet50"], "give --stage"),
        (["--commit", "1a2b3c4", "--limit", "1", "--results", str(add_row.RESULTS)], "--limit is for trying"),
    ],
)
def test_a_mistake_is_one_line(
    wrong: list[str],
    message: str,
    finished_run: Path,
    tiny_flickr8k_kept: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [str(finished_run), "--data", str(tiny_flickr8k_kept), "--results", str(tmp_path), *wrong]
    assert run(add_row.main, arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line


# Where a row comes from


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipes_own_command_is_found_again(name: str) -> None:
    recipe = load_recipe(name, header(name, "--set"))
    words = shlex.split((RECIPES / f"{name}.toml").read_text(encoding="utf-8").splitlines()[0])
    stage = stage_of(recipe, name)
    paths = Paths(runs=Path("runs"))
    data = [word for own in stage.data for word in ("--data", own)]
    sets = [word for override in stage.overrides(paths) for word in ("--set", override)]
    assert ["#", "sightline", "train", name, *data, *sets] == [word.rstrip("/") for word in words]


def test_a_stage_has_every_override_and_no_folder_of_this_machine() -> None:
    changes = [
        "encoder.weights=/somewhere/else/vgg16.safetensors", "encoder.name=vgg16", "decoder.gate=false",
        "training.init=/somewhere/runs/first", "training.learning_rate=1e-3", "encoder.image_size=448",
    ]  # fmt: skip
    stage = stage_of(load_recipe("sat-soft-vgg19", changes), "sat-soft-vgg19")
    assert stage.set | {
        "encoder.weights": "vgg16.safetensors", "encoder.name": "vgg16", "decoder.gate": False,
        "training.init": "first", "training.learning_rate": 0.001, "encoder.image_size": 448,
    } == stage.set  # fmt: skip


def test_a_stage_of_joined_encoders_has_each_of_their_files_without_its_folder() -> None:
    changes = ["encoder.name=vgg16+vgg19", "encoder.weights=/some/where/vgg16.safetensors+/else/vgg19.safetensors"]
    stage = stage_of(load_recipe("sat-soft-vgg19", changes), "sat-soft-vgg19")
    assert stage.set["encoder.weights"] == "vgg16.safetensors+vgg19.safetensors"
    assert stage.files() == ["vgg16.safetensors", "vgg19.safetensors"]


def continued(finished_run: Path, folder: Path) -> Path:
    """A second stage that started from the finished run."""
    again = load_checkpoint(finished_run)
    recipe = again.recipe.replace("[training]", f'[training]\ninit = "{finished_run}"')
    save_checkpoint(folder, Checkpoint(again.model, again.tokenizer, again.decoding, {}, recipe))
    (folder / "history.jsonl").write_text('{"epoch": 0, "minutes": 7.5, "train_loss": 2.0, "cider": 0.5}\n')
    return folder


def test_a_second_stage_counts_and_names_the_first(finished_run: Path, tmp_path: Path) -> None:
    folder = continued(finished_run, tmp_path / "runs" / "second")
    first = json.loads((finished_run / "history.jsonl").read_text().splitlines()[-1])["minutes"]
    assert minutes_of(folder) == pytest.approx(first + 7.5)
    assert curve_of(folder)["minutes_before"] == pytest.approx(first)
    stages = stages_of(folder)
    assert list(stages) == ["tiny-words", "second"]
    assert stages["second"].before() == ["tiny-words"]


def test_a_stage_names_the_data_that_its_run_was_trained_on(finished_run: Path, tmp_path: Path) -> None:
    folder = continued(finished_run, tmp_path / "runs" / "second")
    assert "data" in json.loads((finished_run / "run.json").read_text())
    (folder / "run.json").write_text('{"data": ["coco", "flickr8k"]}')
    assert stages_of(folder)["second"].data == ("coco", "flickr8k")


def test_a_curve_holds_every_epoch(finished_run: Path) -> None:
    curve = curve_of(finished_run)
    assert [epoch["epoch"] for epoch in curve["epochs"]] == [1, 2]
    history = [json.loads(line) for line in (finished_run / "history.jsonl").read_text().splitlines()]
    for epoch, record in zip(curve["epochs"], history):
        assert epoch["train_loss"] == pytest.approx(record["train_loss"], abs=1e-4)
        assert bool(epoch["val"]) == ("cider" in record), "the recipe scores val only now and then"
    assert curve["epochs"][1]["val_nll"] == pytest.approx(history[1]["val_nll"], abs=1e-4)
    assert curve["epochs"][1]["val"]["cider"] == pytest.approx(100 * history[1]["cider"], abs=0.01)
    assert recipe_of(finished_run).training.epochs == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--data /srv/sets/flickr8k/ --set a=1", "--data flickr8k/ --set a=1"),
        ("--set encoder.weights=/home/me/w/vgg19.safetensors", "--set encoder.weights=vgg19.safetensors"),
        ("--set training.init=~/x/runs/one", "--set training.init=runs/one"),
        ('--set data.text=["/a/b/c.txt.gz"]', '--set data.text=["c.txt.gz"]'),
        ("and/or 3/4 of https://a.org/b/c runs/x /", "and/or 3/4 of https://a.org/b/c runs/x /"),
    ],
)
def test_paths_of_this_machine_are_taken_out(text: str, expected: str) -> None:
    assert public(text) == expected


def test_what_still_holds_a_path_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a path of this machine"):
        write_json(tmp_path / "x.json", {"note": "from /home/me/runs"})
    assert not (tmp_path / "x.json").exists()
