"""Explanations as files: the page, which asks nothing of the network, and the command that writes it or a picture."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from explaining import KINDS, caption, checkpoint, peaked, photo
from PIL import Image, ImageDraw

from sightline.cli import run
from sightline.engine.captioner import Captioner
from sightline.engine.torch_backend import TorchBackend
from sightline.errors import ImageError
from sightline.explain import Explanation, explain
from sightline.explain.explanation import ALIKE, LITTLE, REASONS, UNNEEDED
from sightline.explain.heatmap import HIGHEST, overlay, scaled
from sightline.explain.picture import WIDTH
from sightline.nn.checkpoint import save_checkpoint
from sightline.types import Caption, Word

# The page


class Page(HTMLParser):
    """Buttons that are words, every address, and the script's data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.views: list[int] = []
        self.addresses: list[str] = []
        self.data = ""
        self.tags: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.addresses += [str(given[name]) for name in ("src", "href", "action", "srcset") if name in given]
        is_word = tag == "button" and "word" in str(given.get("class")).split()
        self._inside = "word" if is_word else str(given.get("id"))
        if self._inside == "word":
            self.words.append("")
        if "data-view" in given:
            self.views.append(int(str(given["data-view"])))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, text: str) -> None:
        if self._inside == "word":
            self.words[-1] += text
        elif self._inside == "data":
            self.data += text


@pytest.mark.parametrize("kind", KINDS)
def test_each_word_is_one_button(kind: str) -> None:
    explanation = explain(Captioner([TorchBackend(checkpoint(kind))]), photo())
    page = Page(explanation.page())
    assert page.words == [word.text for word in explanation.caption.words]


@pytest.mark.parametrize("texts", [("dog",), ("a", "black", "dog")])
def test_the_full_stop_stays_with_the_last_word(texts: tuple[str, ...]) -> None:
    text = Explanation(caption(*texts), "attention").page()
    (last,) = re.findall(r'<span class="last"><button [^>]*>(\w+)</button>\.</span></h1>', text)
    assert last == texts[-1]
    assert ".last { white-space: nowrap; }" in text


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_asks_nothing_of_the_network(kind: str) -> None:
    text = explain(Captioner([TorchBackend(checkpoint(kind))]), photo()).page()
    assert all(address.startswith("data:") for address in Page(text).addresses)
    assert not re.search(r"https?:|//\w+\.|@import|url\(|fetch\(|XMLHttpRequest", re.sub(r"base64,[^\"]+", "", text))
    assert "default-src 'none'" in text


def test_the_page_holds_the_photo_and_every_view() -> None:
    explanation = explain(Captioner([TorchBackend(checkpoint("transformer"))]), photo())
    page = Page(explanation.page())
    data = json.loads(page.data)
    assert page.views == list(range(1 + 3 * (1 + 2)))  # all, then each layer and its heads
    assert len(data["views"]) == len(page.views)
    maps = np.frombuffer(base64.b64decode(data["views"][0]), np.uint8).reshape(-1, 4, 4)
    heat_maps = scaled([word.attention for word in explanation.caption.words])
    assert maps / 255 * HIGHEST == pytest.approx(heat_maps, abs=HIGHEST / 255)
    (picture,) = [address for address in page.addresses if address.startswith("data:image/jpeg")]
    assert base64.b64decode(picture.partition(",")[2]).startswith(b"\xff\xd8")


def test_everything_from_outside_is_escaped() -> None:
    evil = "</script><script>alert(1)</script>&\"'"
    other = Caption(evil, (), -1.0)
    word = Word(evil, 0.5, peaked(), 0.25, ((evil, 0.1),))
    shown = Caption(evil, (word,), -1.0, source=f"folder/{evil.replace('/', '')}.jpg", others=(other,), photo=photo())
    text = Explanation(shown, "attention").page()
    assert "alert(1)</script>" not in text and "<script>alert" not in text
    page = Page(text)
    assert page.words == [evil]
    assert page.tags.count("script") == 2
    assert "gate β 0.25" in text


def test_the_page_shows_probabilities_alternatives_and_other_captions() -> None:
    explanation = explain(Captioner([TorchBackend(checkpoint("soft"))]), photo())
    text = explanation.page()
    for word in explanation.caption.words:
        assert f'<span class="number">{word.probability:.0%}</span>' in text
        assert f"gate β {word.gate:.2f}" in text
    assert text.count("Probability as the next word") == len(explanation.caption.words)
    assert "Confidence is another number" not in text  # of a model that is not calibrated
    assert all(other.sentence() in text for other in explanation.caption.others)
    assert f"{explanation.caption.confidence:.0%} confidence" in text


