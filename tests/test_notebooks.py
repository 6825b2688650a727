"""How objects show themselves to a person at a prompt or in a notebook."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

from default_model import CAPTION, CONFIDENCE, SENTENCE
from PIL import Image

import sightline

DOG = Path(__file__).parents[1] / "examples" / "dog.jpg"


def test_a_caption_of_the_default_model_shows_its_overlay() -> None:
    captioner = sightline.load()
    assert repr(captioner).startswith("Captioner(default: onnxruntime")
    caption = captioner.caption(DOG)
    shown = caption._repr_html_()
    found = re.fullmatch(r'<img alt="([^"]+)" style="[^"]+" src="data:image/jpeg;base64,([^"]+)">', shown)
    assert found is not None
    assert found[1] == SENTENCE
    assert Image.open(io.BytesIO(base64.b64decode(found[2]))).size == caption.overlay().size
    assert repr([caption]) == f"[Caption('{CAPTION}', sure: {CONFIDENCE:.0%} confidence)]"
    text = replace(caption, photo=None, text="a <b> dog")._repr_html_()
    assert text == f"<p>A &lt;b&gt; dog. <small>({caption.certainty()})</small></p>"


def test_an_explanation_shows_its_page_in_a_frame() -> None:
    explanation = sightline.explain.explain(sightline.load(), DOG)
    assert len(repr(explanation)) < 200
    found = re.fullmatch(r'<iframe style="[^"]+" srcdoc="([^"]+)"></iframe>', explanation._repr_html_())
    assert found is not None
    assert unescape(found[1]) == explanation.page()


def test_dir_lists_the_public_names_alone() -> None:
    assert dir(sightline) == sorted([*sightline.__all__, "__version__"])
