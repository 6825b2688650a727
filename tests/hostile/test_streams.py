"""Standard streams that are closed, full or broken, and folders that cannot be written: one line and the right code."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import ENVIRONMENT, Command, Outcome, tiny_recipe

from sightline.onnx.exported import MOST_THREADS, all_threads, cores

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
SIGHTLINE = shlex.join([sys.executable, "-m", "sightline"])


def shell(line: str, **environment: str) -> Outcome:
    """A line of bash; ``{}`` stands for the command."""
    done = subprocess.run(
        ["bash", "-c", line.replace("{}", SIGHTLINE)], capture_output=True, env=ENVIRONMENT | environment, timeout=300
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("line", "code", "reason"),
    [
        ("{} --version > /dev/full", 1, "error: cannot write to standard output: No space left on device"),
        ("{} --version >&-", 1, "error: cannot write to standard output: Bad file descriptor"),
        ("{} nothing >&- <&-", 2, "error: No such command"),
        ("{} recipes | true; exit ${PIPESTATUS[0]}", 141, ""),
        ("{} nothing 2> /dev/full", 2, ""),
        ("{} nothing >&- 2>&- <&-", 2, ""),
        ("{} caption - <&-", 1, "error: standard input is empty: give a photo"),
    ],
)
def test_streams_that_fail(line: str, code: int, reason: str, unbuffered: str) -> None:
    outcome = shell(line, PYTHONUNBUFFERED=unbuffered)
    assert outcome.code == code, outcome
    assert len(outcome.complaints) == bool(reason) and outcome.err.startswith(reason), outcome.err


def test_closed_streams_are_not_taken_for_the_files_of_the_job(photos: list[Path], tmp_path: Path) -> None:
    """The first file that is opened would be standard output, and what libraries print would get into it."""
    outcome = shell(f"{{}} caption {photos[0]} -o {tmp_path}/captions.txt >&- <&-")
    assert outcome.code == 0, outcome.err
    assert len((tmp_path / "captions.txt").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "threads"),
    [("2,1", 2), ("3", 3), ("0", None), ("", None), ("many", None), ("-1", None), ("9" * 5000, MOST_THREADS)],
)
def test_any_number_of_threads_in_the_environment(
    text: str, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert all_threads() == (threads or cores())


# -- folders that cannot be written -----------------------------------------------------------------------------------


@pytest.fixture(params=["read-only", "full"])
def disk(request: pytest.FixtureRequest, photos: list[Path], tmp_path: Path) -> Iterator[Path]:
    """A disk with one photo on it that takes no more."""
    folder = tmp_path / request.param
    folder.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("no program to make a disk with")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("a disk can only be made by root")
    shutil.copy(photos[0], folder)
    if request.param == "full":
        with pytest.raises(OSError, match="No space left"), (folder / "filler").open("wb", buffering=0) as file:
            for _ in range(64 // 4 + 1):
                file.write(b"x" * 4096)
    else:
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


COMMANDS = (
    "caption {photo} -m {model} -o {disk}/captions.csv",
    "bulk {photo} -m {model} -o {disk}/captions.jsonl",
    "bulk {photo} -m {model} -o {disk}/folder/ --output-format csv",
    "explain {photo} -m {model} -o {disk}/page.html",
    "pseudo-caption {disk} -m {model} -o {disk}/pseudo.jsonl",
    "train {recipe} --data {data} -o {disk}/run",
    "evaluate {model} --data {data} --split val --metrics bleu -o {disk}/scores",
    "retrieval build -m {model} --data {data} -o {disk}/datastore --weight 0.5",
)


@pytest.mark.parametrize("line", COMMANDS)
def test_folders_that_cannot_be_written(
    line: str, disk: Path, command: Command, photos: list[Path], tiny_model: Path, tiny_flickr8k_kept: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    (tmp_path / "tiny.toml").write_text(tiny_recipe())
    names = {"photo": photos[0], "model": tiny_model, "disk": disk, "recipe": tmp_path / "tiny.toml"}
    outcome = command(*line.format(data=tiny_flickr8k_kept, **names).split())
    assert outcome.code == 1, outcome.err
    reason = "the folder is not writable" if disk.name == "read-only" else "the disk is full"
    errors = [text for text in outcome.complaints if text.startswith("error:")]
    assert len(errors) == 1 and "cannot write" in errors[0] and reason in errors[0], outcome.err
    assert outcome.complaints[-1] == errors[0]


def test_training_goes_on_without_curves(tiny_flickr8k_kept: Path, tmp_path: Path, caplog, monkeypatch) -> None:
    """TensorBoard's thread fails, not the run: its numbers are in history.jsonl."""
    board = pytest.importorskip("torch.utils.tensorboard")
    from sightline.recipes.config import parse_recipe
    from sightline.training.trainer import train

    def add_scalar(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(board.SummaryWriter, "add_scalar", add_scalar)
    train(parse_recipe(tomllib.loads(tiny_recipe())), tiny_flickr8k_kept, tmp_path / "run")
    assert (tmp_path / "run" / "history.jsonl").read_text()
    assert [line for line in caplog.messages if "no more curves for TensorBoard: the disk is full" in line]


def test_a_feature_cache_on_a_full_disk_is_one_line_and_loses_nothing(tiny_flickr8k_kept: Path, tmp_path: Path) -> None:
    from sightline.data import load_dataset
    from sightline.errors import DataError
    from sightline.nn.encoders import build_encoder
    from sightline.training.feature_cache import FeatureCache

    encoder = build_encoder("patches", image_size=32, patch_size=8, width=16, blocks=1, heads=2)
    examples = load_dataset(tiny_flickr8k_kept).examples("train")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for limit in (100, 700, 1500):  # bytes of a file: within the first, second and third batch
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(DataError, match=r"cannot write .*: File too large"):
                FeatureCache(encoder, examples, tmp_path).fill(batch_size=1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    whole = FeatureCache(encoder, examples, tmp_path / "other").fill(batch_size=1)
    cached = FeatureCache(encoder, examples, tmp_path).fill(batch_size=1)
    for index in range(len(examples)):
        assert cached.features([index]).grid.equal(whole.features([index]).grid)