def test_one_probability_for_a_word_and_its_alternatives_in_the_order_of_the_numbers() -> None:
    """The chosen word is among them wherever its number stands; below 1% only the chosen one is shown.

    The word's level has the number that it was made from, since “sure” beside 30% contradicts itself.
    """
    first = Word("dog", 0.3, peaked(), calibrated=0.93, alternatives=(("cat", 0.4), ("cow", 0.1), ("emu", 0.009)))
    second = Word("runs", 0.004, peaked(), calibrated=0.4, alternatives=(("<end>", 0.9),))
    others = (Caption("a cow", (), -1.0, calibrated=0.2), Caption("a cat", (), -2.0, calibrated=0.7))
    shown = Caption("dog runs", (first, second), -1.0, photo=photo(), calibrated=0.71, others=others)
    text = Explanation(shown, "attention").page()
    rows = re.findall(r"<li( class=chosen)?><span>([^<]+)</span>.*?<span class=\"number\">([^<]+)</span>", text)
    assert rows == [
        ("", "A cat.", "70%"), ("", "A cow.", "20%"),
        ("", "cat", "40%"), (" class=chosen", "dog", "30%"), ("", "cow", "10%"),
        ("", "(the end)", "90%"), (" class=chosen", "runs", "&lt;1%"),
    ]  # fmt: skip
    levels = re.findall(r'class="level" data-level="(\w+)">([^<]+)<', text)
    assert levels == [("sure", "sure: 93% confidence"), ("doubtful", "doubtful: 40% confidence")]
    assert 'data-level="likely"' in text and "likely: 71% confidence" in text
    assert "about 71 are right on photos like those the model was trained on, fewer on others." in text
    assert text.count("The model’s own probabilities, given the words before.") == 2
    assert text.count("Confidence is another number") == 2


def test_what_attention_shows_is_not_called_the_origin_of_a_word() -> None:
    for method in ("attention", "occlusion"):
        assert "came from" not in Explanation(caption("dog"), method).page()
    assert "attended to while writing" in Explanation(caption("dog"), "attention").page()


