"""Confidence that means something: the arithmetic, the file, the fit on dev, and the mark on strange photos."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

import sightline
from foreign import KINDS, pictures
from sightline import calibration
from sightline.calibration import Observed, Statistics, check, fit, grouped_logistic, logistic, reliability, used
from sightline.checkpoint import load_checkpoint, save_checkpoint, save_confidence
from sightline.confidence import Captions, Confidence, Photos, Words, encode_halves
from sightline.errors import CheckpointError, ConfigError, DataError
from sightline.types import Caption, Word

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


def a_dog(**changes) -> Caption:
    words = (Word("a", 0.9), Word("dog", 0.5), Word("barks", 0.2))
    return Caption(**{"text": "a dog barks", "words": words, "score": math.log(0.9 * 0.5 * 0.2 * 0.8)} | changes)


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
    assert caption.strangeness == pytest.approx(math.sqrt(((0.5 * 2) ** 2 + (0.25 * 4) ** 2) / 2) / 2, abs=1e-3)
    assert caption.likelihood == pytest.approx(likelihood), "the model's own number stays at hand"
    assert caption.words[1].probability == 0.5


@pytest.mark.parametrize(
    ("limit", "unsure_below", "unsure", "reason"),
    [
        (1.0, 0.0, False, "28% confidence"),
        (0.001, 0.0, True, "unsure: unlike the photos it learnt from"),
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
    told = caption.as_dict()
    assert (told["caption"], told["calibrated"], told["unsure"]) == ("a dog barks", True, unsure)
    assert set(told["words"][0]) == {"text", "probability", "confidence"}


def test_a_caption_nobody_calibrated_is_as_before_and_says_so() -> None:
    caption = a_dog()
    assert caption.confidence == caption.likelihood
    assert caption.words[1].confidence == caption.words[1].probability
    assert (caption.unsure, caption.strangeness) == (False, None)
    assert caption.certainty() == "52% confidence, uncalibrated"
    told = caption.as_dict()
    assert (told["calibrated"], told["unsure"]) == (False, False)
    assert "strangeness" not in told
    assert set(told["words"][0]) == {"text", "probability"}


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
    assert a_dog(unsure=True).alt() == "unsure: a dog barks."
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


def _set(place: str, value: object):
    def change(data: dict) -> None:
        *path, last = place.split(".")
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
    ],
    ids=["format", "text", "nan", "extra", "range", "limit", "shape", "base64", "infinite", "huge"],
)
def test_a_damaged_file_is_one_line(spoil) -> None:
    data = made().to_json()
    spoil(data)
    with pytest.raises(CheckpointError, match=r"confidence\.json is damaged") as told:
        Confidence.from_json(data)
    assert "\n" not in str(told.value)


def test_another_models_file_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    save_confidence(folder, made(dimension=16))
    with pytest.raises(CheckpointError, match="of a model with 16 features, this one has 32"):
        load_checkpoint(folder)


@pytest.fixture
def calibrated(tiny_model: Path, tmp_path: Path) -> Path:
    folder = shutil.copytree(tiny_model, tmp_path / "calibrated")
    save_confidence(folder, made(limit=1e-6))
    return folder


def test_it_belongs_to_the_model_folder(calibrated: Path, tiny_model: Path, tmp_path: Path) -> None:
    """Saved along, and gone when other weights take the folder."""
    checkpoint = load_checkpoint(calibrated)
    assert checkpoint.confidence == made(limit=1e-6)
    save_checkpoint(tmp_path / "copy", checkpoint, half=True)
    assert load_checkpoint(tmp_path / "copy").confidence == made(limit=1e-6)
    save_checkpoint(calibrated, load_checkpoint(tiny_model))
    assert not (calibrated / "confidence.json").exists()
    assert load_checkpoint(calibrated).confidence is None


def test_every_caption_of_a_calibrated_model_is_judged(calibrated: Path, tiny_model: Path) -> None:
    from PIL import Image

    photo = Image.new("RGB", (40, 40), "red")
    caption = sightline.load(calibrated).caption(photo, beam=3, candidates=3)
    assert caption.unsure
    assert caption.sentence().startswith("unsure: ")
    assert [other.calibrated is None for other in caption.others] == [False, False]
    assert caption.text == sightline.load(tiny_model).caption(photo, beam=3).text
    ensemble = sightline.load(calibrated, calibrated).caption(photo)
    assert (ensemble.calibrated, ensemble.unsure) == (None, False), "an ensemble has other chances"


def test_explanations_and_answers_over_http_carry_the_mark(calibrated: Path, tmp_path: Path) -> None:
    from PIL import Image

    from sightline.explain import explain

    photo = tmp_path / "photo.png"
    Image.new("RGB", (40, 40), "red").save(photo)
    explanation = explain(sightline.load(calibrated), photo)
    page = explanation.page()
    assert "unsure: <button" in page
    assert "unsure: unlike the photos it learnt from" in page
    assert "% confidence</p>" in page, "each word has its own"
    explanation.save(tmp_path / "explained.png")
    pytest.importorskip("fastapi")
    from sightline.serve.describing import Description, as_explanation
    from sightline.serve.schemas import CaptionOut, ExplanationOut

    answer = as_explanation(Description(explanation.caption, "attention", (0, 0, 1, 1)))
    told = ExplanationOut.model_validate(answer)
    assert (told.unsure, told.calibrated, told.sentence[:8]) == (True, True, "unsure: ")
    assert told.certainty.startswith("unsure: unlike the photos it learnt from")
    plain = explanation.caption.as_dict()
    assert CaptionOut.model_validate(plain).model_dump(exclude_none=True) == plain, "the published form has every field"


def test_every_kind_of_output_tells_why_a_caption_is_unsure(
    calibrated: Path, sketches: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    photos = sorted(sketches.glob("*.png"))[:3]
    _, out, _ = run(capfd, "caption", *photos, "--model", calibrated, "--json")
    expected = [(one["source"], one["unsure"], one["strangeness"]) for one in json.loads(out)]
    assert all(unsure and strangeness > 1 for _, unsure, strangeness in expected)
    _, out, _ = run(capfd, "caption", *photos, "--model", calibrated, "--csv")
    for name in ("table.csv", "table.jsonl", "table.parquet"):
        if name.endswith("parquet"):
            pytest.importorskip("pyarrow", reason="Parquet needs it: pip install pyarrow")
        code, _, _ = run(capfd, "caption", *photos, "--model", calibrated, "-o", tmp_path / name, "--workers", 0)
        assert code == 0
    for table in (io.StringIO(out), (tmp_path / "table.csv").open()):
        rows = [(row["source"], row["unsure"] == "true", float(row["strangeness"])) for row in csv.DictReader(table)]
        assert rows == expected
    rows = [json.loads(line) for line in (tmp_path / "table.jsonl").read_text().splitlines()]
    assert [(row["source"], row["unsure"], row["strangeness"]) for row in rows] == expected
    if (tmp_path / "table.parquet").exists():
        from pyarrow import parquet

        rows = parquet.read_table(tmp_path / "table.parquet").to_pylist()
        assert [(row["source"], row["unsure"]) for row in rows] == [row[:2] for row in expected]
        assert [row["strangeness"] for row in rows] == pytest.approx([row[2] for row in expected])


# --- the fit ---------------------------------------------------------------------------------------------------------


def test_a_word_is_right_if_somebody_used_it_in_any_form() -> None:
    people = ["A man's dog is running !", "Two boys , smiling"]
    words = ("a", "man", "dogs", "runs", "boy's", "smile", "cat", "tri-colored", "…")
    caption = Caption("", tuple(Word(text, 0.5) for text in words), -1.0)
    assert used(caption, people) == (True, True, True, True, True, True, False, False, None)


def test_a_caption_is_right_if_two_thirds_of_its_content_words_are() -> None:
    def right(words: str, hits: str) -> bool:
        caption = Caption(words, tuple(Word(text, 0.5) for text in words.split()), -1.0)
        return Observed(np.zeros(1), caption, tuple(hit == "+" for hit in hits)).right

    assert right("a dog runs home", "-++-")
    assert not right("a dog runs home", "++--")
    assert right("on the", "++"), "where no word has content, all count"
    assert not right("", "")


def test_reliability_by_hand() -> None:
    found = reliability([(0.05, False), (0.95, True), (0.95, False), (1.0, True)])
    assert found["bins"] == [[1, 0.05, 0.0], [3, 0.9667, 0.6667]]
    assert found["ece"] == pytest.approx((0.05 + 3 * 0.3) / 4, abs=1e-4)
    assert found["brier"] == pytest.approx((0.05**2 + 0.05**2 + 0.95**2) / 4, abs=1e-4)
    assert reliability([])["count"] == 0


def test_offsets_for_groups_are_a_regression_on_their_indicators() -> None:
    dice = np.random.default_rng(0)
    which = dice.integers(0, 4, 300)
    design = np.stack([np.ones(300), dice.normal(size=300)], 1)
    hits = (dice.random(300) < 1 / (1 + np.exp(-(design[:, 1] + which - 1.5)))).astype(float)
    weights, offsets = grouped_logistic(design, hits, which, 4)
    everything = np.concatenate([design, np.eye(4)[which]], 1)
    plain = logistic(everything, hits, np.array([1e-3, 1e-3, *[calibration.RIDGE] * 4]))
    assert np.concatenate([weights, offsets]) == pytest.approx(plain, abs=1e-5)


def test_a_regression_on_one_sided_answers_stays_finite() -> None:
    design = np.stack([np.ones(30), np.linspace(-9, 9, 30)], 1)
    assert np.isfinite(logistic(design, np.ones(30), np.array([1e-3, 0.1]))).all()
    assert np.isfinite(np.concatenate(grouped_logistic(design, np.zeros(30), np.zeros(30, int), 1))).all()


VOCABULARY = {"dog": 0.9, "shirt": 0.3, "man": 0.6, "snow": 0.8, "bench": 0.15, "red": 0.5}


def made_world(photos: int, seed: int = 0, features: int = 20) -> tuple[list[Observed], np.ndarray]:
    """A model that is far too sure of all words, more so of some; photos that vary along 15 of 20 directions."""
    dice = np.random.default_rng(seed)
    scale = np.array([5.0] * 15 + [0.1] * 5)
    observed = []
    for _ in range(photos):
        names = dice.choice(list(VOCABULARY), 5, replace=False)
        truth = np.clip([VOCABULARY[name] + dice.normal(0, 0.15) for name in names], 0.02, 0.98)
        told = [1 / (1 + math.exp(-(math.log(true / (1 - true)) + 2))) for true in truth]
        words = tuple(Word(str(name), chance) for name, chance in zip(names, told))
        caption = Caption(" ".join(names), words, float(np.log(told).sum()))
        observed.append(Observed(dice.normal(size=features) * scale, caption, tuple(dice.random(5) < truth)))
    return observed, dice.normal(size=(500, features)) * scale


def test_the_fit_holds_on_photos_it_has_not_seen() -> None:
    observed, train = made_world(800)
    found = check(observed, Statistics.of(train))
    for name in ("words", "content_words", "captions"):
        before, after = found[name]["before"]["ece"], found[name]["after"]["ece"]
        assert after < min(0.06, before / 3), name
        assert found[name]["after"]["brier"] < found[name]["before"]["brier"]
    assert found["words"]["after"]["count"] == 4000
    assert 0.02 < found["marked"] < 0.08
    fresh, _ = made_world(400, seed=1)
    confidence = fit(observed, Statistics.of(train))
    judged = confidence.judge([one.caption for one in fresh], np.stack([one.pooled for one in fresh]))
    pairs = [
        (word.confidence, hit) for caption, one in zip(judged, fresh) for word, hit in zip(caption.words, one.used)
    ]
    assert reliability(pairs)["ece"] < 0.04
    assert np.mean([caption.unsure for caption in judged]) < 0.08


def test_the_check_judges_no_photo_by_itself() -> None:
    """Words that occur once have offsets learnt by heart: judged on themselves they would look right every time."""
    dice = np.random.default_rng(0)
    observed = [
        Observed(dice.normal(size=4), Caption(f"w{n}", (Word(f"w{n}", 0.5),), -1.0), (bool(dice.random() < 0.5),))
        for n in range(200)
    ]
    statistics = Statistics.of(dice.normal(size=(50, 4)))
    honest = check(observed, statistics)["words"]["after"]["brier"]
    whole = fit(observed, statistics)
    judged = whole.judge([one.caption for one in observed], np.stack([one.pooled for one in observed]))
    itself = reliability([(caption.words[0].confidence, one.used[0]) for caption, one in zip(judged, observed)])
    assert itself["brier"] < 0.24
    assert honest > 0.245


def test_what_leaves_the_narrow_directions_is_strange() -> None:
    observed, train = made_world(300)
    photos = Statistics.of(train).photos(observed)
    assert photos.directions == 4
    usual = photos.strangeness(np.stack([one.pooled for one in observed]))
    assert np.mean(usual > 1) == pytest.approx(calibration.STRANGE, abs=0.01)
    large = np.zeros((1, 20))
    large[0, 0] = 30.0  # far, but where photos do differ
    odd = np.zeros((1, 20))
    odd[0, 15:] = 0.5  # near, but where none does
    assert photos.strangeness(large)[0] < 1 < photos.strangeness(odd)[0]


def test_features_that_never_change_do_not_break_the_statistics() -> None:
    train = np.random.default_rng(0).normal(size=(60, 10))
    train[:, 3:] = 1.0
    photos = Statistics.of(train).photos([Observed(row, a_dog(), (True, True, True)) for row in train])
    assert np.isfinite(photos.strangeness(train)).all()
    changed = train[:1].copy()
    changed[0, 3:] = 2.0
    assert photos.strangeness(changed)[0] > 1


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def sketches(tmp_path: Path) -> Path:
    """A folder of 60 small drawings with captions, a third of them dev."""
    from PIL import Image

    folder = tmp_path / "sketches"
    folder.mkdir()
    rows = []
    for number in range(60):
        colour = ("red", "blue", "green")[number % 3]
        Image.new("RGB", (24, 24), colour).save(folder / f"{number:02}.png")
        split = ("train", "dev", "train", "dev")[number % 4] if number % 5 else "test"
        rows += [
            {"image": f"{number:02}.png", "caption": f"a {colour} {thing}", "split": split} for thing in ("wall", "sea")
        ]
    with (folder / "captions.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["image", "caption", "split"])
        table.writeheader()
        table.writerows(rows)
    return folder


def run(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    from sightline.cli import run as command

    code = command([str(argument) for argument in arguments])
    return code, *capfd.readouterr()


def test_calibrating_a_folder(
    tiny_model: Path, sketches: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "mine")
    code, out, err = run(capfd, "calibrate", folder, "--data", sketches)
    assert (code, err) == (0, "")
    assert "content words" in out
    assert out.rstrip().endswith(f"written to {folder / 'confidence.json'}")
    confidence = load_checkpoint(folder).confidence
    assert confidence is not None
    assert confidence.record["dev_photos"] == 24
    assert confidence.record["train_photos"] == 24
    code, out, _ = run(capfd, "caption", sketches / "00.png", "--model", folder, "--json")
    assert json.loads(out)[0]["calibrated"] is True
    _, out, _ = run(capfd, "models", folder)
    assert " yes " in out


def test_too_few_photos_are_refused_before_any_work(
    tiny_model: Path, tiny_flickr8k_kept: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capfd, "calibrate", tiny_model, "--data", tiny_flickr8k_kept)
    assert code == 1
    assert err.startswith("error: calibration needs 20 train photos at the least")
    assert err.count("\n") == 1
    assert not (tiny_model / "confidence.json").exists()


def test_an_ensemble_cannot_be_calibrated(tiny_model: Path, tiny_flickr8k_kept: Path) -> None:
    from sightline.data import load_dataset

    with pytest.raises(ConfigError, match="an ensemble cannot be calibrated"):
        calibration.calibrate(sightline.load(tiny_model, tiny_model), load_dataset(tiny_flickr8k_kept))


def test_photos_that_do_not_open_are_left_out(tiny_model: Path, sketches: Path) -> None:
    from sightline.data import load_dataset

    dataset = load_dataset(sketches)
    for example in dataset.examples("dev")[:5]:
        example.image.write_bytes(b"no picture")
    with pytest.raises(DataError, match="gave 19"):
        calibration.calibrate(sightline.load(tiny_model), dataset)


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
