"""The command line as a user meets it: what is printed where, the exit code, and one clear line for every mistake."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from safetensors.torch import load_file, save_file

import sightline
from sightline import progress
from sightline.cli import run

RECIPE = """
title = "Tiny"
[tokenizer]
name = "word"
min_count = 1
max_length = 12
[encoder]
name = "patches"
image_size = 32
patch_size = 8
width = 16
blocks = 1
heads = 2
[decoder]
name = "transformer"
width = 16
heads = 2
blocks = 1
[training]
epochs = 1
batch_size = 4
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(sightline.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def complaints(self) -> list[str]:
        return self.err.splitlines()


Command = Callable[..., Outcome]


def process(*arguments: object, **options) -> Outcome:
    """The real command in a process of its own."""
    line = [sys.executable, "-m", "sightline", *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, timeout=300, env=ENVIRONMENT, **options)
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """The same without a new process, which would spend two seconds importing torch each time."""
    ours, root = logging.getLogger("sightline"), logging.getLogger()
    before = ours.handlers, ours.propagate, ours.level, list(root.handlers)
    for name in ("PYTHONWARNINGS", "HF_HUB_VERBOSITY", "TORCH_CPP_LOG_LEVEL", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))

    def call(*arguments: object) -> Outcome:
        capfd.readouterr()
        code = run(list(map(str, arguments)))
        return Outcome(code, *capfd.readouterr())

    with warnings.catch_warnings():
        yield call
    ours.handlers, ours.propagate, root.handlers = before[0], before[1], before[3]
    ours.setLevel(before[2])
    progress.use_terminal(False)


@pytest.fixture
def photos(tiny_flickr8k_kept: Path) -> list[Path]:
    return sorted((tiny_flickr8k_kept / "Flicker8k_Dataset").iterdir())


