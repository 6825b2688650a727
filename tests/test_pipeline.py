"""``sightline.pipeline`` and the stages behind it, with the default model: what docs/captioning.md shows, run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from default_model import CAPTION, CONFIDENCE
from PIL import Image

import sightline
from sightline.engine.pipeline import ImageToTextPipeline, _as_output
from sightline.errors import ConfigError, ImageError
from sightline.types import Caption

ROOT = Path(__file__).parents[1]
DOG = ROOT / "examples" / "dog.jpg"


@pytest.fixture(scope="module")
def pipe() -> ImageToTextPipeline:
    return sightline.pipeline("image-to-text")


def test_every_kind_of_photo_gives_a_dictionary_with_its_text(pipe: ImageToTextPipeline):
    picture = Image.open(DOG)
    photos: list[Any] = [str(DOG), DOG, DOG.read_bytes(), picture, np.asarray(picture)]
    for outputs in (pipe(photos, batch_size=2), pipe(photo for photo in photos), [pipe(photo)[0] for photo in photos]):
        assert [output["generated_text"] for output in outputs] == [CAPTION] * 5
    assert pipe(str(DOG)) == [{"generated_text": CAPTION, "confidence": CONFIDENCE, "unsure": False}]
    assert pipe([]) == []


def test_a_confidence_has_four_decimals():
    caption = Caption("a dog", (), 0.0, calibrated=0.123456)
    assert _as_output(caption)["confidence"] == 0.1235


def test_options_reach_the_decoder(pipe: ImageToTextPipeline):
    assert len(pipe(DOG, max_new_tokens=3)[0]["generated_text"].split()) == 3
    assert pipe(DOG, max_new_tokens=500)[0]["generated_text"] == CAPTION
    (output,) = pipe([DOG], candidates=3)
    assert len({output["generated_text"], *(other["generated_text"] for other in output["others"])}) == 3
    with pytest.raises(ConfigError, match="unknown option 'num_beams'"):
        pipe(DOG, num_beams=3)


def test_a_bad_photo_raises_alone_and_has_an_error_among_others(pipe: ImageToTextPipeline, tmp_path: Path):
    absent = str(tmp_path / "absent.jpg")
    with pytest.raises(ImageError, match="does not exist"):
        pipe(absent)
    good, bad = pipe([DOG, absent])
    assert (good["generated_text"], bad["generated_text"]) == (CAPTION, "")
    assert "error" not in good and "does not exist" in bad["error"]


def test_a_captioner_serves_as_model_and_other_tasks_are_refused(pipe: ImageToTextPipeline):
    assert sightline.pipeline(model=pipe.captioner).captioner is pipe.captioner
    with pytest.raises(ConfigError, match=r"'image-to-txt' \(did you mean 'image-to-text'\?\)"):
        sightline.pipeline("image-to-txt")


def test_the_documented_code_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "captioning.md").read_text(encoding="utf-8")
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "pipeline" in code]
    exec(block, {})
    assert capsys.readouterr().out == f"{CAPTION}\n" + f"{CAPTION} {CONFIDENCE} False\n" * 2
    stages = re.search(r"\| transformers \| Sightline \|\n.*?\n\n", page, re.DOTALL)
    assert stages
    names: dict[str, Any] = {"sightline": sightline, "photo": DOG, "name": "default"}
    cells = [line.split(" | ")[1].strip(" |`") for line in stages[0].splitlines()[2:7]]
    for statement in cells[:4]:
        exec(statement, names)
    assert eval(cells[4], names) == [CAPTION]
