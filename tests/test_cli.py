"""The command line as a user meets it: what is printed where, the exit code, and one clear line for every mistake."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import ENVIRONMENT, MAIN, MINDS_INTERRUPTS, Command, process, tiny_recipe
from rich.console import Console
from safetensors.torch import load_file, save_file

import sightline


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(tiny_recipe())
    return path


# -- the program ------------------------------------------------------------------------------------------------------


def test_help_names_every_verb_and_imports_nothing_heavy():
    code = (
        "import sys\nfrom sightline.cli import run\nassert run(['--help']) == 0\n"
        "heavy = {'torch', 'numpy', 'PIL', 'pydantic', 'timm', 'rich'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    for verb in ("caption", "bulk", "train", "evaluate", "score", "recipes", "models", "doctor"):
        assert f"  {verb} " in done.stdout


@pytest.mark.parametrize("verb", [[], ["recipes"]], ids=["sightline", "recipes"])
def test_every_summary_fits_a_terminal_of_80_columns(
    command: Command, monkeypatch: pytest.MonkeyPatch, verb: list[str]
):
    monkeypatch.setenv("COLUMNS", "80")
    _, _, summaries = command(*verb, "--help").out.partition("Commands:\n")
    assert summaries
    assert [line for line in summaries.splitlines() if not line.endswith((".", "/"))] == []
    assert "..." not in summaries


def test_version(command: Command):
    assert command("--version") == (0, f"sightline {sightline.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["captoin", "x.jpg"], "captoin"),
        (["caption"], "(see `sightline caption --help`)"),
        (["evaluate", "--page"], "(see `sightline evaluate --help`)"),
        (["retrieval", "build", "-o"], "(see `sightline retrieval build --help`)"),
        (["retrieval", "biuld"], "(see `sightline retrieval --help`)"),
        (["--no-such-option", "caption"], "(see `sightline --help`)"),
        (["caption", "x.jpg", "--bem", "3"], "--beam"),
        (["caption", "x.jpg", "--beam", "three"], "'--beam'"),
        (["caption", "x.jpg", "--json", "--csv"], "exclude each other"),
        (["caption", "x.jpg", "-o", "captions.xml"], "captions.xml: .xml is not written; choose .txt, .csv"),
        (["bulk", "photos/"], "--output"),
        (["bulk", "photos/", "-o", "captions.txt"], "name a .parquet, .jsonl or .csv file"),
        (["bulk", "photos/", "-o", "captions.csv", "--output-format", "tar"], "cannot write 'captions.csv' as tar"),
        (["bulk", "photos/", "-o", "out/", "--output-format", "xml"], "parquet, jsonl, csv or tar"),
        (["evaluate", "runs/x"], "--data"),
        (["evaluate", "--compare", "one.json"], "at least two"),
        (["explain", "a.jpg", "b.jpg"], "explain takes one photo at a time, and 2 are given: run it for each"),
        (["explain", "a.jpg", "--beam", "2", "b.jpg", "c.jpg", "-o", "x.png"], "and 3 are given"),
        (["explain", "a.jpg", "--bem", "2"], "--beam"),
        (["watch", "photos/", "more/", "-o", "x.csv"], "extra argument"),
        (["train", "nic-resnet5", "--data", "x"], "nic-resnet50"),
        (["caption", "--csv", ""], "the argument after `sightline caption --csv` is empty"),
        (
            ["explain", "a.jpg", "-o", "a.png", "--candidates", "3"],
            "a.png shows one caption: --candidates is for",
        ),
        (["bulk", "photos/", "-o", ""], "the argument after `sightline bulk photos/ -o` is empty"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(command: Command, arguments: list[str], words: str):
    outcome = command(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert len(outcome.complaints) == 1
    assert outcome.err.startswith("error: ")
    assert words in outcome.err


def test_no_verb_shows_the_help_and_is_wrong_usage(command: Command):
    outcome = command()
    assert outcome.code == 2
    assert "caption" in outcome.out


def test_debug_shows_the_traceback_and_keeps_the_exit_code(tmp_path: Path):
    outcome = process("caption", __file__, "--model", tmp_path / "none", "--debug")
    assert outcome.code == 1
    assert "Traceback" in outcome.err
    assert outcome.complaints[-1].startswith("error: ")


def test_an_interrupt_is_one_line_and_exit_130(tiny_model: Path):
    line = [sys.executable, "-c", MINDS_INTERRUPTS + MAIN, "caption", "-", "--model", str(tiny_model)]
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as running:
        assert running.stdin is not None
        running.stdin.write(b"x" * 2**20)  # returns only once the command reads, so once it runs
        running.stdin.flush()
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=60) == 130
        assert running.stderr is not None
        assert running.stderr.read() == b"interrupted\n"


def test_a_reader_that_went_away_is_no_error(photos: list[Path], tiny_model: Path):
    line = [sys.executable, "-m", "sightline", "caption", *map(str, photos), "--model", str(tiny_model), "--jsonl"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as running:
        assert running.stdout is not None
        running.stdout.close()
        assert running.wait(timeout=120) == 141
        assert running.stderr is not None
        assert running.stderr.read() == b""


# -- spoilt model folders ---------------------------------------------------------------------------------------------


def _drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["encoder.positions"]
    save_file(tensors, folder / "model.safetensors")


def _add_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "encoder.stranger": tensors["encoder.positions"].clone()}, folder / "model.safetensors")


def _change(**values: object) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        for path, value in values.items():
            section, _, key = path.partition("__")
            if key:
                config[section][key] = value
            else:
                config[section] = value
        (folder / "config.json").write_text(json.dumps(config))

    return spoil


def _truncate(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return spoil


SPOILT = {
    "missing tensor": (_drop_tensor, "encoder.positions"),
    "extra tensor": (_add_tensor, "encoder.stranger"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors missing"),
    "other width": (_change(encoder__width=64), "64"),
    "unknown decoder": (_change(decoder__name="mamba"), "mamba"),
    "unknown option": (_change(decoder__colour="red"), "colour"),
    "huge width": (_change(decoder__width=10**9), "config.json"),
    "unknown decoding option": (_change(decoding={"beams": 3}), "beams"),
    "bad decoding value": (_change(decoding={"beam": -3}), "beam is -3"),
    "another format": (_change(format="sightline-9"), "sightline-9"),
    "extra key": (_change(run="rm -rf"), "unknown key 'run'"),
    "cut weights": (_truncate("model.safetensors"), "cannot be read"),
    "cut config": (_truncate("config.json"), "cannot be read"),
    "cut tokenizer": (_truncate("tokenizer.json"), "cannot be read"),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_a_spoilt_model_folder_is_one_line(command: Command, photos: list[Path], own_model: Path, fault: str):
    spoil, words = SPOILT[fault]
    spoil(own_model)
    outcome = command("caption", photos[0], "--model", own_model)
    assert outcome.out == ""
    assert outcome.code == 1
    assert len(outcome.complaints) == 1, outcome.err
    assert words in outcome.err
    assert "should not happen" not in outcome.err


def test_a_misspelt_shipped_model_has_the_nearest_name(command: Command, photos: list[Path]) -> None:
    outcome = command("caption", photos[0], "--model", "larg")
    assert (outcome.code, len(outcome.complaints)) == (1, 1)
    assert "there is no model folder 'larg' (did you mean 'large'?)" in outcome.err


def test_a_missing_model_folder_is_one_line(command: Command, photos: list[Path], tmp_path: Path):
    outcome = command("caption", photos[0], "--model", tmp_path / "none")
    assert (outcome.code, len(outcome.complaints)) == (1, 1)
    assert outcome.err == f"error: there is no model folder '{tmp_path / 'none'}': `sightline models` lists models\n"


# -- recipes, training ------------------------------------------------------------------------------------------------


def test_recipes_are_listed_shown_and_checked(command: Command, recipe: Path):
    listed = command("recipes")
    assert listed.code == 0
    assert "patch-transformer-word" in listed.out
    shown = command("recipes", "show", recipe, "--set", "training.epochs=7")
    assert "epochs = 7" in shown.out
    assert 'title = "Tiny"' in shown.out
    assert command("recipes", "check").code == 0
    assert command("recipes", "check", recipe) == (0, f"{recipe}: fine\n", "")


def test_a_recipe_is_shown_by_its_name_alone(command: Command, recipe: Path):
    assert command("recipes", "own-photos") == command("recipes", "show", "own-photos")
    shown = command("recipes", "sat-hard-vgg19").out
    assert shown.startswith("# sightline train sat-hard-vgg19 ")  # with the model it begins with
    assert "training.init=runs/sat-soft-vgg19" in shown.splitlines()[0]
    assert tomllib.loads(shown)["decoder"]["mode"] == "hard"
    assert command("recipes", recipe, "--set", "training.epochs=7").out.count("epochs = 7") == 1
    outcome = command("recipes", "own-foto")
    assert (outcome.code, outcome.out) == (2, "")
    assert "did you mean 'own-photos'" in outcome.err


def test_all_faults_of_a_recipe_come_at_once_with_the_nearest_names(command: Command, recipe: Path):
    changes = ("training.epoch=3", "decoder.name=transfomer", "training.batch_size=0", "nonsense")
    options = [part for change in changes for part in ("--set", change)]
    outcome = command("recipes", "check", recipe, *options)
    assert (outcome.code, outcome.out, len(outcome.complaints)) == (1, "", 4)
    assert all(line.startswith(f"error: {recipe}: ") for line in outcome.complaints)
    for words in ("'epochs'", "'transformer'", "batch_size", "'nonsense'"):
        assert words in outcome.err
    assert command("train", recipe, "--data", "x", *options).code == 2


def test_a_recipe_of_an_unknown_encoder_is_not_fine(command: Command):
    outcome = command("recipes", "check", "own-photos", "--set", "encoder.name=resnet51")
    assert (outcome.code, outcome.out, len(outcome.complaints)) == (1, "", 1)
    assert outcome.err.startswith("error: own-photos: unknown encoder 'resnet51' (did you mean ")


def test_train_then_list_then_resume(
    command: Command, recipe: Path, tiny_flickr8k_kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    outcome = command("train", recipe, "--data", tiny_flickr8k_kept, "--seed", 3)
    assert outcome.code == 0, outcome.err
    assert "CIDEr-D" in outcome.out
    assert "epoch 1:" in outcome.err
    folder = tmp_path / "runs" / "tiny"
    assert "seed = 3" in (folder / "recipe.toml").read_text()
    listed = command("models")
    assert listed.code == 0
    assert "runs/tiny" in listed.out
    again = command("train", recipe, "--data", tiny_flickr8k_kept, "--seed", 3)
    assert (again.code, again.complaints[-1].startswith("error: ")) == (2, True)
    assert "--resume" in again.err
    assert command("train", recipe, "--data", tiny_flickr8k_kept, "--seed", 3, "--resume").code == 0


def test_training_without_captions_is_one_line(command: Command, recipe: Path, photos: list[Path], tmp_path: Path):
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.copy(photos[0], folder)
    outcome = command("train", recipe, "--data", folder, "-o", tmp_path / "run")
    assert (outcome.code, len(outcome.complaints)) == (1, 1)
    assert "captions.csv" in outcome.err
    (folder / "captions.csv").write_text("image,caption\n" + f"{photos[0].name},\n")
    outcome = command("train", recipe, "--data", folder, "-o", tmp_path / "run")
    assert outcome.code == 1
    assert [line for line in outcome.complaints if line.startswith("error: ")] == outcome.complaints[-1:]


def test_models_name_the_dataset_of_their_scores_and_installed_runtimes(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = sys.modules["sightline.cli.models"]
    monkeypatch.setenv("COLUMNS", "300")
    header, row, *_ = command("models").out.splitlines()
    assert row[header.index("val of") :].startswith("flickr8k ")
    assert "onnx, torch" in row
    monkeypatch.setattr(models, "find_spec", lambda name: None if name == "torch" else name)
    assert "torch" not in command("models").out.replace("sightline", "")
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    assert "none: onnxruntime is not installed" in command("models").out


def test_models_are_as_large_as_their_files(
    command: Command, own_model: Path, exported_folders: tuple[Path, Path]
) -> None:
    size = sum(path.stat().st_size for path in own_model.iterdir())
    (own_model / "confidence.json").write_text(" " * 2_000_000)
    (own_model / "encoder.onnx").write_bytes(bytes(3_000_000))
    (own_model / "state.safetensors").write_bytes(bytes(9_000_000))  # of the training run
    header, row = command("models", own_model).out.splitlines()
    assert row[: header.index("MB") + 2].split()[-1] == f"{5 + size / 1e6:.1f}"
    header, row = command("models", exported_folders[1]).out.splitlines()
    size = sum(path.stat().st_size for path in exported_folders[1].iterdir())
    assert row[: header.index("MB") + 2].split()[-1] == f"{size / 1e6:.1f}"


def test_a_model_that_lacks_a_shard_does_not_hide_the_others(command: Command, own_model: Path, tmp_path: Path) -> None:
    shutil.copytree(own_model, tmp_path / "models/whole")
    shutil.copytree(own_model, tmp_path / "models/broken")
    (tmp_path / "models/broken/model.safetensors").rename(tmp_path / "models/broken/model-1-of-2.safetensors.gz")
    outcome = command("models", tmp_path / "models")
    assert outcome.code == 1
    assert "whole" in outcome.out
    assert "model-2-of-2" in outcome.err


def test_models_show_whole_paths_on_a_narrow_terminal(
    command: Command, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("a-long-name-" * 8) / ("another-" * 15)
    shutil.copytree(tiny_model, folder)
    monkeypatch.setenv("COLUMNS", "80")
    header, row = command("models", folder).out.splitlines()  # no terminal: a line for each model
    assert header.startswith("model ") and row.rstrip().endswith(f" {folder}")
    terminal = Console(width=80, force_terminal=True)
    monkeypatch.setattr(sys.modules["sightline.cli.models"], "console", lambda: terminal)
    lines = command("models", folder).out.splitlines()
    assert lines[0] == folder.name
    assert lines[-1].split() == ["folder", str(folder)]
    assert "  calibrated   no" in lines


def test_models_without_any_say_what_to_do(command: Command, tiny_model: Path, tmp_path: Path, own_model: Path):
    assert command("models", tiny_model).code == 0
    outcome = command("models", tmp_path / "none")
    assert (outcome.code, len(outcome.complaints)) == (1, 1)
    _truncate("model.safetensors")(own_model)
    (own_model / "model.safetensors").write_bytes(b"\xff" * 100)
    outcome = command("models", own_model.parent)
    assert (outcome.code, len(outcome.complaints)) == (1, 1)


# -- outputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["caption", "explain", "bulk", "search", "evaluate", "score"])
def test_every_output_makes_its_folder_or_says_in_one_line_what_is_in_the_way(
    verb: str, command: Command, photos: list[Path], tiny_model: Path, tiny_flickr8k_kept: Path, tmp_path: Path
):
    model, table, results = ("--model", tiny_model), tmp_path / "table.csv", tmp_path / "results.json"
    table.write_text(f"source,caption\n{photos[0]},a red dog\n")
    results.write_text(json.dumps([{"image_id": photo.name, "caption": "a red square"} for photo in photos]))
    scores = ("--metrics", "bleu,cider")
    lines: dict[str, tuple[object, ...]] = {
        "caption": ("caption", photos[0], *model, "-o", "captions.csv"),
        "explain": ("explain", photos[0], *model, "-o", "dog.png"),
        "bulk": ("bulk", photos[0], *model, "-o", "captions.csv"),
        "search": ("search", "dog", table, "--html", "dogs.html"),
        "evaluate": ("evaluate", tiny_model, "--data", tiny_flickr8k_kept, *scores, "--page", "page.html"),
        "score": ("score", results, "--references", tiny_flickr8k_kept, "--split", "all", *scores, "-o", "scores"),
    }
    *line, name = lines[verb]
    assert command(*line, tmp_path / "new" / "folder" / name).code == 0
    assert (tmp_path / "new" / "folder" / name).exists()
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "folder"):
        outcome = command(*line, folder / name)
        assert (outcome.code, len(outcome.complaints)) == (1, 1), outcome.err
        assert outcome.err.startswith(f"error: cannot write {folder / name}")
        assert f": {tmp_path / 'file'} is a file, not a folder; choose another name or folder" in outcome.err


# -- evaluate, score, doctor ------------------------------------------------------------------------------------------


def test_evaluate_score_and_compare(command: Command, tiny_model: Path, tiny_flickr8k_kept: Path, tmp_path: Path):
    common = ("--metrics", "bleu,cider")
    page = tmp_path / "page.html"
    outcome = command(
        "evaluate", tiny_model, "--data", tiny_flickr8k_kept, "-o", tmp_path / "a", "--page", page, *common
    )
    assert outcome.code == 0, outcome.err
    assert "CIDEr-D" in outcome.out
    assert outcome.out.splitlines()[-1].startswith("sightline ")
    assert "flickr8k:val|images:2" in outcome.out
    assert page.read_text().startswith("<!doctype html>")
    results = tmp_path / "a" / "captions.json"
    scored = command("score", results, "--references", tiny_flickr8k_kept, "--split", "dev", *common)
    assert scored.code == 0, scored.err
    assert "captions:given" in scored.out
    compared = command("evaluate", "--compare", tmp_path / "a", results, *common)
    assert compared.code == 0, compared.err
    assert "+0.0" in compared.out
    wrong = command("score", results, "--references", tiny_flickr8k_kept, "--split", "test", *common)
    assert (wrong.code, len(wrong.complaints)) == (1, 1)
    assert "check the split" in wrong.err


def test_evaluate_goes_on_after_a_bad_model_and_a_bad_photo(
    command: Command, tiny_model: Path, tiny_flickr8k: Path, tmp_path: Path
):
    (tiny_flickr8k / "Flicker8k_Dataset" / "red_square_black.jpg").write_bytes(b"")
    outcome = command(
        "evaluate", tmp_path / "none", tiny_model, "--data", tiny_flickr8k, "--metrics", "bleu", "-o", tmp_path / "out"
    )
    assert outcome.code == 1
    assert len(outcome.complaints) == 2
    assert "images:1|" in outcome.out
    assert (tmp_path / "out" / tiny_model.name / "scores.json").is_file()


def test_doctor_flags_a_collapsed_model_and_a_bad_photo(
    command: Command, own_model: Path, tiny_flickr8k: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    tensors = load_file(own_model / "model.safetensors")
    tensors = {name: tensor * (0 if name.startswith("encoder") else 1) for name, tensor in tensors.items()}
    save_file(tensors, own_model / "model.safetensors")
    (tiny_flickr8k / "Flicker8k_Dataset" / "red_circle_white.jpg").write_bytes(b"no")
    outcome = command("doctor", "--data", tiny_flickr8k, "--model", own_model)
    assert outcome.code == 1
    faults = [line for line in outcome.out.splitlines() if line.startswith("fault")]
    assert len(faults) == 2, outcome.out
    assert "red_circle_white.jpg" in faults[0]
    assert "collapsed" in faults[1]
    asked, _, installation = outcome.out.partition("\nthe installation:\n")
    assert "red_circle_white.jpg" in asked and "Python 3" in installation and "Python 3" not in asked
    missing = command("doctor", "--data", tmp_path / "none", "--model", own_model)
    assert (missing.code, "give --data" in missing.out) == (1, False)


def test_doctor_says_that_a_dataset_has_no_val_photos(
    command: Command, tiny_model: Path, tiny_flickr8k: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    table = tiny_flickr8k / "Flicker8k_Dataset" / "captions.csv"
    table.write_text("image,caption,split\nred_circle_white.jpg,a red circle,train\n")
    outcome = command("doctor", "--data", table, "--model", tiny_model)
    faults = [line for line in outcome.out.splitlines() if line.startswith("fault")]
    assert faults == ["fault there are no val photos: put some photos in the val split, training needs them"]
