"""Weights in shards, and the large model of the repository that is made of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from commands import Command
from exporting import pictures, tiny_checkpoint

import sightline
from sightline.engine.backend import note_tried
from sightline.engine.captioner import load
from sightline.errors import CheckpointError, ConfigError
from sightline.io import model_files
from sightline.io.model_files import checkpoint_hash, read_weights, shards, write_shards
from sightline.nn import hub
from sightline.nn.checkpoint import load_checkpoint, save_checkpoint
from sightline.onnx.export import export
from sightline.serve.browser import find_browser_model

SOURCES = Path(sightline.__file__).parents[1]
DOG = SOURCES.parent / "examples" / "dog.jpg"
SHARD = 20_000  # bytes, so that a tiny model has several
LARGE = SOURCES.parent / "models" / "large"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "large"
    save_checkpoint(folder, tiny_checkpoint(width=64), precision="int8")
    export(folder, int8_arithmetic=True)
    note_tried(folder)
    return folder


@pytest.fixture
def clone(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like a clone's models/large, with a tiny model that makes several shards in place of the large one."""
    monkeypatch.setattr(model_files, "SHARD", SHARD)
    monkeypatch.setattr(hub, "CLONE", tmp_path / "models")
    monkeypatch.setenv("SIGHTLINE_MODELS", str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(exported, tmp_path / "models" / "large")


def test_shards_are_the_same_model_in_both_runtimes(clone: Path, command: Command) -> None:
    before, name = (clone / "model.safetensors").read_bytes(), checkpoint_hash(clone)
    expected = {runtime: load(clone, runtime=runtime).caption(pictures()) for runtime in ("onnx", "torch")}
    assert command("export", clone, "--int8-arithmetic", "--shards").code == 0
    assert not (clone / "model.safetensors").exists()
    assert len(shards(clone)) == -(-len(before) // SHARD) > 2
    assert checkpoint_hash(clone) == name
    unpacked = subprocess.run(f"cat {clone}/model-?-of-?.safetensors.gz | gunzip", shell=True, capture_output=True)
    assert unpacked.stdout == before == read_weights(clone)
    assert sum(path.stat().st_size for path in shards(clone)) < len(before)
    for runtime, captions in expected.items():
        found = load(clone, runtime=runtime).caption(pictures())
        assert [(one.text, one.score) for one in found] == [(one.text, one.score) for one in captions]
    assert load(clone).runtimes == ["onnxruntime, int8-arithmetic"]


def test_exporting_shards_again_changes_nothing(clone: Path, command: Command) -> None:
    write_shards(clone)
    before = {path.name: path.read_bytes() for path in clone.iterdir()}
    assert command("export", clone, "--int8-arithmetic", "--shards").code == 0
    assert {path.name: path.read_bytes() for path in clone.iterdir()} == before


def test_new_weights_replace_shards(clone: Path) -> None:
    write_shards(clone)
    save_checkpoint(clone, tiny_checkpoint(seed=1))
    assert not shards(clone)
    assert not list(clone.glob("*.gz"))
    load_checkpoint(clone)


def test_shards_are_of_a_model_folder_alone(clone: Path) -> None:
    for options in ({"output": clone.parent / "other"}, {"int8": True}, {"web": clone.parent / "web"}):
        with pytest.raises(ConfigError, match="leave out --output, --int8 and --web"):
            export(clone, shards=True, **options)
    assert (clone / "model.safetensors").is_file()


def _bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(bytes(10**7)) + packer.flush()


@pytest.mark.parametrize("runtime", ["onnx", "torch"])
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.unlink(), "model-2-of-.*.safetensors.gz is missing; copy it again"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "is not a whole shard of weights; copy it again"),
        (lambda path: path.write_bytes(path.read_bytes()[:500] + b"!" * 9 + path.read_bytes()[509:]), "is damaged"),
        (lambda path: path.write_bytes(_bomb()), "is not a whole shard of weights; copy it again"),
    ],
    ids=["missing", "cut", "damaged", "bomb"],
)
def test_shards_that_are_not_whole_are_rejected_in_one_line(clone: Path, spoil, words: str, runtime: str) -> None:
    write_shards(clone)
    spoil(shards(clone)[1])
    with pytest.raises(CheckpointError, match=words) as caught:
        load(clone, runtime=runtime)
    assert "\n" not in str(caught.value)


