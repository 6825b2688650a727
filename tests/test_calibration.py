"""Calibrating a model: what counts as right, the fit on val and its check, and the command."""

from __future__ import annotations

import csv
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up import a_dog

import sightline
from sightline.engine.captioner import load
from sightline.errors import ConfigError, DataError
from sightline.evaluation import calibration
from sightline.evaluation.calibration import (
    Observed,
    Statistics,
    check,
    fit,
    grouped_logistic,
    logistic,
    reliability,
    used,
)
from sightline.types import Caption, Word

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
    """A model that is far too sure of all words, more so of some; photos that vary along 15 directions."""
    dice = np.random.default_rng(seed)
    scale = np.where(np.arange(features) < 15, 5.0, 0.1)
    observed = []
    for _ in range(photos):
        names = dice.choice(list(VOCABULARY), 5, replace=False)
        truth = np.clip([VOCABULARY[name] + dice.normal(0, 0.15) for name in names], 0.02, 0.98)
        probabilities = [1 / (1 + math.exp(-(math.log(true / (1 - true)) + 2))) for true in truth]
        words = tuple(Word(str(name), probability) for name, probability in zip(names, probabilities))
        caption = Caption(" ".join(names), words, float(np.log(probabilities).sum()))
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
    assert 0.05 < found["marked"] < 0.15
    fresh, _ = made_world(400, seed=1)
    confidence = fit(observed, Statistics.of(train))
    judged = confidence.judge([one.caption for one in fresh], np.stack([one.pooled for one in fresh]))
    pairs = [
        (word.confidence, hit) for caption, one in zip(judged, fresh) for word, hit in zip(caption.words, one.used)
    ]
    assert reliability(pairs)["ece"] < 0.04
    assert np.mean([caption.unsure for caption in judged]) < 0.15


def test_the_check_judges_no_photo_by_itself() -> None:
    """The offset of a word that occurs once is memorised: on the photo it was fitted to, it would always seem right."""
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


def test_the_check_reports_each_source_of_a_mixture() -> None:
    """One fit serves both: it is right on the average, too sure of the source whose references agree less."""
    easy, train = made_world(800)
    hard = [
        replace(one, source="hard", used=tuple(used and number % 4 > 0 for number, used in enumerate(one.used)))
        for one in made_world(800, seed=1)[0]
    ]
    found = check([*(replace(one, source="easy") for one in easy), *hard], Statistics.of(train))
    assert found["captions"]["after"]["ece"] < 0.06
    assert {name: values["after"]["count"] for name, values in found["sources"].items()} == {"easy": 800, "hard": 800}
    too_sure = {name: reliability_gap(values["after"]) for name, values in found["sources"].items()}
    assert too_sure["easy"] < -0.05 and too_sure["hard"] > 0.05


def test_photos_whose_captions_are_less_often_right_are_known_by_their_features() -> None:
    """As above; the second time the photos of the two sources differ in what the encoder sees, and it is less wrong."""
    easy, train = made_world(800)
    hard = [
        replace(one, used=tuple(used and number % 4 > 0 for number, used in enumerate(one.used)))
        for one in made_world(800, seed=1)[0]
    ]

    def gaps(shift: np.ndarray) -> np.ndarray:
        observed = [
            replace(one, source=name, pooled=one.pooled + sign * shift)
            for name, sign, photos in (("easy", -1, easy), ("hard", 1, hard))
            for one in photos
        ]
        found = check(observed, Statistics.of(np.concatenate([train - shift, train + shift])))
        return np.array([reliability_gap(values["after"]) for values in found["sources"].values()])

    alike, different = gaps(np.zeros(20)), gaps(np.where(np.arange(20) < 10, 10.0, 0.0))
    assert (np.abs(different) < 0.75 * np.abs(alike)).all()


def test_few_photos_say_nothing_about_kinds_of_photos() -> None:
    observed, train = made_world(60)
    confidence = fit(observed, Statistics.of(train))
    terms = confidence.captions.photo_terms(np.stack([one.pooled for one in observed]))
    assert np.std(terms) < 0.1


def reliability_gap(values: dict) -> float:
    """Mean confidence less the share that was right."""
    return sum(count * mean for count, mean, _ in values["bins"]) / values["count"] - values["rate"]


def test_one_dataset_has_no_report_of_its_sources() -> None:
    observed, train = made_world(100)
    assert "sources" not in check(observed, Statistics.of(train))


def test_what_leaves_the_narrow_directions_is_strange() -> None:
    observed, train = made_world(300)
    photos = Statistics.of(train).photos(observed)
    assert photos.directions == 4
    usual = photos.ood_score(np.stack([one.pooled for one in observed]))
    assert np.mean(usual > 1) == pytest.approx(calibration.OOD, abs=0.01)
    large = np.zeros((1, 20))
    large[0, 0] = 30.0  # far, but where photos do differ
    odd = np.zeros((1, 20))
    odd[0, 15:] = 0.5  # near, but where none does
    assert photos.ood_score(large)[0] < 1 < photos.ood_score(odd)[0]


def test_features_that_never_change_do_not_break_the_statistics() -> None:
    train = np.random.default_rng(0).normal(size=(60, 10))
    train[:, 3:] = 1.0
    photos = Statistics.of(train).photos([Observed(row, a_dog(), (True, True, True)) for row in train])
    assert np.isfinite(photos.ood_score(train)).all()
    changed = train[:1].copy()
    changed[0, 3:] = 2.0
    assert photos.ood_score(changed)[0] > 1


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def sketches(tmp_path: Path) -> Path:
    """A folder of 60 small drawings with captions, a third of them val."""
    from PIL import Image

    folder = tmp_path / "sketches"
    folder.mkdir()
    rows = []
    for number in range(60):
        colour = ("red", "blue", "green")[number % 3]
        drawing = Image.new("RGB", (24, 24), colour)
        drawing.putpixel((0, 0), (number, 0, 0))
        drawing.save(folder / f"{number:02}.png")
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
    more = shutil.copytree(sketches, tmp_path / "more")
    code, out, err = run(capfd, "calibrate", folder, "--data", sketches, "--data", more, "--photos", 24)
    assert (code, err) == (0, "")
    assert "content words" in out
    assert f"captions, {sketches.name} (12)" in out
    assert "captions, more (12)" in out
    assert out.rstrip().endswith(f"written to {folder / 'confidence.json'}")
    confidence = load(folder).confidence
    assert confidence is not None
    assert confidence.record["val_photos"] == 24
    assert confidence.record["train_photos"] == 48
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
    for example in dataset.examples("val")[:5]:
        example.image.write_bytes(b"no picture")
    with pytest.raises(DataError, match="gave 19"):
        calibration.calibrate(sightline.load(tiny_model), dataset)
