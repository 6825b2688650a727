"""What each installation can do: the base without torch, and one line that names the extra where more is needed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from commands import ENVIRONMENT, Outcome

from sightline.cli.doctor import NEEDED
from sightline.errors import DISTRIBUTION, EXTRAS, install_command, missing_extra

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DOG = ROOT / "examples" / "dog.jpg"

# Blocks every package of every extra, then runs command lines one after another in this process.
SCRIPT = f"""
import contextlib, io, json, sys
for name in {sorted({module for extra in EXTRAS.values() for module in extra.packages})!r}:
    sys.modules[name] = None
from sightline.cli import run
outcomes = []
for arguments in json.loads(sys.stdin.read()):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    outcomes.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(outcomes))
"""


def without_extras(*command_lines: list[str]) -> list[Outcome]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(command_lines), capture_output=True, text=True, env=ENVIRONMENT, check=True,
    )  # fmt: skip
    return [Outcome(*outcome) for outcome in json.loads(done.stdout)]


def requirements(extra: str) -> set[str]:
    """The names of an extra's packages, those of extras that it includes, too."""
    names = set()
    for line in PROJECT["optional-dependencies"][extra]:
        if included := re.fullmatch(rf"{DISTRIBUTION}\[(.+)\]", line):
            names.update(*(requirements(other) for other in included[1].split(",")))
        else:
            names.add(re.match(r"[\w-]+(\[\w+\])?", line)[0])  # type: ignore[index]
    return names


def test_pyproject_and_the_error_messages_name_the_same_packages() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert set(PROJECT["optional-dependencies"]) == {*EXTRAS, "results", "dev"}
    for extra, (_, packages) in EXTRAS.items():
        assert set(packages.values()) <= requirements(extra)
    base = {re.match(r"[\w-]+", line)[0] for line in PROJECT["dependencies"]}  # type: ignore[index]
    assert base == set(NEEDED)
    assert not base & {"torch", "torchvision", "timm", "accelerate", "tokenizers", "huggingface_hub"}


def test_without_extras_one_line_says_which_is_needed(tiny_model: Path, tmp_path: Path) -> None:
    cases = {
        "train": [
            ["train", "nic-resnet50", "--data", "x"],
            ["features", "nic-resnet50", "--data", "x"],
            ["caption", str(DOG), "--runtime", "torch"],
            ["caption", str(DOG), "--model", str(tiny_model)],
            ["load", "owner/model"],
            ["push", "default", "owner/model"],
        ],
        "serve": [["serve", "--port", "0"]],
        "bulk": [["bulk", str(DOG), "-o", str(tmp_path / "a.parquet")]],
        "ray": [["bulk", str(DOG), "-o", str(tmp_path / "a.csv"), "--ray", "auto"]],
        "onnx": [["export", "default", "-o", str(tmp_path / "exported")]],
        "hub": [["caption", str(DOG), "--model", "owner/model"]],
        "datasets": [["evaluate", "default", "--data", "hf:owner/name"]],
    }
    lines = [(extra, arguments) for extra, command_lines in cases.items() for arguments in command_lines]
    for (extra, arguments), outcome in zip(lines, without_extras(*(arguments for _, arguments in lines))):
        assert outcome.code == 2, arguments
        assert outcome.out == "", arguments
        (line,) = outcome.complaints
        assert line.startswith("error: ") and install_command(extra) in line, arguments
    assert list(tmp_path.iterdir()) == []


def test_without_extras_one_machine_does_its_work(tiny_flickr8k_kept: Path, tmp_path: Path) -> None:
    data = ["--data", str(tiny_flickr8k_kept)]
    outcomes = without_extras(
        ["caption", str(DOG), "--sample"],
        ["explain", str(DOG), "-o", str(tmp_path / "dog.png")],
        ["explain", str(DOG), "-o", str(tmp_path / "dog.html")],
        ["bulk", str(DOG), "-o", str(tmp_path / "captions.csv")],
        ["evaluate", "default", *data, "--split", "test", "-o", str(tmp_path)],
        ["score", str(tmp_path / "captions.json"), "--references", str(tiny_flickr8k_kept)],
        ["retrieval", "build", *data, "-o", str(tmp_path / "datastore")],
        ["caption", str(DOG), "--datastore", str(tmp_path / "datastore")],
        ["models"],
        ["recipes"],
        ["recipes", "show", "nic-resnet50"],
        ["doctor"],
    )
    assert [(outcome.code, outcome.err) for outcome in outcomes if outcome.code] == []
    for extra in EXTRAS:
        assert install_command(extra) in outcomes[-1].out


def test_the_library_raises_an_error_that_is_an_import_error_too() -> None:
    script = (
        "import sys\nsys.modules['torch'] = None\nimport sightline\n"
        "try:\n    sightline.train\nexcept ImportError as error:\n"
        "    assert isinstance(error, sightline.SightlineError)\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert done.stdout == 'sightline.train needs torch: pip install "sightline-captions[train]"\n'


def test_only_a_missing_package_of_an_extra_becomes_such_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    found = missing_extra(ModuleNotFoundError(name="timm.layers"))
    assert str(found) == 'this needs timm: pip install "sightline-captions[train]"'
    assert missing_extra(ModuleNotFoundError(name="json.missing")) is None
    assert missing_extra(ModuleNotFoundError(name="numpy.missing")) is None
    assert missing_extra(ImportError("broken")) is None


def test_a_model_with_a_bpe_tokenizer_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from sightline.errors import MissingExtraError
    from sightline.tokenizers import train_tokenizer

    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"a BPE tokenizer needs tokenizers: pip install .*\[bpe\]"):
        train_tokenizer("bpe", ["a dog"], size=100, max_length=8)


def test_without_tensorboard_training_goes_on_and_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from sightline.training.state import Records

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with caplog.at_level("INFO", logger="sightline.training"):
        assert Records(tmp_path).board is None
    assert install_command("train") in caplog.text


def test_captioning_writes_nothing_into_the_home_folder(tmp_path: Path) -> None:
    """onnxruntime would keep an identifier and usage data there, to be sent to its maker."""
    names = ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED", "XDG_CACHE_HOME", "CI", "GITHUB_ACTIONS")
    environment = {name: value for name, value in ENVIRONMENT.items() if name not in names}
    environment |= {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "SIGHTLINE_CACHE": str(tmp_path / "own")}
    command = [sys.executable, "-m", "sightline", "caption", str(DOG)]
    subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    written = {path.name for path in tmp_path.iterdir()}
    assert written <= {"own"}, written
