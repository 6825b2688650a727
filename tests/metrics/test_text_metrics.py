"""BLEU, ROUGE-L, CIDEr-D and diversity: equal to the COCO caption tools, sensible at the edges."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest

import sightline.evaluation.metrics
from sightline.errors import ConfigError, DataError
from sightline.evaluation.metrics import METRICS, prepare, score
from sightline.evaluation.metrics.bleu import Bleu
from sightline.evaluation.metrics.cider import Cider, CiderReward
from sightline.evaluation.metrics.metric import Metric, diversity
from sightline.evaluation.metrics.ptb import tokenize, tokenize_all
from sightline.evaluation.metrics.rouge import Rouge

ORACLE = json.loads((Path(__file__).parents[1] / "data" / "metrics_oracle.json").read_text())
CAPTIONS = [caption for caption, _ in ORACLE["pairs"]]
REFERENCES = [references for _, references in ORACLE["pairs"]]
JAVA_FREE = ("bleu", "rouge", "cider")
EXACT = {"rel": 0, "abs": 1e-9}
LAWN = [tokenize("a brown dog runs on the green grass"), tokenize("the dog is running across a lawn")]
SEA = [tokenize("two boats on a calm blue sea"), tokenize("small boats float on the water")]


@pytest.fixture(params=[Bleu, Rouge, Cider])
def metric(request: pytest.FixtureRequest) -> Metric:
    return request.param()


def _coco_tools(captions: list[list[str]], references: list[list[list[str]]]) -> dict[str, tuple[float, np.ndarray]]:
    """The reference implementation's corpus and per-image scores of tokens."""
    bleu = pytest.importorskip("pycocoevalcap.bleu.bleu").Bleu(4)
    rouge = pytest.importorskip("pycocoevalcap.rouge.rouge").Rouge()
    cider = pytest.importorskip("pycocoevalcap.cider.cider").Cider()
    truth = {image: [" ".join(text) for text in texts] for image, texts in enumerate(references)}
    found = {image: [" ".join(caption)] for image, caption in enumerate(captions)}
    corpus, each = bleu.compute_score(truth, found, verbose=0)
    scores = {f"bleu_{order}": (corpus[order - 1], np.array(each[order - 1])) for order in range(1, 5)}
    return {**scores, "rouge_l": rouge.compute_score(truth, found), "cider": cider.compute_score(truth, found)}


def _assert_equal_to_coco_tools(captions: list[list[str]], references: list[list[list[str]]]) -> None:
    expected = _coco_tools(captions, references)
    for scorer in (Bleu(), Rouge(), Cider()):
        rows = scorer.statistics(captions, references)
        corpus, each = scorer.aggregate(rows), scorer.per_image(rows)
        for key in expected.keys() & set(scorer.keys):
            assert corpus[key] == pytest.approx(expected[key][0], **EXACT), key
            np.testing.assert_allclose(each[key], expected[key][1], rtol=0, atol=1e-9, err_msg=key)


def test_corpus_scores_equal_the_stored_ones_of_the_coco_tools() -> None:
    scores = score(CAPTIONS, REFERENCES, JAVA_FREE)
    assert {key: scores[key] for key in ORACLE["corpus"]} == pytest.approx(ORACLE["corpus"], **EXACT)


def test_scores_per_image_equal_the_stored_ones_of_the_coco_tools(metric: Metric) -> None:
    each = metric.per_image(metric.statistics(*prepare(CAPTIONS, REFERENCES)))
    assert set(each) == set(metric.keys)
    for key in each.keys() & ORACLE["per_image"].keys():
        np.testing.assert_allclose(each[key], ORACLE["per_image"][key], rtol=0, atol=1e-9)


def test_captions_longer_than_their_references_are_not_penalised_for_brevity() -> None:
    chosen = ORACLE["long"]["pairs"]
    scores = score([CAPTIONS[i] for i in chosen], [REFERENCES[i] for i in chosen], JAVA_FREE)
    assert {key: scores[key] for key in ORACLE["long"]["corpus"]} == pytest.approx(ORACLE["long"]["corpus"], **EXACT)
    for order in range(1, 5):
        assert scores[f"bleu_{order}_no_bp"] == scores[f"bleu_{order}"]


