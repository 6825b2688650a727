"""A published row is made again by one command: every stage, then its scores beside the published ones."""

from __future__ import annotations

import hashlib
import json
import re
from importlib import import_module
from pathlib import Path

import pytest
from commands import Command, process, tiny_recipe

from sightline.cli.reproduce import _differences
from sightline.recipes.plans import PLANS, Paths, Plans, load_plans, load_scores, steps
from sightline.training.trainer import Trainer, train

ROOT = Path(__file__).parents[1]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A tiny row of two stages: cross-entropy, then self-critical training from it."""
    (tmp_path / "tiny.toml").write_text(tiny_recipe())
    recipe = json.dumps(str(tmp_path / "tiny.toml"))
    text = f"""
[stages.first]
recipe = {recipe}
data = ["flickr8k"]
set = {{ "training.seed" = 3 }}
[stages.second]
recipe = {recipe}
data = ["flickr8k"]
set = {{ "objective.name" = "self-critical", "training.init" = "first", "training.epochs" = 2 }}
[rows.tiny]
data = "flickr8k"
models = ["second"]
decoding = {{ beam = 2, length_penalty = 0.5 }}
"""
    path = tmp_path / "plans.toml"
    path.write_text(text)
    return path


def test_a_dry_run_says_what_to_give_for_its_placeholders(command: Command, tmp_path: Path) -> None:
    lines = command("reproduce", "dinov2-coco-scst", "--dry-run", "--runs", tmp_path).out.splitlines()
    assert lines[0].startswith("# coco/ and flickr8k/ below: the folders of these datasets on your machine; ")
    assert "give --data FOLDER --data FOLDER" in lines[0]
    assert lines[1].startswith("# dinov2_vits14.safetensors: give their folder, --files FOLDER")
    assert lines[2].startswith("sightline train dinov2-coco --data coco/ --data flickr8k/")
    (tmp_path / "dinov2_vits14.safetensors").touch()
    lines = command("reproduce", "dinov2-coco-scst", "--dry-run", "--runs", tmp_path, "--files", tmp_path).out
    assert lines.count("# ") == 1


def test_a_dry_run_needs_no_datasets(command: Command, tiny_flickr8k: Path, tmp_path: Path) -> None:
    """Folders that do not exist are taken for datasets by their names, then in order; other commands need them."""
    row, rest = "dinov2-coco-scst", ("--runs", tmp_path, "--files", tmp_path)
    (tmp_path / "dinov2_vits14.safetensors").touch()
    for given, used in {
        ("my-flickr8k", "photos"): ("photos", "my-flickr8k"),
        ("one", "two"): ("one", "two"),
        (str(tiny_flickr8k), "two"): ("two", str(tiny_flickr8k)),
    }.items():
        folders = [word for folder in given for word in ("--data", folder)]
        lines = command("reproduce", row, *folders, *rest, "--dry-run").out.splitlines()
        notes = [line for line in lines if line.startswith("# ")]
        absent = {used[0]: "coco", used[1]: "flickr8k"}
        absent.pop(str(tiny_flickr8k), None)
        assert sorted(notes) == sorted(
            f"# {folder} does not exist yet: taken for the dataset {name}" for folder, name in absent.items()
        )
        assert lines[len(notes)].startswith(f"sightline train dinov2-coco --data {used[0]} --data {used[1]} ")
    outcome = command("reproduce", row, "--data", "one", "--data", "two", *rest)
    assert outcome.code == 1 and outcome.complaints == ["error: one does not exist: check the path of the dataset"]


def test_a_row_is_made_again_stage_by_stage(
    plan: Path, tiny_flickr8k: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, plans = tmp_path / "runs", load_plans(plan)
    paths = Paths({"flickr8k": str(tiny_flickr8k)}, runs=runs)
    train(plans.stages["first"].resolved(paths), tiny_flickr8k, runs / "first")
    whole_epoch = Trainer._epoch

    def interrupted(trainer: Trainer) -> None:
        if trainer.progress["epoch"]:
            raise KeyboardInterrupt
        whole_epoch(trainer)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "_epoch", interrupted)
        train(plans.stages["second"].resolved(paths), tiny_flickr8k, runs / "second")
    before = (runs / "first" / "model.safetensors").stat().st_mtime_ns

    arguments = ("reproduce", "tiny", "--plans", plan, "--data", tiny_flickr8k, "--runs", runs)
    dry = process(*arguments, "--dry-run")
    assert dry.code == 0, dry.err
    first, second, scored = dry.out.splitlines()
    assert first == f"# done: {runs / 'first'}"
    assert second == next(step.command for step in steps(plans, "tiny", paths) if step.name == "second") + " --resume"
    assert scored.startswith(f"sightline evaluate {runs / 'second'} --data {tiny_flickr8k} --split test --set beam=2")

    made = process(*arguments)
    assert made.code == 0, made.err
    assert "resumed at epoch 2" in made.err
    assert (runs / "first" / "model.safetensors").stat().st_mtime_ns == before
    found = json.loads((runs / "tiny-scores" / "scores.json").read_text())
    assert "|beam:2|lp:0.5|" in found["signature"] and found["signature"] in made.out
    compared = made.out.rpartition("published")[2].splitlines()
    row = next(line for line in compared if "BLEU-1" in line)
    assert f"{100 * found['scores']['bleu_1']:.1f}" in row

    again = process(*arguments)
    assert again.code == 0 and again.err.count("is there already") == 3, again.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dinov2-scts"], "there is no row 'dinov2-scts' (did you mean 'dinov2-scst'?): `sightline reproduce` lists"),
        (["sat-soft-vgg19"], "--data is missing: sat-soft-vgg19 needs flickr8k"),
        (["coco/human", "--data", "DATA"], "coco/human needs the dataset coco (DATA is flickr8k): add --data"),
        (
            ["sat-soft-vgg19", "--data", "DATA"],
            "sat-soft-vgg19 needs vgg19.safetensors: put them into one folder and name it with --files, or --library",
        ),
        (["tiny", "--plans", "nowhere.toml"], "nowhere.toml cannot be read: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], message: str, tiny_flickr8k: Path, command: Command, tmp_path: Path
) -> None:
    given = [str(tiny_flickr8k) if word == "DATA" else word for word in arguments]
    outcome = command("reproduce", *given, "--runs", tmp_path / "runs")
    assert outcome.code == 2
    (line,) = outcome.complaints
    assert line.startswith("error: " + message.replace("DATA", str(tiny_flickr8k)))


def test_a_run_with_other_settings_is_not_taken_for_the_stage(
    plan: Path, tiny_flickr8k: Path, tmp_path: Path, command: Command
) -> None:
    paths = Paths({"flickr8k": str(tiny_flickr8k)}, runs=tmp_path / "runs")
    stage = load_plans(plan).stages["first"]
    other = stage.model_copy(update={"set": {"training.seed": 4}})
    train(other.resolved(paths), tiny_flickr8k, tmp_path / "runs" / "first")
    outcome = command("reproduce", "tiny", "--plans", plan, "--data", tiny_flickr8k, "--runs", tmp_path / "runs")
    assert outcome.code == 2
    assert "was trained with other settings (training.seed): choose another folder, --runs" in outcome.err


def test_a_file_that_was_moved_is_no_other_setting() -> None:
    before, moved, other = (
        {"encoder": {"weights": f"{folder}/vgg19.safetensors"}, "data": {"text": [f"{folder}/{text}.txt"]}}
        for folder, text in (("old", "a"), ("new", "a"), ("new", "b"))
    )
    assert _differences(before, moved) == []
    assert _differences(before, other) == _differences(before, {"encoder": moved["encoder"]}) == ["data.text"]


def test_a_file_of_joined_encoders_that_was_moved_is_no_other_setting() -> None:
    before, moved, other = (
        {"encoder": {"weights": f"{folder}/{first}.safetensors+{folder}/dinov2.safetensors"}}
        for folder, first in (("old", "clip"), ("new", "clip"), ("new", "vgg19"))
    )
    assert _differences(before, moved) == []
    assert _differences(before, other) == ["encoder.weights"]


JOINED = "clip_vit_b16.safetensors+dinov2_vits14.safetensors"


@pytest.fixture
def joined(tmp_path: Path) -> Path:
    """A row of one stage with two encoders, and the digests of their weights."""
    path = tmp_path / "joined.toml"
    path.write_text(f"""
