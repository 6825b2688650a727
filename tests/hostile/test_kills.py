"""Bulk jobs and exports killed, and disks full; the next run completes them and loses nothing.

Kills of training, the feature cache and the page's export have tests beside those of these parts.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
from bulking import PART, bulk, check_complete, in_child, kill_at_operation, make_photos, was_killed
from corpus import ROUNDS, report
from exporting import model_folder, pictures

from sightline.errors import DataError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals, fork and limits are POSIX")


def work(kind: str, number: int, photos: Path, output: Path, model: Path) -> None:
    """A run that is killed before its n-th operation on files, or may write only so many bytes to each."""
    import resource

    if kind == "kill":
        kill_at_operation(number, output)
        bulk(photos, output, model)
        return
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40 * number, 40 * number))
    try:
        bulk(photos, output, model)
    except DataError as error:
        assert "cannot write" in str(error) and "File too large" in str(error)


def test_killed_or_out_of_space_at_random_moments(tiny_flickr8k_kept: Path, tiny_model: Path, tmp_path: Path) -> None:
    rng, tried, killed = random.Random(19), 0, 0
    photos = make_photos(tiny_flickr8k_kept, tmp_path / "photos", 3 * PART)
    for number in range(2 * ROUNDS):
        output = tmp_path / str(number) / "captions.jsonl"
        for _ in range(4):
            kind, moment = rng.choice(["kill", "disk"]), rng.randint(1, 60)
            child = in_child(partial(work, kind, moment, photos, output, tiny_model))
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0, (number, kind, moment)
            tried, killed = tried + 1, killed + os.WIFSIGNALED(status)
        bulk(photos, output, tiny_model)
        check_complete(photos, output)
    assert killed
    report("bulk runs killed or out of space", tried, 0, 0)


def test_an_export_killed_before_any_operation_leaves_a_model_that_loads(tmp_path: Path) -> None:
    """A float export is replaced by one in int8: the old one, the new one or torch loads, and never a mixture."""
    from sightline.engine.captioner import load
    from sightline.nn.checkpoint import load_checkpoint
    from sightline.onnx.export import MANIFEST, _files, _write, export_graphs

    model = model_folder(tmp_path / "model")
    checkpoint = load_checkpoint(model)
    graphs = export_graphs(checkpoint.model)
    old, new = _files(graphs, False, model), _files(graphs, True, None)
    expected = load(model).caption(pictures()[0]).text
    runtimes: list[str] = []

    def killed_export(number: int, folder: Path) -> None:
        kill_at_operation(number, folder / MANIFEST)
        _write(folder, checkpoint, new, "int8", "")

    for number in range(1, 100):
        folder = shutil.copytree(model, tmp_path / str(number))
        _write(folder, checkpoint, old, "float32", "")
        killed = was_killed(in_child(partial(killed_export, number, folder)))
        captioner = load(folder)
        assert captioner.caption(pictures()[0]).text == expected
        runtimes += captioner.runtimes
        if not killed:
            break
    assert list(dict.fromkeys(runtimes)) == ["onnxruntime, float32", "torch", "onnxruntime, int8"], runtimes
    report("exports killed", number, 0, 0)
