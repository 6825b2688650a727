"""The bootstrap: intervals that cover the truth as often as they say, differences that are or are not there."""

from __future__ import annotations

import numpy as np
import pytest

from sightline.errors import DataError
from sightline.evaluation.metrics.bleu import Bleu
from sightline.evaluation.metrics.metric import interval, paired
from sightline.evaluation.metrics.rouge import Rouge


def test_the_interval_of_a_mean_is_the_textbook_one() -> None:
    rows = np.random.default_rng(0).normal(0.5, 0.1, size=(400, 1))
    low, high = interval(Rouge(), rows)["rouge_l"]
    error = 1.96 * rows.std() / np.sqrt(len(rows))
    assert low == pytest.approx(rows.mean() - error, abs=0.1 * error)
    assert high == pytest.approx(rows.mean() + error, abs=0.1 * error)


def test_nineteen_of_twenty_intervals_hold_the_true_mean() -> None:
    generator = np.random.default_rng(1)
    held = 0
    for seed in range(200):
        low, high = interval(Rouge(), generator.normal(0.3, 0.2, size=(60, 1)), resamples=200, seed=seed)["rouge_l"]
        held += low <= 0.3 <= high
    assert 0.90 <= held / 200 <= 0.98


def test_an_interval_holds_the_score_and_covers_every_key() -> None:
    metric = Bleu()
    words = ["a", "dog", "runs", "on", "the", "green", "grass", "near", "a", "red", "house"]
    generator = np.random.default_rng(2)
    texts = [list(generator.choice(words, size=9)) for _ in range(120)]
    rows = metric.statistics(texts[:40], [texts[40 + i : 43 + i] for i in range(40)])
    bounds, scores = interval(metric, rows, resamples=200), metric.aggregate(rows)
    assert set(bounds) == set(metric.keys)
    assert all(bounds[key][0] <= scores[key] <= bounds[key][1] for key in metric.keys)


def test_the_same_seed_draws_the_same_images() -> None:
    rows = np.random.default_rng(3).random((50, 1))
    assert interval(Rouge(), rows, seed=7) == interval(Rouge(), rows, seed=7) != interval(Rouge(), rows, seed=8)


def test_one_image_or_equal_images_leave_no_doubt() -> None:
    assert interval(Rouge(), np.array([[0.25]]), resamples=20) == {"rouge_l": (0.25, 0.25)}
    low, high = interval(Rouge(), np.full((30, 1), 0.4), resamples=20)["rouge_l"]
    assert low == pytest.approx(0.4) == high


def test_a_small_steady_gain_is_found_though_single_intervals_overlap() -> None:
    generator = np.random.default_rng(4)
    weaker = generator.normal(0.5, 0.2, size=(300, 1))
    stronger = weaker + generator.normal(0.01, 0.02, size=(300, 1))
    assert interval(Rouge(), stronger)["rouge_l"][0] < interval(Rouge(), weaker)["rouge_l"][1]
    report = paired(Rouge(), stronger, weaker)["rouge_l"]
    assert report["difference"] == pytest.approx(0.01, abs=0.004)
    assert 0 < report["low"] < report["difference"] < report["high"]
    assert report["p"] < 0.01


def test_a_system_does_not_differ_from_itself() -> None:
    rows = np.random.default_rng(5).random((40, 1))
    assert paired(Rouge(), rows, rows, resamples=50)["rouge_l"] == {"difference": 0, "low": 0, "high": 0, "p": 1}


def test_the_p_value_counts_both_sides_and_the_observed_difference() -> None:
    better, worse = np.full((5, 1), 0.6), np.full((5, 1), 0.5)
    assert paired(Rouge(), better, worse, resamples=99)["rouge_l"]["p"] == pytest.approx(2 * (0 + 1) / (99 + 1))


def test_equal_systems_seem_different_about_one_time_in_twenty() -> None:
    generator = np.random.default_rng(6)
    found = sum(
        paired(Rouge(), generator.random((80, 1)), generator.random((80, 1)), resamples=200)["rouge_l"]["p"] < 0.05
        for _ in range(200)
    )
    assert found / 200 < 0.11


def test_swapping_the_systems_turns_the_sign() -> None:
    generator = np.random.default_rng(7)
    one, two = generator.random((40, 1)), generator.random((40, 1))
    forth, back = paired(Rouge(), one, two)["rouge_l"], paired(Rouge(), two, one)["rouge_l"]
    assert forth["difference"] == -back["difference"]
    assert (forth["low"], forth["high"]) == pytest.approx((-back["high"], -back["low"]))
    assert forth["p"] == back["p"]


def test_what_cannot_be_resampled_is_refused() -> None:
    with pytest.raises(DataError, match="3 images against 2"):
        paired(Rouge(), np.zeros((3, 1)), np.zeros((2, 1)))
    with pytest.raises(DataError, match="at least one of each"):
        interval(Rouge(), np.zeros((0, 1)))