[files]
"clip_vit_b16.safetensors" = "{hashlib.sha256(b"clip").hexdigest()[:12]}"
"dinov2_vits14.safetensors" = "{hashlib.sha256(b"dinov2").hexdigest()[:12]}"
[stages.both]
recipe = "clip-transformer"
data = ["flickr8k"]
set = {{ "encoder.name" = "clip-vit-b16+dinov2-vits14", "encoder.weights" = "{JOINED}", "encoder.grid" = 7 }}
[rows.both]
data = "flickr8k"
models = ["both"]
""")
    return path


def test_each_of_joined_weights_is_found_in_the_folder_of_files(joined: Path, tmp_path: Path, command: Command) -> None:
    """A missing one is named alone; it is what both a dry run and training ask for."""
    row, files = ("reproduce", "both", "--plans", joined, "--runs", tmp_path / "runs"), tmp_path / "weights"
    files.mkdir()
    clip, dinov2 = (files / name for name in JOINED.split("+"))
    clip.write_bytes(b"clip")
    lines = command(*row, "--files", files, "--dry-run").out.splitlines()
    assert "# dinov2_vits14.safetensors: give their folder, --files FOLDER (results/README.md says more)" in lines
    dinov2.write_bytes(b"dinov2")
    lines = command(*row, "--files", files, "--dry-run").out.splitlines()
    assert f"--set encoder.weights={clip}+{dinov2} " in lines[1]
    library = command(*row, "--library-weights", "--dry-run").out.splitlines()
    assert [line for line in library if "safetensors" in line or "encoder.weights" in line] == []
    assert "--set encoder.name=clip-vit-b16+dinov2-vits14 " in library[1]


def test_each_of_joined_weights_is_checked(
    joined: Path, tiny_flickr8k: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("sightline.cli.reproduce"), "_run", lambda _: 3)  # nothing is trained here
    row = ("reproduce", "both", "--plans", joined, "--data", tiny_flickr8k, "--runs", tmp_path / "runs")
    files = tmp_path / "weights"
    files.mkdir()
    clip, dinov2 = (files / name for name in JOINED.split("+"))
    clip.write_bytes(b"clip")
    lacking = command(*row, "--files", files)
    assert lacking.code == 2
    assert lacking.complaints[0].startswith("error: both needs dinov2_vits14.safetensors: put them into one folder")
    assert "--files, or --library-weights (" in lacking.complaints[0]
    dinov2.write_bytes(b"another")
    trained = command(*row, "--files", files)
    assert trained.code == 3
    changed = "dinov2_vits14.safetensors is not the file of the published row: the scores may differ"
    assert [line for line in trained.complaints if "published row" in line] == [changed]
    dinov2.write_bytes(b"dinov2")
    assert "published row" not in command(*row, "--files", files).err
    assert command(*row, "--library-weights").code == 3


def test_stages_that_wait_for_each_other_are_found() -> None:
    stage = {"recipe": "nic-resnet50", "data": ["flickr8k"]}
    stages = {"a": {**stage, "set": {"training.init": "b"}}, "b": {**stage, "set": {"training.init": "a"}}}
    plans = Plans.model_validate({"stages": stages, "rows": {"x": {"data": "flickr8k", "models": ["a"]}}})
    with pytest.raises(Exception, match="a → b → a wait for each other"):
        plans.stages_of(plans.rows["x"])


# The published rows


def test_every_published_row_has_a_plan() -> None:
    from table import all_rows

    rows, plans = all_rows(ROOT / "results"), load_plans()
    assert rows.keys() == plans.rows.keys()
    for name, row in rows.items():
        plan = plans.rows[name]
        assert row.signature.split("|")[1] == f"{plan.data}:test"
        assert bool(plan.models) == bool(row.parameters)
        if not plan.models:
            continue
        assert plan.decoding["beam"] == int(re.findall(r"\|beam:(\d+)", row.signature)[0])
        assert plan.decoding["length_penalty"] == float(re.findall(r"\|lp:([\d.]+)", row.signature)[0])
        assert plan.decoding["no_repeat_ngram"] == int((re.findall(r"\|no-repeat:(\d+)", row.signature) or [0])[0])
        assert bool(plan.export) == ("int8-arithmetic" in row.signature)
        assert plan.objects == ("chair" in row.signature)
        last = plans.stages[plan.models[0]]
        assert row.recipe == last.recipe or len(plan.models) > 1
        assert all(stage.resolved(Paths()).training.seed == row.seed for stage in plans.stages_of(plan).values())
        size = re.findall(r"vocabulary:(\w+)-(\d+)", row.signature)[0]
        assert last.resolved(Paths()).tokenizer.name == size[0]


def test_every_stage_is_needed_and_the_file_is_as_the_tool_writes_it() -> None:
    plans = load_plans()
    needed = {name for row in plans.rows.values() for name in plans.stages_of(row)}
    assert needed == plans.stages.keys()
    assert PLANS.read_text(encoding="utf-8") == plans.to_toml()


def test_a_changed_recipe_changes_no_published_stage() -> None:
    """Settings of every stage when its plan was checked against the recipe of the row's commit; new keys may come."""
    recorded = json.loads((ROOT / "tests" / "data" / "stage_settings.json").read_text(encoding="utf-8"))
    changed = []
    for name, settings in recorded.items():
        found = load_plans().stages[name].resolved(Paths()).to_dict()
        for key, value in settings.items():
            section, _, option = key.partition(".")
            if found[section].get(option) != value:
                changed.append(f"{name}: {key}")
    assert changed == [], "add these with their former values to the stages of plans.toml"


def test_the_files_digests_are_those_of_the_readme() -> None:
    text = " ".join((ROOT / "results" / "README.md").read_text(encoding="utf-8").split())
    for name, digest in load_plans().files.items():
        assert f"{name.partition('.')[0]} {digest}" in text


def test_the_list_shows_every_row_with_its_published_score(command: Command) -> None:
    outcome = command("reproduce")
    assert outcome.code == 0
    lines = {line.split()[0]: line for line in outcome.out.splitlines()[1:]}
    assert lines.keys() == load_plans().rows.keys()
    for name, facts in load_scores().items():
        assert f"{facts['test']['cider']:.1f}" in lines[name]
