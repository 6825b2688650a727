"""A run goes into the box only with the scores of the very weights that are shipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ship
from script import run
from sightline.engine.captioner import load
from sightline.errors import ConfigError
from sightline.nn.checkpoint import checkpoint_hash, read_tensors


def test_a_run_is_shipped_with_its_rows_scores(finished_run: Path, made_results: Path, tmp_path: Path) -> None:
    half, box = tmp_path / "half", tmp_path / "box"
    assert run(ship.main, [str(finished_run), str(half)]) == 0
    assert {str(tensor.dtype) for tensor in read_tensors(half / "model.safetensors")[0].values()} == {"torch.float16"}
    assert (half / "history.jsonl").read_text() == (finished_run / "history.jsonl").read_text()
    row = json.loads((made_results / "sat-soft-vgg19.json").read_text())
    row |= {"signature": f"sightline 0.1.0|ckpt:{checkpoint_hash(half)}"}
    (made_results / "mine.json").write_text(json.dumps(row))
    box.mkdir()
    (box / "step.onnx").write_bytes(b"of the weights before")
    ship.ship(half, "mine", box, made_results)
    assert checkpoint_hash(box) == checkpoint_hash(half)
    assert json.loads((box / "metrics.json").read_text())["test"]["cider"] == 0.4404
    assert not (box / "step.onnx").exists()
    assert load(box).runtimes == ["torch"]


def test_other_weights_scores_are_refused(finished_run: Path, made_results: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="was not scored on test with the weights"):
        ship.ship(finished_run, "sat-soft-vgg19", tmp_path / "box", made_results)
    assert not (tmp_path / "box").exists()