def test_scores_of_random_texts_equal_those_of_the_coco_tools() -> None:
    generator = np.random.default_rng(0)
    words = ["a", "dog", "runs", "on", "the", "grass", "1\u00a01/2", "blue", "sea", "and"]

    def text() -> list[str]:
        return list(generator.choice(words, size=generator.integers(0, 12)))

    for images in (1, 2, 30):
        captions = [text() for _ in range(images)]
        _assert_equal_to_coco_tools(captions, [[text() for _ in range(generator.integers(1, 6))] for _ in captions])


@pytest.mark.real
def test_scores_of_one_human_against_four_others_on_flickr8k_equal_those_of_the_coco_tools(real_flickr8k: Path) -> None:
    rows = (real_flickr8k / "Flickr8k_text" / "Flickr8k.token.txt").read_text(encoding="utf-8").splitlines()[:5000]
    texts = tokenize_all([row.split("\t", 1)[1] for row in rows])
    images = [texts[start : start + 5] for start in range(0, len(texts), 5)]
    _assert_equal_to_coco_tools([image[0] for image in images], [image[1:] for image in images])


def test_without_brevity_penalty_bleu_is_the_plain_geometric_mean_of_precisions() -> None:
    scores = score(["a dog runs"], [["a dog runs on the wide lawn"]], ["bleu"])
    assert scores["bleu_3_no_bp"] == pytest.approx(1.0)
    assert scores["bleu_3"] == pytest.approx(math.exp(1 - 7 / 3))


def test_a_perfect_caption_scores_highest() -> None:
    captions, references = [LAWN[0], SEA[0]], [LAWN, SEA]
    bleu, rouge = Bleu(), Rouge()
    assert all(value == pytest.approx(1.0) for value in bleu.aggregate(bleu.statistics(captions, references)).values())
    assert rouge.aggregate(rouge.statistics(captions, references))["rouge_l"] == pytest.approx(1.0)
    # CIDEr-D's top is 10, reached where a caption equals all its references.
    alone = Cider().statistics(captions, [[LAWN[0]], [SEA[0]]])
    np.testing.assert_allclose(alone, 10.0)


def test_an_empty_caption_scores_zero(metric: Metric) -> None:
    each = metric.per_image(metric.statistics([[], LAWN[0]], [LAWN, SEA]))
    # BLEU without brevity penalty divides two very small numbers here, as in the COCO tools.
    assert all(values[0] == pytest.approx(0.0, abs=2e-6) for values in each.values())


def test_a_single_image_has_a_score_and_its_cider_is_zero() -> None:
    scores = score(["a brown dog"], [["a brown dog runs"]], JAVA_FREE)
    assert scores["rouge_l"] > 0.5
    assert scores["cider"] == 0.0  # every n-gram occurs in every image there is, so none is informative


def test_a_repeated_reference_changes_neither_bleu_nor_rouge() -> None:
    captions = [LAWN[1], SEA[1]]
    for scorer in (Bleu(), Rouge()):
        once = scorer.statistics(captions, [LAWN[:1], SEA[:1]])
        np.testing.assert_array_equal(once, scorer.statistics(captions, [LAWN[:1] * 3, SEA[:1] * 3]))


def test_aggregate_counts_a_row_as_often_as_it_stands_there(metric: Metric) -> None:
    rows = metric.statistics([LAWN[1], SEA[1]], [LAWN[:1], SEA[:1]])
    both, first = metric.aggregate(rows), metric.aggregate(rows[:1])
    assert both.keys() == set(metric.keys)
    assert metric.aggregate(rows[[0, 1, 1, 0]]) == pytest.approx(both, abs=1e-8)
    assert metric.aggregate(rows[[0, 0, 0]]) == pytest.approx(first, abs=1e-8)


