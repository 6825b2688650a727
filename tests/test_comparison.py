"""Comparisons of runs and of the results' rows: only scores of the same photos and references are compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Command

from sightline.data import load_dataset, write_results
from sightline.errors import ConfigError, DataError
from sightline.evaluation.comparison import compare
from sightline.evaluation.scoring import evaluate

QUICK = ("bleu", "rouge", "cider")


@pytest.fixture
def perfect(tiny_flickr8k_kept: Path) -> dict[str, str]:
    """Test captions a person wrote."""
    return {example.name: example.captions[0] for example in load_dataset(tiny_flickr8k_kept).examples("test")}


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


def test_comparing_reads_rows_of_the_results(perfect: dict[str, str], tiny_flickr8k_kept: Path, tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"recipe": name, "test": {}}))
        write_results(tmp_path / f"{name}.captions.json", perfect)
    found = compare([tmp_path / "a.json", tmp_path / "b.json"], tiny_flickr8k_kept, metrics=["bleu"])
    assert found.scores[0] == found.scores[1] and found.images == len(perfect)


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


def test_the_repositorys_rows_are_compared_without_the_dataset(command: Command, tmp_path: Path) -> None:
    results = Path(__file__).parents[1] / "results"
    files = sorted(results.glob("*.json"))
    outcome = command("evaluate", "--compare", *files, "--metrics", "cider,meteor")
    assert outcome.code == 0
    row = next(line for line in outcome.out.splitlines() if "sat-hard-vgg19 " in line)
    published = json.loads((results / "sat-hard-vgg19.json").read_text())
    for key in ("meteor", "cider"):
        low, high = published["interval"][key]
        assert f"{published['test'][key]:.1f} ({low:.1f} – {high:.1f})" in row
    assert "BLEU" not in outcome.out and "curve" not in outcome.out
    assert outcome.complaints[0].endswith("files left out: captions, curves and experiments of these rows")
    assert "--data FOLDER --split test" in outcome.complaints[1]

    other = tmp_path / "other.json"
    other.write_text(json.dumps({**published, "signature": "sightline 0.1.0|coco:test|images:4384|ptb"}))
    refused = command("evaluate", "--compare", results / "sat-hard-vgg19.json", other)
    assert refused.code == 1 and "compare rows of one dataset" in refused.err
    captions = command("evaluate", "--compare", *results.glob("sat-*.captions.json"))
    assert captions.code == 1 and "name the dataset too (--data)" in captions.err
