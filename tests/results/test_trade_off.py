"""The plot of quality, size and milliseconds: what is measured, and that it is drawn from the rows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

import trade_off
from script import RESULTS
from sightline.errors import ConfigError

ROW = "dinov2-coco-scst"


def test_models_are_timed_weighed_and_drawn(tiny_model: Path, photos: list[Path], tmp_path: Path) -> None:
    for folder in ("", "coco"):
        (tmp_path / folder).mkdir(exist_ok=True)
        shutil.copy(RESULTS / folder / f"{ROW}.json", tmp_path / folder)
    options = ["--count", "1", "--rounds", "1", "--results", str(tmp_path), "--output", str(tmp_path / "plot.png")]
    trade_off.main([f"{ROW}={tiny_model}", "--photos", str(photos[0].parent), *options])
    found = trade_off.read_json(tmp_path / "trade_off.json")[ROW]
    size = sum(path.stat().st_size for path in tiny_model.iterdir() if path.is_file()) / 1e6
    assert found["MB"] == round(size, 1)
    assert found["ms"] > 0
    assert found["runtime"] == "torch"
    assert Image.open(tmp_path / "plot.png").width > 1000


def test_photos_to_time_are_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --photos"):
        trade_off.main([f"{ROW}=default", "--results", str(tmp_path)])