@pytest.fixture
def own_model(tiny_model: Path, tmp_path: Path) -> Path:
    """A model folder free to be spoilt."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(RECIPE)
    return path


# -- the program ------------------------------------------------------------------------------------------------------


def test_help_names_every_verb_and_imports_nothing_heavy():
    code = (
        "import sys\nfrom sightline.cli import run\nassert run(['--help']) == 0\n"
        "heavy = {'torch', 'numpy', 'PIL', 'pydantic', 'timm', 'rich'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    for verb in ("caption", "train", "evaluate", "score", "recipes", "models", "doctor"):
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
        (["caption"], "sightline caption --help"),
        (["caption", "x.jpg", "--bem", "3"], "--beam"),
        (["caption", "x.jpg", "--beam", "three"], "'--beam'"),
        (["caption", "x.jpg", "--json", "--csv"], "exclude each other"),
        (["caption", "x.jpg", "-o", "captions.xml"], "captions.xml: .xml is not written; choose .txt, .csv"),
        (["evaluate", "runs/x"], "--data"),
        (["evaluate", "--compare", "one.json"], "at least two"),
        (["train", "nic-resnet5", "--data", "x"], "nic-resnet50"),
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
    # Where the tests themselves run in the background, a child would inherit that interrupts are ignored.
    code = "import signal as s\ns.signal(s.SIGINT, s.default_int_handler)\nfrom sightline.cli import main\nmain()"
    line = [sys.executable, "-c", code, "caption", "-", "--model", str(tiny_model)]
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
    with subprocess.Popen(
        [*line, "--batch-size", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as running:
        assert running.stdout is not None
        running.stdout.close()
        assert running.wait(timeout=120) == 141
        assert running.stderr is not None
        assert running.stderr.read() == b""


# -- caption ----------------------------------------------------------------------------------------------------------


def test_one_photo_gives_just_its_sentence(photos: list[Path], tiny_model: Path):
    outcome = process("caption", photos[0], "--model", tiny_model)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.endswith(".\n")
    assert outcome.out[0].isupper()
    assert "\t" not in outcome.out


def test_raw_gives_the_bare_words(command: Command, photos: list[Path], tiny_model: Path):
    raw = command("caption", photos[0], "--model", tiny_model, "--raw").out
    sentence = command("caption", photos[0], "--model", tiny_model).out
    assert raw.islower()
    assert sentence == raw.strip().capitalize() + ".\n"


def test_standard_input_takes_a_photo(photos: list[Path], tiny_model: Path, command: Command):
    by_name = command("caption", photos[3], "--model", tiny_model).out
    assert process("caption", "-", "--model", tiny_model, input=photos[3].read_bytes()) == (0, by_name, "")


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"", "is empty: give a photo, as in `sightline caption - < dog.jpg`"), (b"words", "is not an image: use JPEG")],
)
def test_standard_input_is_called_so(
    command: Command, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, reason: str
):
    monkeypatch.setattr(sys.modules["sightline.cli.caption"], "_standard_input", lambda: data)
    outcome = command("caption", "-", "--model", tiny_model, "--csv")
    assert outcome.code == 1
    (complaint,) = outcome.complaints
    assert complaint.startswith(f"error: standard input {reason}")
    (row,) = csv.DictReader(io.StringIO(outcome.out))
    assert row["source"] == "-"
    assert row["error"].startswith(reason)


def test_folders_patterns_and_addresses_name_the_same_photos_once(
    command: Command, photos: list[Path], tiny_model: Path
):
    folder = photos[0].parent
    inputs = (folder, f"{folder}/red*.jpg", photos[0].as_uri(), photos[1])
    lines = command("caption", *inputs, "--model", tiny_model).out.splitlines()
    assert [line.split("\t")[0] for line in lines] == [str(photo) for photo in photos]


def test_json_jsonl_and_csv_agree(command: Command, photos: list[Path], tiny_model: Path, tmp_path: Path):
    def ask(*options: object) -> str:
        outcome = command("caption", *photos[:3], "--model", tiny_model, *options)
        assert (outcome.code, outcome.err) == (0, "")
        return outcome.out

    array = json.loads(ask("--json"))
    assert [row["source"] for row in array] == [str(photo) for photo in photos[:3]]
    assert [json.loads(line) for line in ask("--jsonl").splitlines()] == array
    rows = list(csv.DictReader(io.StringIO(ask("--csv"))))
    assert list(rows[0]) == ["source", "caption", "confidence", "unsure", "strangeness", "finished", "error"]
    assert [row["caption"] for row in rows] == [row["caption"] for row in array]
    assert ask("-o", tmp_path / "new" / "captions.json") == ""
    assert json.loads((tmp_path / "new" / "captions.json").read_text()) == array


def test_a_table_has_a_row_for_every_photo_that_failed(
    command: Command, photos: list[Path], tiny_model: Path, tmp_path: Path
):
    bad, gone = tmp_path / "bad.jpg", tmp_path / "gone.jpg"
    bad.write_bytes(b"no picture")
    outcome = command("caption", photos[0], bad, gone, photos[1], "--model", tiny_model, "--csv", "--alt")
    assert outcome.code == 1
    assert len(outcome.complaints) == 2
    rows = {row["source"]: row for row in csv.DictReader(io.StringIO(outcome.out))}
    assert set(rows) == {str(path) for path in (photos[0], bad, gone, photos[1])}
    assert "is not an image" in rows[str(bad)]["error"]
    assert rows[str(gone)]["error"].startswith("does not exist")
    assert (rows[str(bad)]["caption"], rows[str(bad)]["confidence"], rows[str(bad)]["alt"]) == ("", "", "")
    fine = rows[str(photos[0])]
    assert (fine["error"], fine["unsure"]) == ("", "false")
    assert fine["alt"] == fine["caption"].capitalize() + "."
    outcome = command("caption", gone, "--model", tiny_model, "--csv")
    assert outcome.code == 1
    assert [row["source"] for row in csv.DictReader(io.StringIO(outcome.out))] == [str(gone)]


def test_alt_text(command: Command, photos: list[Path], tiny_model: Path, tmp_path: Path):
    sentence = command("caption", photos[0], "--model", tiny_model).out
    assert command("caption", photos[0], "--model", tiny_model, "--alt").out == sentence
    row = json.loads(command("caption", photos[0], "--model", tiny_model, "--alt", "--jsonl").out)
    assert row["alt"] == sentence.strip()
    outcome = command("caption", photos[0], "--model", tiny_model, "--alt", "--raw")
    assert (outcome.code, outcome.complaints) == (2, ["error: --alt and --raw exclude each other: choose one"])
    outcome = command("caption", photos[0], "--model", tiny_model, "--alt", "-o", f"{tmp_path}/out/")
    assert outcome.code == 2
    assert "--alt does not go with bulk jobs" in outcome.err


def test_candidates_widen_the_beam_and_are_all_shown(command: Command, photos: list[Path], tiny_model: Path):
    assert len(command("caption", photos[0], "--model", tiny_model, "--candidates", 4).out.splitlines()) == 4
    row = json.loads(command("caption", photos[0], "--model", tiny_model, "--candidates", 4, "--jsonl").out)
    assert len(row["others"]) == 3


def test_sampling_repeats_with_its_seed(command: Command, photos: list[Path], tiny_model: Path):
    def draw(seed: int) -> str:
        options = ("--sample", "--temperature", 2, "--seed", seed)
        return command("caption", photos[0], "--model", tiny_model, *options).out

    assert draw(1) == draw(1)
    assert len({draw(seed) for seed in range(5)}) > 1


def test_two_models_make_an_ensemble(command: Command, photos: list[Path], tiny_model: Path):
    alone = command("caption", photos[0], "--model", tiny_model).out
    assert command("caption", photos[0], "--model", tiny_model, "--model", tiny_model).out == alone


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("text.jpg", b"these are words, not a picture", "is not an image"),
        ("half.jpg", "half", "cut off"),
        ("empty.png", b"", "is empty"),
        ("missing.jpg", None, "does not exist"),
    ],
)
def test_a_bad_photo_is_one_line_and_the_others_are_captioned(
    command: Command, photos: list[Path], tiny_model: Path, tmp_path: Path, name: str, content, words: str
):
    bad = tmp_path / name
    if content is not None:
        whole = photos[0].read_bytes()
        bad.write_bytes(whole[: len(whole) // 2] if content == "half" else content)
    outcome = command("caption", photos[0], bad, photos[1], "--model", tiny_model)
    assert outcome.code == 1
    assert [line.split("\t")[0] for line in outcome.out.splitlines()] == [str(photos[0]), str(photos[1])]
    assert len(outcome.complaints) == 1
    assert outcome.err.startswith(f"error: {bad} ")
    assert words in outcome.err
    assert outcome.err.count(str(bad)) == 1


def test_a_mixed_folder_in_a_real_process(photos: list[Path], tiny_model: Path, tmp_path: Path):
    shutil.copy(photos[0], tmp_path / "b.jpg")
    (tmp_path / "a.jpg").write_bytes(b"no")
    (tmp_path / "c.jpg").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("not asked for")
    outcome = process("caption", tmp_path, "http://example.org/x.jpg", "--model", tiny_model, "--json")
    assert outcome.code == 1
    assert [row["source"] for row in json.loads(outcome.out)] == [str(tmp_path / "b.jpg")]
    assert len(outcome.complaints) == 3
    assert all(line.startswith("error: ") for line in outcome.complaints)


def test_nothing_but_bad_photos_leaves_valid_json(command: Command, tiny_model: Path, tmp_path: Path):
    (tmp_path / "a.jpg").write_bytes(b"no")
    outcome = command("caption", tmp_path, "--model", tiny_model, "--json")
    assert outcome.code == 1
    assert json.loads(outcome.out) == []


def test_options_that_contradict_are_one_line(command: Command, photos: list[Path], tiny_model: Path):
    for options in (("--top-k", 3), ("--max-length", 99), ("--beam", 0), ("--candidates", 5, "--beam", 2)):
        outcome = command("caption", photos[0], "--model", tiny_model, *options)
        assert (outcome.code, outcome.out, len(outcome.complaints)) == (2, "", 1), options


def test_a_beam_of_none_is_one_fault_and_not_two(command: Command, photos: list[Path], tiny_model: Path):
    outcome = command("caption", photos[0], "--model", tiny_model, "--beam", 0)
    assert outcome.err == "error: decoding options: beam is 0, give 1 to 1000\n"


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


def test_a_missing_model_folder_is_one_line(command: Command, photos: list[Path], tmp_path: Path):
    outcome = command("caption", photos[0], "--model", tmp_path / "none")
    assert (outcome.code, len(outcome.complaints)) == (1, 1)
    assert "not a model folder" in outcome.err


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
    assert command("recipes", recipe, "--set", "training.epochs=7").out.count("epochs = 7") == 1
    outcome = command("recipes", "own-foto")
    assert (outcome.code, outcome.out) == (2, "")
    assert "did you mean 'own-photos'" in outcome.err


def test_all_faults_of_a_recipe_come_at_once_with_the_nearest_names(command: Command, recipe: Path):
    changes = ("training.epoch=3", "decoder.name=transfomer", "training.batch_size=0", "nonsense")
    options = [part for change in changes for part in ("--set", change)]
    outcome = command("recipes", "check", recipe, *options)
    assert (outcome.code, outcome.out, len(outcome.complaints)) == (1, "", 1)
    for words in ("'epochs'", "'transformer'", "batch_size", "'nonsense'"):
        assert words in outcome.err
    assert command("train", recipe, "--data", "x", *options).code == 2


def test_train_in_a_real_process_then_resume_then_list(recipe: Path, tiny_flickr8k: Path, tmp_path: Path):
    outcome = process("train", recipe, "--data", tiny_flickr8k, "--seed", 3, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert "CIDEr" in outcome.out
    assert "epoch 1:" in outcome.err
    folder = tmp_path / "runs" / "tiny"
    assert "seed = 3" in (folder / "recipe.toml").read_text()
    listed = process("models", cwd=tmp_path)
    assert listed.code == 0
    assert "runs/tiny" in listed.out
    again = process("train", recipe, "--data", tiny_flickr8k, "--seed", 3, cwd=tmp_path)
    assert (again.code, again.complaints[-1].startswith("error: ")) == (2, True)
    assert "--resume" in again.err


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


def test_models_without_any_say_what_to_do(command: Command, tiny_model: Path, tmp_path: Path, own_model: Path):
    assert command("models", tiny_model).code == 0
    outcome = command("models", tmp_path / "none")
    assert (outcome.code, len(outcome.complaints)) == (1, 1)
    _truncate("model.safetensors")(own_model)
    (own_model / "model.safetensors").write_bytes(b"\xff" * 100)
    outcome = command("models", own_model.parent)
    assert (outcome.code, len(outcome.complaints)) == (1, 1)


# -- evaluate, score, doctor ------------------------------------------------------------------------------------------


def test_evaluate_score_and_compare(command: Command, tiny_model: Path, tiny_flickr8k_kept: Path, tmp_path: Path):
    common = ("--metrics", "bleu,cider")
    page = tmp_path / "page.html"
    outcome = command(
        "evaluate", tiny_model, "--data", tiny_flickr8k_kept, "-o", tmp_path / "a", "--page", page, *common
    )
    assert outcome.code == 0, outcome.err
    assert "CIDEr" in outcome.out
    assert outcome.out.splitlines()[-1].startswith("sightline ")
    assert "flickr8k:dev|images:2" in outcome.out
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