def test_shards_of_other_weights_are_rejected(clone: Path) -> None:
    other = clone.parent / "other"
    save_checkpoint(other, tiny_checkpoint(seed=1, width=64), precision="int8")
    for folder in (clone, other):
        write_shards(folder)
    for path in shards(other):
        path.replace(clone / path.name)
    with pytest.raises(CheckpointError, match="is not the file these graphs were made from"):
        load(clone)


def test_every_front_end_finds_the_large_model_in_a_clone(clone: Path, command: Command, tmp_path: Path) -> None:
    write_shards(clone)
    text = load("large").caption(DOG).text
    assert command("caption", DOG, "--model", "large", "--raw").out.strip() == text
    assert command("bulk", DOG, "--model", "large", "-o", tmp_path / "out.jsonl").code == 0
    assert json.loads((tmp_path / "out.jsonl").read_text())["caption"] == text
    assert command("explain", DOG, "--model", "large", "-o", tmp_path / "dog.png").code == 0
    assert (tmp_path / "dog.png").stat().st_size > 1000
    row = next(line for line in command("models").out.splitlines() if line.startswith("large "))
    assert "patches" in row
    assert "onnx, torch" in row
    assert "in shards" in find_browser_model(load("large")).reason


def test_a_folder_of_models_is_listed_once(
    clone: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGHTLINE_MODELS", "./models")
    assert [line.split()[0] for line in command("models").out.splitlines()].count("large") == 1


def test_the_large_model_needs_no_torch_and_is_found_in_the_working_directory(clone: Path) -> None:
    write_shards(clone)
    script = (
        "import sys; sys.modules.update(torch=None, safetensors=None); import pathlib, sightline; "
        "from sightline.nn import hub; hub.CLONE = pathlib.Path('elsewhere'); "
        f"print(sightline.load('large').caption({str(DOG)!r}).text)"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "SIGHTLINE_CACHE": str(clone.parent / "cache")}
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, cwd=clone.parents[1]
    )
    assert answer.stdout.strip() == load("large").caption(DOG).text, answer.stderr


@pytest.mark.parametrize("name", ["nosuch", "./large", "nobody/nosuch", "large"])
@pytest.mark.parametrize("verb", ["caption", "explain", "serve", "export"])
def test_a_model_that_is_not_here_is_one_line_and_exit_code_1(
    verb: str, name: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "CLONE", tmp_path / "site-packages" / "models")
    monkeypatch.setenv("SIGHTLINE_MODELS", str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    arguments = {"serve": ["--port", 0, "--model", name], "export": [name, "-o", "out"]}
    outcome = command(verb, *arguments.get(verb, [DOG, "--model", name]))
    assert outcome.code == 1
    (line,) = outcome.complaints
    assert Path(name).name in line
    assert (
        name != "large"
        or f"copy the folder models/large of Sightline's repository to {tmp_path / 'kept' / 'large'}" in line
    )


@pytest.mark.skipif(not LARGE.is_dir(), reason="the large model is not in this copy of the repository")
def test_the_large_model_is_small_enough_and_calibrated() -> None:
    sizes = [path.stat().st_size for path in LARGE.iterdir()]
    assert sum(sizes) <= 95e6
    assert max(sizes) < 50e6
    captioner = load("large")
    assert captioner.runtimes == ["onnxruntime, int8-arithmetic"]
    caption = captioner.caption(DOG)
    assert "dog" in caption.text
    assert caption.confidence is not None
    assert (LARGE / "README.md").is_file()