def test_reward_equals_cider_for_words_and_for_their_numbers() -> None:
    captions, references = prepare(CAPTIONS, REFERENCES)
    expected = Cider().statistics(captions, references)[:, 0]
    captions = [" ".join(caption).split() for caption in captions]
    references = [[" ".join(text).split() for text in texts] for texts in references]
    words = sorted({word for texts in [captions, *references] for text in texts for word in text})
    order = list(reversed(range(len(captions))))
    for table in (dict(zip(words, words)), dict(zip(words, range(len(words))))):
        reward = CiderReward([[[table[word] for word in text] for text in texts] for texts in references])
        scores = reward.score(order, [[table[word] for word in captions[image]] for image in order])
        np.testing.assert_allclose(scores, expected[order], rtol=0, atol=1e-12)


def test_reward_of_an_end_symbol_prefers_the_finished_caption() -> None:
    references = [[[*text, "<end>"] for text in texts] for texts in (LAWN, SEA)]
    finished, cut = CiderReward(references).score([0, 0], [[*LAWN[0], "<end>"], LAWN[0]])
    assert finished > cut


def test_diversity_counts_what_differs_and_what_is_new() -> None:
    captions = [tokenize(text) for text in ("a dog runs", "a dog runs", "a cat sleeps")]
    report = diversity(captions, training=[tokenize("a dog runs")])
    assert report == {
        "distinct_1": pytest.approx(5 / 9),
        "distinct_2": pytest.approx(4 / 6),
        "vocabulary": 5,
        "mean_length": 3.0,
        "most_repeated": "a dog runs",
        "most_repeated_count": 2,
        "novel": pytest.approx(1 / 3),
    }
    assert "novel" not in diversity(captions)
    assert diversity([[]])["distinct_1"] == 0


def test_a_metric_without_its_data_is_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> Metric:
        raise DataError("no tables: install sightline-captions[metrics]")

    monkeypatch.setitem(sightline.evaluation.metrics.METRICS, "meteor", missing)
    with caplog.at_level(logging.WARNING):
        scores = score(CAPTIONS, REFERENCES)
    assert "meteor" not in scores
    assert "rouge_l" in scores
    assert "install sightline-captions[metrics]" in caplog.text


def test_an_unknown_metric_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'cider'"):
        score(["a"], [["a"]], ["cidr"])
    assert set(JAVA_FREE) < METRICS.keys()


@pytest.mark.parametrize(
    ("captions", "references", "message"),
    [
        (["a"], [], "1 captions but references for 0"),
        ([], [], "no captions"),
        (["a", "b"], [["a"], []], "image 1 has no"),
    ],
)
def test_what_cannot_be_scored_is_refused(captions: list[str], references: list[list[str]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        score(captions, references, JAVA_FREE)
    with pytest.raises(DataError, match="1 captions for 2 images"):
        CiderReward([LAWN, SEA]).score([0, 1], [LAWN[0]])
    with pytest.raises(DataError, match="no captions to measure"):
        diversity([])


def test_dictionaries_are_taken_as_the_coco_tools_take_them() -> None:
    captions, references = ["a dog", "a boat"], [["a dog runs", "the dog"], ["a boat on the sea", "boats"]]
    expected = score(captions, references, JAVA_FREE)
    by_image = {7: ["a dog"], 3: ["a boat"]}
    assert score(by_image, {3: references[1], 7: references[0]}, JAVA_FREE) == expected  # in whatever order
    assert score({7: "a dog", 3: "a boat"}, {7: references[0], 3: references[1]}, JAVA_FREE) == expected


@pytest.mark.parametrize(
    ("captions", "references", "message"),
    [
        ({1: ["a dog"]}, {1: ["a dog"], 2: ["a cat"]}, "differ in 1 images \\(2\\)"),
        ({1: ["a dog"], 2: ["a cat"]}, {1: ["a dog"]}, "differ in 1 images \\(2\\)"),
        ({1: ["a dog", "a cat"]}, {1: ["a dog"]}, "image 1 has 2 captions"),
        ({1: ["a dog"]}, [["a dog"]], "a dictionary and a list"),
        ({}, {}, "no captions"),
    ],
)
def test_dictionaries_that_do_not_fit_are_refused(captions: dict, references: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        score(captions, references, JAVA_FREE)


def test_chair_is_no_metric_of_references() -> None:
    with pytest.raises(ConfigError, match="object labels"):
        score(["a dog"], [["a dog"]], ["chair"])