def test_a_dark_occlusion_map_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "dog" has a bright cell; hiding no part changes "runs", "is" and "a" little, "the" as much wherever it hides."""
    faint = 0.05 * peaked()
    words = (
        Word("dog", 0.9, peaked()),
        Word("runs", 0.9, np.full((7, 7), 0.001)),
        Word("is", 0.9, faint),
        Word("a", 0.9, faint),
        Word("the", 0.9, np.full((7, 7), 0.3)),
    )
    shown = Caption("dog runs is a the", words, -1.0, photo=Image.new("RGB", (140, 70), "white"))
    occluded, attended = (Explanation(shown, method) for method in ("occlusion", "attention"))
    assert occluded.dark == ("", UNNEEDED, LITTLE, LITTLE, ALIKE)
    assert attended.dark == ("",) * 5
    assert occluded.note() == (
        "“runs” has a dark map: hiding no part of the photo makes it less likely, as the rest of it and the words "
        "before are enough; “is”, “a” have dark maps: hiding parts of the photo changes them little, compared with the "
        "other words; “the” has a dark map: hiding any part of the photo changes it alike"
    )
    assert attended.note() == ""
    panels = re.findall(r"<h2>(\w+)</h2>(.*?)</section>", occluded.page())
    for (_, panel), own in zip(panels, occluded.dark, strict=True):
        assert [reason for reason, (sentence, _) in REASONS.items() if sentence in panel] == [own] * bool(own)
    assert not any(sentence in attended.page() for sentence, _ in REASONS.values())
    written: list[str] = []
    monkeypatch.setattr(ImageDraw.ImageDraw, "text", lambda self, corner, text, *rest: written.append(text))
    for paper in (False, True):
        occluded.picture(paper)
        assert [text for text in written if text in REASONS] == [UNNEEDED, LITTLE, LITTLE, ALIKE]
        written.clear()
    attended.picture()
    assert not set(written) & set(REASONS)


def test_the_maps_that_look_black_are_those_that_say_why() -> None:
    """Drawn on a white photo, with falls from nothing to the strongest."""
    words = tuple(Word("dog", 0.9, share * peaked()) for share in np.linspace(0, 4, 60))
    shown = Caption("dog " * 60, words, -1.0, photo=Image.new("RGB", (140, 70), "white"))
    grids = scaled([word.attention for word in words])
    brightest = np.array([np.asarray(overlay(shown.photo, grid)).max() for grid in grids])
    says_why = np.array([bool(reason) for reason in Explanation(shown, "occlusion").dark])
    assert 0 < says_why.sum() < 60
    assert brightest[says_why].max() < brightest[~says_why].min()
    assert 130 < brightest[says_why].max() < 160, "of 97 where there is no heat, and 255"


# Files and the command line


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_checkpoint(folder, checkpoint("transformer"))
    return folder


def test_a_photo_that_cannot_be_read_is_one_clear_line() -> None:
    with pytest.raises(ImageError, match=r"absent\.jpg does not exist"):
        explain(Captioner([TorchBackend(checkpoint("soft"))]), "absent.jpg")


@pytest.mark.parametrize("name", ["dog.png", "dog.HTML"])
def test_the_command_writes_the_file_and_says_so(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "a photo.png", tmp_path / "new" / name
    photo().save(source)
    assert run(["explain", str(source), "-o", str(target), "--model", str(folder), "--beam", "2"]) == 0
    sentence, where = capsys.readouterr().out.splitlines()
    assert sentence.endswith(".") and sentence[0].isupper()
    assert where == f"written to {target}"
    if name.endswith("png"):
        with Image.open(target) as picture:
            assert picture.format == "PNG" and picture.width == WIDTH
    else:
        assert "a photo.png" in target.read_text(encoding="utf-8")
        assert str(tmp_path) not in target.read_text(encoding="utf-8")
    assert [path.name for path in target.parent.iterdir()] == [name]


def test_maps_of_occlusion_that_were_not_asked_for_are_named_in_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo().save(tmp_path / "dog.png")
    blind = tmp_path / "blind"
    save_checkpoint(blind, checkpoint("lstm"))
    several = ["these models have no common attention map: the maps show occlusion, as with --occlusion"]
    alone = ["this model has no attention: the maps show occlusion, as with --occlusion"]
    for models, options, said in (
        ([folder, blind], [], several),
        ([blind], [], alone),
        ([folder, folder], [], []),
        ([blind], ["--occlusion"], []),
    ):
        named = [part for model in models for part in ("--model", str(model))]
        assert run(["explain", str(tmp_path / "dog.png"), "-o", str(tmp_path / "dog.html"), *named, *options]) == 0
        assert [line for line in capsys.readouterr().err.splitlines() if "--occlusion" in line] == said


def test_without_a_name_a_page_is_written_here(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    photo().save("dog.png")
    assert run(["explain", "dog.png", "--model", str(folder), "--candidates", "4"]) == 0
    text = Path("dog-explained.html").read_text(encoding="utf-8")
    assert text.count("<li>") >= 3


@pytest.mark.parametrize("name", ["dog.html", "dog.png"])
def test_a_page_that_is_replaced_is_kept(
    folder: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    photo().save("photo.png")
    Path(name).write_text("mine")
    for _ in range(2):  # the second time it does not change
        assert run(["explain", "photo.png", "-o", name, "--model", str(folder)]) == 0
    assert Path(f"{name}.bak").read_text() == "mine" and not Path(f"{name}.bak2").exists()
    assert capsys.readouterr().err.count(f"the earlier {name} is kept as {name}.bak") == 1


def test_a_photo_from_standard_input(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    photo().save("dog.png")
    for name, code, words in (
        ("dog.png", 0, "written to photo-explained.html"),
        ("words", 1, "error: standard input is not an image"),
        ("empty", 1, "error: standard input is empty: give a photo, as in"),
    ):
        Path(name).touch() if name == "empty" else Path(name).write_text("words") if name == "words" else None
        with Path(name).open("rb") as file, monkeypatch.context() as patch:
            patch.setattr("sys.stdin", file)
            assert run(["explain", "-", "--model", str(folder)]) == code
        printed = capsys.readouterr()
        assert words in printed.out + printed.err
    assert "<html" in Path("photo-explained.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["dog.png", "-o", "dog.gif"], 2, "neither a picture nor a page"),
        (["dog.png", "-o", "./dog.png"], 2, "is the photo itself"),
        (["http://a.b/dog.png"], 2, "web address"),
        (["absent.png"], 1, "absent.png does not exist"),
        (["text.png"], 1, "is not an image"),
        (["dog.png", "--beam", "0"], 2, "beam is 0"),
        (["dog.png", "-o", "dog.png/x.png"], 1, "cannot write"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str],
    code: int,
    message: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    photo().save("dog.png")
    Path("text.png").write_text("hello")
    assert run(["explain", *arguments, "--model", str(folder)]) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert message in output.err and len(output.err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dog.png", "text.png"]
