"""Confidence that means something: the arithmetic, the file, and the mark on strange photos."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import Command
from made_up import a_dog

import sightline
from foreign import KINDS, pictures
from sightline.engine.confidence import Captions, Confidence, Photos, Words, encode_halves
from sightline.errors import CheckpointError
from sightline.nn.checkpoint import load_checkpoint, save_checkpoint
from sightline.types import LEVELS, Caption, Word

DIMENSION = 32  # of the tiny model's pooled vector


def made(limit: float = 1.0, unsure_below: float = 0.0, dimension: int = DIMENSION) -> Confidence:
    matrix = np.zeros((2, dimension))
    matrix[0, 0], matrix[1, 1] = 2.0, 4.0
    return Confidence(
        words=Words(intercept=0.5, slope=2.0, offsets={"dog": 1.0}, function_words=frozenset({"a"})),
        captions=Captions(intercept=-0.5, words=1.5, log_probability=0.25, unsure_below=unsure_below),
        photos=Photos(
            dimension=dimension,
            directions=2,
            mean=encode_halves(np.full(dimension, 0.5)),
            matrix=encode_halves(matrix),
            limit=limit,
        ),
        record={"data": "made up"},
    )


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


# --- the arithmetic, as docs/confidence.md has it --------------------------------------------------------------------


def test_chances_follow_the_published_formulas() -> None:
    vector = np.full((1, DIMENSION), 0.5)
    vector[0, :3] = [1.0, 0.25, 9.0]  # the third is a direction nobody looks at
    caption = made(limit=2.0).judge([a_dog()], vector)[0]
    dog, barks = sigmoid(0.5 + 2 * 0 + 1.0), sigmoid(0.5 + 2 * math.log(0.2 / 0.8))
    assert [word.confidence for word in caption.words[1:]] == pytest.approx([dog, barks])
    mean = (dog + barks) / 2  # "a" says nothing
    likelihood = (0.9 * 0.5 * 0.2 * 0.8) ** (1 / 4)
    expected = sigmoid(-0.5 + 1.5 * math.log(mean / (1 - mean)) + 0.25 * math.log(likelihood))
    assert caption.confidence == pytest.approx(expected)
    assert caption.ood_score == pytest.approx(math.sqrt(((0.5 * 2) ** 2 + (0.25 * 4) ** 2) / 2) / 2, abs=1e-3)
    assert caption.likelihood == pytest.approx(likelihood), "the model's own number stays at hand"
    assert caption.words[1].probability == 0.5


def test_what_the_photo_shows_moves_the_confidence_of_its_caption_alone() -> None:
    plain = made()
    weights = np.zeros(DIMENSION)
    weights[:2] = [2.0, -0.5]
    captions = plain.captions.model_copy(update={"photo": encode_halves(weights)})
    weighing = plain.model_copy(update={"captions": captions})
    vectors = np.full((2, DIMENSION), 0.5)
    vectors[1, :2] = [1.0, 3.0]
    both = [a_dog(others=(a_dog(text="a cat"),)), a_dog()]
    before, after = plain.judge(both, vectors), weighing.judge(both, vectors)
    logits = [
        [math.log(caption.confidence / (1 - caption.confidence)) for caption in (*judged, judged[0].others[0])]
        for judged in (before, after)
    ]
    assert np.subtract(*logits[::-1]) == pytest.approx([0.75, 0.5, 0.75])
    assert [caption.words for caption in after] == [caption.words for caption in before]
    assert [caption.ood_score for caption in after] == [caption.ood_score for caption in before]


@pytest.mark.parametrize(
    ("limit", "unsure_below", "unsure", "reason"),
    [
        (1.0, 0.0, False, "doubtful: 28% confidence"),
        (0.001, 0.0, True, "unsure: unlike the photos it was trained on"),
        (1.0, 0.5, True, "unsure: 28% confidence"),
    ],
)
def test_a_strange_photo_or_a_doubtful_caption_is_marked(
    limit: float, unsure_below: float, unsure: bool, reason: str
) -> None:
    vector = np.full((1, DIMENSION), 0.51)
    caption = made(limit, unsure_below).judge([a_dog(others=(a_dog(text="a cat"),))], vector)[0]
    assert caption.unsure is unsure
    assert caption.certainty() == reason
    assert caption.sentence() == ("unsure: a dog barks." if unsure else "A dog barks.")
    assert caption.others[0].unsure is unsure, "other candidates are judged, too"
    assert caption.others[0].calibrated is not None
    assert caption.text == "a dog barks", "the bare words stay bare"
    output = caption.as_dict()
    assert (output["caption"], output["calibrated"], output["unsure"]) == ("a dog barks", True, unsure)
    assert set(output["words"][0]) == {"text", "probability", "confidence"}


def test_no_word_of_an_unsure_caption_is_sure() -> None:
    vector = np.full((1, DIMENSION), 0.51)
    sure, unsure = (made(limit).judge([a_dog()], vector)[0] for limit in (1.0, 0.001))
    assert [word.confidence for word in unsure.words] == [word.confidence for word in sure.words], "JSON keeps them"
    assert all(word.level in LEVELS and word.certainty().endswith("% confidence") for word in sure.words)
    assert {(word.level, word.certainty()) for word in unsure.words} == {("unsure", "unsure, as the whole caption is")}


@pytest.mark.parametrize(
    ("confidence", "level"),
    [(1.0, "sure"), (0.8, "sure"), (0.79, "likely"), (0.5, "likely"), (0.49, "doubtful"), (0.0, "doubtful")],
)
def test_a_confidence_has_a_word(confidence: float, level: str) -> None:
    caption = a_dog(calibrated=confidence)
    assert caption.level == level
    assert caption.certainty() == f"{level}: {confidence:.0%} confidence"
    assert replace(caption, unsure=True).level == "unsure"
    assert (a_dog().level, a_dog().words[0].level) == ("", "")


def test_a_caption_nobody_calibrated_is_as_before_and_says_so() -> None:
    caption = a_dog()
    assert caption.confidence == caption.likelihood
    assert caption.words[1].confidence == caption.words[1].probability
    assert (caption.unsure, caption.ood_score) == (False, None)
    assert caption.certainty() == "52% confidence, uncalibrated"
    output = caption.as_dict()
    assert (output["calibrated"], output["unsure"]) == (False, False)
    assert "ood_score" not in output
    assert set(output["words"][0]) == {"text", "probability"}


def test_captions_without_words_or_content_have_a_chance() -> None:
    vector = np.full((2, DIMENSION), 0.5)
    nothing, only_a = made().judge([Caption("", (), -1.0), Caption("a", (Word("a", 0.9),), -1.0)], vector)
    assert 0 < nothing.confidence < only_a.confidence < 1


def test_extreme_numbers_stay_between_0_and_1() -> None:
    words = (Word("dog", 0.0), Word("cat", 1.0))
    caption = made().judge([a_dog(words=words, score=-1e6)], np.full((1, DIMENSION), 60000.0))[0]
    assert all(0 < word.confidence < 1 for word in caption.words)
    assert 0 < caption.confidence < 1
    assert caption.unsure


# --- text for people and for pages ----------------------------------------------------------------------------------


def test_alt_text_is_one_escaped_line_of_bearable_length() -> None:
    assert a_dog().alt() == "A dog barks."
    assert a_dog(unsure=True).alt() == ""
    assert a_dog(unsure=True).alt(include_unsure=True) == "A dog barks."
    assert a_dog(text='a "dog" & a <cat>\n at home').alt() == "A &quot;dog&quot; &amp; a &lt;cat&gt; at home."
    long = a_dog(text="a dog " + "and another dog " * 20).alt()
    assert len(long) <= 125
    assert long.endswith(("dog…", "and…", "another…"))
    assert a_dog(text="").alt() == ""


# --- the file -------------------------------------------------------------------------------------------------------


def test_the_file_holds_everything_and_gives_it_back() -> None:
    confidence = made(limit=1.5, unsure_below=0.1)
    text = json.dumps(confidence.to_json())
    assert Confidence.from_json(json.loads(text), DIMENSION) == confidence
    photos = json.loads(text)["photos"]
    mean = np.frombuffer(base64.b64decode(photos["mean"]), dtype="<f2")  # as docs/confidence.md says
    assert mean.tolist() == [0.5] * DIMENSION


def test_one_dimension_is_enough() -> None:
    one = encode_halves(np.ones(1))
    photos = Photos(dimension=1, directions=1, mean=one, matrix=one, limit=0.5)
    assert photos.ood_score(np.array([[1.0], [3.0]])).tolist() == [0, 4]


def _set(key: str, value: object):
    def change(data: dict) -> None:
        *path, last = key.split(".")
        for part in path:
            data = data[part]
        data[last] = value

    return change


@pytest.mark.parametrize(
    "spoil",
    [
        _set("format", "sightline-confidence-9"),
        _set("words.slope", "steep"),
        _set("words.slope", float("nan")),
        _set("words.more", 1),
        _set("captions.unsure_below", 2),
        _set("photos.limit", 0),
        _set("photos.directions", 3),
        _set("photos.mean", "not base64!"),
        _set("photos.mean", base64.b64encode(b"\x00\x7c" * DIMENSION).decode()),
        _set("photos.dimension", 10**9),
        _set("captions.photo", encode_halves(np.zeros(DIMENSION + 1))),
    ],
    ids=["format", "text", "nan", "extra", "range", "limit", "shape", "base64", "infinite", "huge", "weights"],
)
def test_a_damaged_file_is_one_line(spoil) -> None:
    data = made().to_json()
    spoil(data)
    with pytest.raises(CheckpointError, match=r"confidence\.json is damaged") as raised:
        Confidence.from_json(data)
    assert "\n" not in str(raised.value)


def test_another_models_file_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    made(dimension=16).save(folder)
    with pytest.raises(CheckpointError, match="of a model with 16 features, this one has 32"):
        sightline.load(folder)


@pytest.fixture
def calibrated(tiny_model: Path, tmp_path: Path) -> Path:
    folder = shutil.copytree(tiny_model, tmp_path / "calibrated")
    made(limit=1e-6).save(folder)
    return folder


def test_it_belongs_to_the_model_folder(calibrated: Path, tiny_model: Path) -> None:
    """Read with the model, and gone when other weights are saved to the folder."""
    assert sightline.load(calibrated).confidence == made(limit=1e-6)
    save_checkpoint(calibrated, load_checkpoint(tiny_model))
    assert not (calibrated / "confidence.json").exists()
    assert sightline.load(calibrated).confidence is None


def test_every_caption_of_a_calibrated_model_is_judged(calibrated: Path, tiny_model: Path) -> None:
    from PIL import Image

    photo = Image.new("RGB", (40, 40), "red")
    caption = sightline.load(calibrated).caption(photo, beam=3, candidates=3)
    assert caption.unsure
    assert caption.sentence().startswith("unsure: ")
    assert [other.calibrated is None for other in caption.others] == [False, False]
    assert caption.text == sightline.load(tiny_model).caption(photo, beam=3).text


def test_an_ensemble_marks_photos_that_are_unlike_those_of_any_of_its_models(
    calibrated: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """Its probabilities are not those that its models were calibrated with."""
    from PIL import Image

    photo = Image.new("RGB", (40, 40), "red")
    familiar = shutil.copytree(tiny_model, tmp_path / "familiar")
    made(limit=100.0, unsure_below=1.0).save(familiar)
    for folders, unsure in (((familiar, calibrated, tiny_model), True), ((familiar, familiar), False)):
        caption = sightline.load(*folders).caption(photo, candidates=2)
        scores = [sightline.load(folder).caption(photo).ood_score or 0.0 for folder in folders]
        assert (caption.calibrated, caption.unsure, caption.others[0].unsure) == (None, unsure, unsure)
        assert caption.ood_score == pytest.approx(max(scores))
    assert sightline.load(tiny_model, tiny_model).caption(photo).ood_score is None


@pytest.mark.parametrize("verb", ["caption", "bulk", "explain"])
def test_several_models_and_a_datastore_say_once_that_confidence_is_uncalibrated(
    verb: str, calibrated: Path, tiny_model: Path, tmp_path: Path, command: Command
) -> None:
    from PIL import Image

    from sightline.engine.retrieval import Datastore

    photo, datastore = tmp_path / "photo.png", tmp_path / "datastore"
    Image.new("RGB", (40, 40), "red").save(photo)
    one = sightline.load(calibrated)
    vector = np.ones((1, one.backends[0].dimension), np.float32)
    Datastore.of(one.signatures()[0], ["a"], [["a red square"]], vector).with_weight(0.5).save(datastore)

    def complaints(*models: Path, more: Sequence[str | Path] = ()) -> list[str]:
        target = tmp_path / f"{len(list(tmp_path.iterdir()))}.{'png' if verb == 'explain' else 'csv'}"
        outcome = command(verb, photo, "-o", target, *(part for model in models for part in ("--model", model)), *more)
        assert outcome.code == 0, outcome.err
        return [line for line in outcome.complaints if "uncalibrated" in line]

    said = "several models: confidence is uncalibrated, and {} marked unsure"
    only = "only photos unlike the training photos are"
    assert complaints(tiny_model, calibrated) == [said.format(only)]
    assert complaints(tiny_model, tiny_model) == [said.format("no photo is")]
    with_datastore = complaints(calibrated, more=["--datastore", datastore])
    assert with_datastore == [said.format(only).replace("several models", "with a datastore")]
    assert complaints(calibrated) == complaints(tiny_model) == []


def test_explanations_and_answers_over_http_carry_the_mark(calibrated: Path, tmp_path: Path) -> None:
    from PIL import Image

    from sightline.explain import explain

    photo = tmp_path / "photo.png"
    Image.new("RGB", (40, 40), "red").save(photo)
    explanation = explain(sightline.load(calibrated), photo)
    page = explanation.page()
    assert "unsure: </span><button" in page
    assert "unsure: unlike the photos it was trained on" in page
    words = len(explanation.caption.words)
    assert page.count('data-level="unsure">unsure, as the whole caption is</span>') == words, "no word is sure"
    assert page.count("--share:0.000") == words, "nor has a line below it"
    caption = explanation.caption
    shown, other = (
        replace(caption, words=tuple(replace(word, calibrated=value) for word in caption.words)).overlay()
        for value in (0.2, 0.9)
    )
    assert shown.tobytes() == other.tobytes(), "the picture has no number, either"
    explanation.save(tmp_path / "explained.png")
    pytest.importorskip("fastapi")
    from sightline.serve.schemas import CaptionOut, ExplanationOut

    output = ExplanationOut.model_validate(explanation.as_dict())
    assert (output.unsure, output.calibrated, output.sentence[:8]) == (True, True, "unsure: ")
    assert output.certainty.startswith("unsure: unlike the photos it was trained on")
    plain = explanation.caption.as_dict()
    assert CaptionOut.model_validate(plain).model_dump(exclude_none=True) == plain, "the published form has every field"


def test_every_kind_of_output_tells_why_a_caption_is_unsure(
    calibrated: Path, photos: list[Path], tmp_path: Path, command: Command
) -> None:
    chosen = [*photos[:3], "--model", calibrated]
    output = json.loads(command("caption", *chosen, "--json").out)
    expected = [(one["source"], one["unsure"], one["ood_score"]) for one in output]
    assert all(unsure and ood_score > 1 for _, unsure, ood_score in expected)
    tables = [csv.DictReader(io.StringIO(command("caption", *chosen, "--csv").out))]
    assert command("bulk", *chosen, "-o", tmp_path / "table.csv", "--workers", 0).code == 0
    tables.append(csv.DictReader((tmp_path / "table.csv").open()))
    for table in tables:
        assert [(row["source"], row["unsure"] == "true", float(row["ood_score"])) for row in table] == expected
    assert command("bulk", *chosen, "-o", tmp_path / "table.jsonl", "--workers", 0).code == 0
    rows = [json.loads(line) for line in (tmp_path / "table.jsonl").read_text().splitlines()]
    assert [(row["source"], row["unsure"], row["ood_score"]) for row in rows] == expected
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs it: pip install pyarrow")
    assert command("bulk", *chosen, "-o", tmp_path / "table.parquet", "--workers", 0).code == 0
    rows = parquet.read_table(tmp_path / "table.parquet").to_pylist()
    assert [(row["source"], row["unsure"]) for row in rows] == [row[:2] for row in expected]
    assert [row["ood_score"] for row in rows] == pytest.approx([row[2] for row in expected])


# --- strange pictures -----------------------------------------------------------------------------------------------


def test_foreign_pictures_are_the_same_every_time_and_differ_by_seed() -> None:
    first, again, other = list(pictures(1)), list(pictures(1)), list(pictures(1, seed=2))
    assert [kind for kind, _ in first] == list(KINDS)
    assert [image.tobytes() for _, image in first] == [image.tobytes() for _, image in again]
    assert not {image.tobytes() for _, image in first} & {image.tobytes() for _, image in other}
    assert all(image.mode == "RGB" for _, image in first)


def test_the_model_in_the_box_is_unsure_of_what_is_no_photo() -> None:
    captioner = sightline.load()
    if captioner.confidence is None:
        pytest.skip("the shipped model is not calibrated: run `sightline calibrate default --data flickr8k/`")
    strange = list(pictures(1, seed=2))
    captions = captioner.caption([image for _, image in strange])
    caught = [kind for (kind, _), caption in zip(strange, captions) if caption.unsure]
    assert len(caught) >= len(strange) - 1, f"of {len(strange)} only {caught}"
    dog = captioner.caption(Path(__file__).parents[1] / "examples" / "dog.jpg")
    assert not dog.unsure
    assert 0.2 < dog.confidence < 1
