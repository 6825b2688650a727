"""Evaluations: one protocol for every system, told in the signature; what is not comparable is not compared."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import sightline
from sightline.data import load_dataset, read_results, write_results
from sightline.engine.captioner import load
from sightline.errors import ConfigError, DataError
from sightline.evaluation.comparison import compare
from sightline.evaluation.metrics import METRICS, score
from sightline.evaluation.metrics.metric import Metric
from sightline.evaluation.report import render_page, write_page
from sightline.evaluation.scoring import Evaluation, evaluate, score_results
from sightline.io.model_files import checkpoint_hash

QUICK = ("bleu", "rouge", "cider")


@pytest.fixture
def perfect(tiny_flickr8k_kept: Path) -> dict[str, str]:
    """Test captions a person wrote."""
    return {example.name: example.captions[0] for example in load_dataset(tiny_flickr8k_kept).examples("test")}


@pytest.fixture(scope="module")
def evaluated(tiny_model: Path, tiny_flickr8k_kept: Path) -> Evaluation:
    return evaluate(tiny_model, tiny_flickr8k_kept, "dev", metrics=QUICK, beam=2, length_penalty=0.5)


def test_the_signature_names_all_a_score_depends_on(evaluated: Evaluation, tiny_model: Path):
    assert evaluated.signature.split("|") == [
        f"sightline {sightline.__version__}", "flickr8k:dev", "images:2", "ptb", "beam:2", "lp:0.5", "max:12",
        f"vocabulary:word-{load(tiny_model).tokenizer.size}", "min-count:1", "bleu+rouge-l+cider-d",
        f"ckpt:{checkpoint_hash(tiny_model)}",
    ]  # fmt: skip


def test_unusual_options_and_ensembles_show_in_the_signature(tiny_model: Path, tiny_flickr8k_kept: Path):
    result = evaluate([tiny_model, tiny_model], tiny_flickr8k_kept, "val", metrics=["bleu"], min_length=2, limit=1)
    assert "|min:2|" in result.signature
    assert "flickr8k:dev|images:1|" in result.signature
    name = checkpoint_hash(tiny_model)
    assert result.signature.endswith(f"|bleu|ckpt:{name}+{name}")


def test_captions_are_the_captioners_own(evaluated: Evaluation, tiny_model: Path, tiny_flickr8k_kept: Path):
    examples = load_dataset(tiny_flickr8k_kept).examples("dev")
    captioner = load(tiny_model)
    expected = {
        example.name: captioner.caption(str(example.image), beam=2, length_penalty=0.5).text for example in examples
    }
    assert evaluated.captions == expected
    assert evaluated.scores == score(list(expected.values()), [example.captions for example in examples], QUICK)


def test_a_score_lies_in_its_interval(tiny_flickr8k_kept: Path, tmp_path: Path):
    dataset = load_dataset(tiny_flickr8k_kept)
    mixed = {
        example.name: example.captions[number % 5] if number % 2 else "a wall"
        for number, example in enumerate(dataset.examples("train"))
    }
    result = evaluate(None, dataset, "train", captions=mixed, metrics=QUICK)
    for key, value in result.scores.items():
        low, high = result.intervals[key]
        assert low <= value <= high
    low, high = result.intervals["cider"]
    assert low < high


def test_files_hold_everything(evaluated: Evaluation, tmp_path: Path):
    evaluated.save(tmp_path / "new")
    assert read_results(tmp_path / "new" / "captions.json") == evaluated.captions
    content = json.loads((tmp_path / "new" / "scores.json").read_text())
    assert content["signature"] == evaluated.signature
    assert content["scores"] == evaluated.scores
    assert set(content["images"][0]["scores"]) == set(evaluated.scores)
    assert len(content["images"][0]["references"]) == 5


def test_a_photo_that_does_not_open_is_left_out_and_said(tiny_model: Path, tiny_flickr8k: Path):
    (tiny_flickr8k / "Flicker8k_Dataset" / "red_square_black.jpg").write_bytes(b"no")
    result = evaluate(tiny_model, tiny_flickr8k, metrics=["bleu"])
    assert len(result.images) == 1
    assert len(result.failures) == 1
    assert "|images:1|" in result.signature


def test_results_are_scored_against_a_split_or_an_annotations_file(
    perfect: dict[str, str], tiny_flickr8k_kept: Path, tmp_path: Path
):
    write_results(tmp_path / "results.json", perfect)
    by_split = score_results(tmp_path / "results.json", tiny_flickr8k_kept, "test", QUICK)
    assert by_split.scores["bleu_4"] == pytest.approx(1)
    rows = [
        {"image_id": example.name, "id": number, "caption": text}
        for example in load_dataset(tiny_flickr8k_kept).examples("test")
        for number, text in enumerate(example.captions)
    ]
    (tmp_path / "annotations.json").write_text(json.dumps({"annotations": rows}))
    by_file = score_results(tmp_path / "results.json", tmp_path / "annotations.json", metrics=QUICK)
    assert by_file.scores == by_split.scores
    assert "|annotations|images:2|" in by_file.signature


def test_results_must_name_exactly_the_images(perfect: dict[str, str], tiny_flickr8k_kept: Path):
    first = next(iter(perfect))
    with pytest.raises(DataError, match="lack 1 of 2 images"):
        score_results({first: perfect[first]}, tiny_flickr8k_kept, metrics=QUICK)
    with pytest.raises(DataError, match="cover also 1 of 3 images"):
        score_results({**perfect, "x.jpg": "a dog"}, tiny_flickr8k_kept, metrics=QUICK)
    with pytest.raises(ConfigError, match="bleu"):
        score_results(perfect, tiny_flickr8k_kept, metrics=["blue"])


def test_a_metric_that_cannot_run_is_left_out_and_said_once(
    perfect: dict[str, str], tiny_flickr8k_kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def missing() -> Metric:
        raise DataError("its data is not here")

    monkeypatch.setitem(METRICS, "meteor", missing)
    result = score_results(perfect, tiny_flickr8k_kept, metrics=["bleu", "meteor"])
    assert "meteor" not in result.scores
    assert caplog.messages == ["meteor is left out: its data is not here"]


def test_comparing_finds_the_better_system(tiny_flickr8k_kept: Path, tmp_path: Path):
    dataset = load_dataset(tiny_flickr8k_kept)
    good = {example.name: example.captions[1] for example in dataset.examples("train")}
    poor = {name: f"{caption.split()[0]} wall of a dog" for name, caption in good.items()}
    for name, captions in (("good", good), ("poor", poor)):
        evaluate(None, dataset, "train", captions=captions, metrics=["bleu"], output=tmp_path / name)
    result = compare([tmp_path / "poor", tmp_path / "good" / "scores.json"], metrics=QUICK)
    assert result.images == 8
    found = result.differences[0]["cider"]
    assert found["difference"] == pytest.approx(result.scores[1]["cider"] - result.scores[0]["cider"])
    assert 0 < found["low"] <= found["difference"] <= found["high"]
    assert found["p"] < 0.05
    same = compare([tmp_path / "good", tmp_path / "good" / "captions.json"], metrics=["bleu"])
    assert same.differences[0]["bleu_4"] == {"difference": 0, "low": 0, "high": 0, "p": 1}


def test_comparing_refuses_what_cannot_be_compared(perfect: dict[str, str], tiny_flickr8k_kept: Path, tmp_path: Path):
    dataset = load_dataset(tiny_flickr8k_kept)
    evaluate(None, dataset, "test", captions=perfect, metrics=["bleu"], output=tmp_path / "test")
    train = {example.name: "a dog" for example in dataset.examples("train")}
    evaluate(None, dataset, "train", captions=train, metrics=["bleu"], output=tmp_path / "train")
    with pytest.raises(DataError, match="same images"):
        compare([tmp_path / "test", tmp_path / "train"])
    results = tmp_path / "test" / "captions.json"
    with pytest.raises(DataError, match="references"):
        compare([results, results])
    assert compare([results, results], dataset, "test", ["bleu"]).images == 2
    content = json.loads((tmp_path / "test" / "scores.json").read_text())
    content["images"][0]["references"][0] = "something else"
    (tmp_path / "other.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="other references"):
        compare([tmp_path / "test", tmp_path / "other.json"])
    (tmp_path / "damaged.json").write_text('{"format": "sightline-scores-1"}')
    with pytest.raises(DataError, match="damaged"):
        compare([tmp_path / "damaged.json", results])
    with pytest.raises(ConfigError, match="two"):
        compare([results])


def test_the_page_shows_photos_and_escapes_words(evaluated: Evaluation, tmp_path: Path):
    spoilt = replace(evaluated.images[0], caption='<script>alert("x")</script>', name="a&b.jpg", references=("<b>",))
    page = render_page(replace(evaluated, images=(spoilt, *evaluated.images[1:])))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "a&amp;b.jpg" in page
    assert "<li>&lt;b&gt;</li>" in page
    assert page.count("data:image/jpeg;base64,") == 2
    assert not re.search("https?:", page)
    write_page(evaluated, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_the_page_lists_the_best_first_and_no_photo_twice(evaluated: Evaluation):
    image = evaluated.images[0]
    images = tuple(
        replace(image, name=f"photo{number}", image=None, scores={"cider": number / 10}) for number in range(7)
    )
    page = render_page(replace(evaluated, images=images), count=20)
    places = [page.index(f">photo{number}<") for number in (6, 5, 4, 3, 0, 1, 2)]
    assert places == sorted(places)
    assert page.count("<figure>") == 7
    with pytest.raises(ConfigError, match="CIDEr-D"):
        render_page(replace(evaluated, images=(replace(image, scores={}),)))
