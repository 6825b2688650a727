"""Evaluations: one protocol for every system, stated in the signature."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from bulking import bulk
from commands import Command
from drawings import EVERY

import sightline
from sightline.data import Dataset, load_dataset, read_results, write_results
from sightline.engine.captioner import load
from sightline.errors import ConfigError, DataError
from sightline.evaluation.comparison import compare
from sightline.evaluation.metrics import METRICS, score
from sightline.evaluation.metrics.metric import Metric
from sightline.evaluation.scoring import Evaluation, evaluate, evaluate_people, score_results
from sightline.io.files import counted
from sightline.io.model_files import checkpoint_hash

QUICK = ("bleu", "rouge", "cider")


@pytest.fixture
def perfect(tiny_flickr8k_kept: Path) -> dict[str, str]:
    """Test captions a person wrote."""
    return {example.name: example.captions[0] for example in load_dataset(tiny_flickr8k_kept).examples("test")}


@pytest.fixture(scope="module")
def evaluated(tiny_model: Path, tiny_flickr8k_kept: Path) -> Evaluation:
    return evaluate(tiny_model, tiny_flickr8k_kept, "val", metrics=QUICK, beam=2, length_penalty=0.5)


def test_the_signature_names_all_a_score_depends_on(evaluated: Evaluation, tiny_model: Path):
    assert evaluated.signature.split("|") == [
        f"sightline {sightline.__version__}", "flickr8k:val", "images:2", "ptb", "beam:2", "lp:0.5", "max:12",
        f"vocabulary:word-{load(tiny_model).tokenizer.size}", "min-count:1", "bleu+rouge-l+cider-d",
        f"ckpt:{checkpoint_hash(tiny_model)}",
    ]  # fmt: skip


def test_unusual_options_and_ensembles_show_in_the_signature(tiny_model: Path, tiny_flickr8k_kept: Path):
    result = evaluate([tiny_model, tiny_model], tiny_flickr8k_kept, "dev", metrics=["bleu"], min_length=2, limit=1)
    assert "|min:2|" in result.signature
    assert "flickr8k:val|images:1|" in result.signature
    name = checkpoint_hash(tiny_model)
    assert result.signature.endswith(f"|bleu|ckpt:{name}+{name}")


def test_captions_are_the_captioners_own(evaluated: Evaluation, tiny_model: Path, tiny_flickr8k_kept: Path):
    examples = load_dataset(tiny_flickr8k_kept).examples("val")
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


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "folder"])
def test_a_table_that_bulk_wrote_is_scored(
    command: Command, tiny_model: Path, tiny_flickr8k_kept: Path, tmp_path: Path, form: str
):
    """It covers the photos of all splits; those of the others are left out."""
    if form == "parquet":
        pytest.importorskip("pyarrow")
    output = f"{tmp_path}/captions" + ("/" if form == "folder" else f".{form}")
    how = ["--output-format", "jsonl"] if form == "folder" else []
    outcome = command(
        "bulk", tiny_flickr8k_kept, "-o", output, "--model", tiny_model, "--workers", 0, "--candidates", 2, *how
    )
    assert outcome.code == 0, outcome.err
    expected = evaluate(tiny_model, tiny_flickr8k_kept, "test", metrics=QUICK, candidates=2)
    scored = score_results(output, tiny_flickr8k_kept, "test", QUICK)
    assert scored.captions == expected.captions
    assert scored.scores == expected.scores
    line = command("score", output, "--references", tiny_flickr8k_kept, "--metrics", "bleu")
    assert (line.code, line.complaints) == (
        0,
        [
            f"10 photos of {output.rstrip('/')} have no references in the test split and are left out; "
            "--split all scores the photos of all splits"
        ],
    )
    whole = command("score", output, "--references", tiny_flickr8k_kept, "--metrics", "bleu", "--split", "all")
    assert (whole.code, whole.complaints) == (0, [])
    assert "flickr8k:all|images:12|" in whole.out
    wrong = command("score", output, "--references", tiny_flickr8k_kept, "--split", "foo")
    assert (wrong.code, wrong.complaints) == (2, ["error: there is no split 'foo': choose train, val, test or all"])


@pytest.mark.parametrize("photos", [1, 2])
def test_all_splits_of_very_few_references_are_scored(command: Command, tmp_path: Path, photos: int):
    names = [f"{number}.jpg" for number in range(photos)]
    for name, drawing in zip(names, EVERY):
        drawing.draw().save(tmp_path / name)
    (tmp_path / "captions.csv").write_text("\n".join(["image,caption", *(f"{name},a red dog" for name in names)]))
    table = tmp_path / "made" / "made.csv"
    table.parent.mkdir()
    table.write_text("\n".join(["source,caption", *(f"{name},a red dog" for name in names)]))
    arguments = ["score", table, "--references", tmp_path / "captions.csv", "--metrics", "rouge"]
    whole = command(*arguments, "--split", "all")
    assert (whole.code, whole.complaints) == (0, [])
    assert f"captions:all|images:{photos}|" in whole.out
    outcome = command(*arguments)  # a random test split cannot be drawn
    assert outcome.code == 1 and "three splits need more than" in outcome.err


@pytest.mark.parametrize("photos", [1, 29, 30])
def test_scores_of_few_photos_are_shown_with_a_warning(command: Command, tmp_path: Path, photos: int):
    rows = [{"image_id": number, "id": number, "caption": "a red dog"} for number in range(photos)]
    (tmp_path / "references.json").write_text(json.dumps({"annotations": rows}))
    (tmp_path / "made.json").write_text(json.dumps([{**row, "caption": "a red dog runs"} for row in rows]))
    made, references = tmp_path / "made.json", tmp_path / "references.json"
    score = ("score", made, "--references", references, "--metrics")
    compare = ("evaluate", "--compare", made, made, made, "--data", references, "--metrics")
    warning = f"{counted(photos, 'photo')}: too few for scores to mean much"
    cider = f"{warning}; CIDEr-D weights words by how many photos have them and needs more"
    for scores in (score, compare):
        assert command(*scores, "cider").out.splitlines().count(cider) == (photos < 30)
        assert command(*scores, "rouge").out.splitlines().count(warning) == (photos < 30)


def test_all_splits_are_evaluated_as_they_are_scored(
    command: Command, tiny_model: Path, tiny_flickr8k_kept: Path, tmp_path: Path
):
    data, all_splits = ("--data", tiny_flickr8k_kept), ("--metrics", "bleu", "--split", "all")
    outcome = command("evaluate", tiny_model, *data, *all_splits, "-o", tmp_path / "own")
    assert (outcome.code, outcome.complaints) == (0, [])
    content = json.loads((tmp_path / "own" / "scores.json").read_text())
    assert "|flickr8k:all|images:12|" in content["signature"] and content["signature"] in outcome.out
    scored = score_results(tmp_path / "own" / "captions.json", tiny_flickr8k_kept, "all", ["bleu"])
    assert scored.scores == content["scores"]
    people = command("evaluate", "--human", *data, *all_splits)
    assert people.code == 0 and "|flickr8k:all|images:12|" in people.out
    wrong = command("evaluate", tiny_model, *data, "--split", "foo")
    assert (wrong.code, wrong.complaints) == (2, ["error: there is no split 'foo': choose train, val, test or all"])


def test_all_splits_of_sources_too_small_to_divide_are_evaluated(command: Command, tiny_model: Path, tmp_path: Path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        EVERY[0].draw().save(tmp_path / folder / "a.jpg")  # the same photo: each source is scored with its own
        (tmp_path / folder / "captions.csv").write_text("image,caption\na.jpg,a red dog")
    sources = ["--data", tmp_path / "one", "--data", tmp_path / "two"]
    outcome = command("evaluate", tiny_model, *sources, "--metrics", "rouge", "--split", "all")
    assert (outcome.code, outcome.complaints) == (0, [])
    assert "|one+two:all|images:2|" in outcome.out
    divided = command("evaluate", tiny_model, *sources, "--metrics", "rouge")
    assert divided.code == 1 and "three splits need more than" in divided.err


def test_the_photos_of_a_table_are_found_by_number_and_never_two_for_one(tmp_path: Path):
    rows = [{"image_id": 391895, "id": 1, "caption": "a man on a bike"}]
    (tmp_path / "annotations.json").write_text(json.dumps({"annotations": rows}))
    table = tmp_path / "captions.csv"
    table.write_text("source,caption\nval/COCO_val2014_000000391895.jpg,a man on a bike\n")
    assert score_results(table, tmp_path / "annotations.json", metrics=["bleu"]).scores["bleu_4"] == pytest.approx(1)
    table.write_text("source,caption\na/000000391895.jpg,a man\nb/000000391895.jpg,a bike\n")
    with pytest.raises(DataError, match=r"two photos, a/000000391895.jpg and b/000000391895.jpg, for the reference"):
        score_results(table, tmp_path / "annotations.json", metrics=["bleu"])


@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_a_photo_that_failed_in_the_table_is_named_with_its_error(
    command: Command, tiny_model: Path, tmp_path: Path, form: str
):
    photos, table = tmp_path / "photos", tmp_path / f"captions.{form}"
    photos.mkdir()
    EVERY[0].draw().save(photos / "dog.jpg")
    for name in ("notes.jpg", "todo.jpg"):
        (photos / name).write_text("milk")
    references = [{"image_id": path.name, "caption": "a red dog"} for path in sorted(photos.iterdir())]
    for count, who, what in ((3, "notes.jpg and 1 more have", "them"), (2, "notes.jpg has", "it")):
        assert command("caption", *sorted(photos.iterdir())[:count], "-o", table, "--model", tiny_model).code == 1
        (tmp_path / "references.json").write_text(json.dumps({"annotations": references[:count]}))
        scored = command("score", table, "--references", tmp_path / "references.json", "--metrics", "rouge")
        assert scored.code == 1
        (line,) = scored.complaints
        assert line.startswith(f"error: {who} no caption in {table} (is not an image: ")
        assert line.endswith(f"): caption {what} again or remove {what} from the references")


@pytest.mark.parametrize("name", ["captions.csv", "captions.jsonl", "captions.parquet", "captions/"])
def test_a_photo_that_failed_in_a_bulk_job_is_named_with_its_error(
    command: Command, tiny_model: Path, tmp_path: Path, name: str
):
    """The errors of a job are in a table of their own, beside its captions or in its folder."""
    photos, table, format = tmp_path / "photos", tmp_path / name, Path(name).suffix.removeprefix(".") or "jsonl"
    if format == "parquet":
        pytest.importorskip("pyarrow")
    photos.mkdir()
    EVERY[0].draw().save(photos / "dog.jpg")
    for text in ("notes.jpg", "todo.jpg"):
        (photos / text).write_text("milk")
    references = [{"image_id": path.name, "caption": "a red dog"} for path in sorted(photos.iterdir())]
    score = ("score", table, "--references", tmp_path / "references.json", "--metrics", "rouge")
    assert bulk(photos, table, tiny_model, format, folder=name.endswith("/")).failed == 2
    for count, who, what in ((3, "notes.jpg and 1 more have", "them"), (2, "notes.jpg has", "it")):
        (tmp_path / "references.json").write_text(json.dumps({"annotations": references[:count]}))
        scored = command(*score)
        assert scored.code == 1
        (line,) = scored.complaints
        assert line.startswith(f"error: {who} no caption in {table} (is not an image: ")
        assert line.endswith(f"): caption {what} again or remove {what} from the references")
    (tmp_path / "references.json").write_text(json.dumps({"annotations": references[:1]}))
    assert command(*score).code == 0


@pytest.mark.parametrize("name", ["captions.json", "captions.txt"])
def test_what_holds_no_captions_is_told_every_form(tmp_path: Path, tiny_flickr8k_kept: Path, name: str):
    (tmp_path / name).write_text("{}")
    with pytest.raises(DataError, match=r"JSON list of .*image_id.*\.csv, \.tsv, \.json, \.jsonl, \.parquet"):
        score_results(tmp_path / name, tiny_flickr8k_kept, metrics=["bleu"])


def test_results_must_name_exactly_the_images(perfect: dict[str, str], tiny_flickr8k_kept: Path):
    first = next(iter(perfect))
    with pytest.raises(DataError, match="lack 1 of 2 images"):
        score_results({first: perfect[first]}, tiny_flickr8k_kept, metrics=QUICK)
    with pytest.raises(DataError, match="cover also 1 of 3 images"):
        score_results({**perfect, "x.jpg": "a dog"}, tiny_flickr8k_kept, metrics=QUICK)
    with pytest.raises(ConfigError, match="bleu"):
        score_results(perfect, tiny_flickr8k_kept, metrics=["blue"])


# Object labels


@pytest.fixture
def labelled(tiny_flickr8k_kept: Path) -> Dataset:
    """The train split, its photos labelled: each shows a dog, and nothing else is known to be there."""
    dataset = load_dataset(tiny_flickr8k_kept)
    examples = [replace(example, objects=frozenset({"dog"})) for example in dataset.examples("train")]
    return replace(dataset, splits={**dataset.splits, "train": examples})


def captions_by_name(dataset: Dataset, *captions: str) -> dict[str, str]:
    """These captions for the photos of train in turn."""
    names = [example.name for example in dataset.examples("train")]
    return {name: captions[number % len(captions)] for number, name in enumerate(names)}


def test_photos_with_labels_are_scored_by_chair(labelled: Dataset, tmp_path: Path):
    captions = captions_by_name(labelled, "a dog", "a dog and a cat")
    result = evaluate(None, labelled, "train", captions=captions, metrics=["cider", "chair"], output=tmp_path)
    assert result.scores["chair_s"] == 1 / 2
    assert result.scores["chair_i"] == pytest.approx(1 / 3)
    assert result.intervals["chair_i"][0] < 1 / 3 < result.intervals["chair_i"][1]
    assert "|cider-d+chair|" in result.signature
    content = json.loads((tmp_path / "scores.json").read_text())
    assert content["scores"]["chair_s"] == 1 / 2
    assert content["images"][1]["objects"] == ["dog"]
    assert content["images"][1]["scores"]["chair_i"] == 1 / 2
    assert "chair_s" in score_results(captions, labelled, "train").scores  # whatever can be scored is
    assert "chair_s" not in score_results(captions, labelled, "train", ["cider"]).scores
    other = tmp_path / "other"
    evaluate(None, labelled, "train", captions=captions_by_name(labelled, "a dog"), metrics=["cider"], output=other)
    assert compare([tmp_path, other], metrics=["chair"]).differences[0]["chair_s"]["difference"] == -1 / 2


def test_labels_are_read_from_a_file_or_found_in_the_folder(tiny_flickr8k: Path, tmp_path: Path):
    names = [example.name for example in load_dataset(tiny_flickr8k).examples("test")]
    labels = {"categories": ["cat", "dog"], "photos": {name: [1] for name in names}}
    path = tmp_path / "labels.json"
    path.write_text(json.dumps(labels))
    captions = dict.fromkeys(names, "a cat")
    assert score_results(captions, tiny_flickr8k, metrics=["chair"], objects=path).scores["chair_i"] == 1
    (tiny_flickr8k / "objects.json").write_text(path.read_text())
    assert score_results(captions, tiny_flickr8k, metrics=["chair"]).scores["chair_i"] == 1
    annotations = tmp_path / "annotations.json"
    rows = [{"image_id": name, "id": number, "caption": "a cat"} for number, name in enumerate(names)]
    annotations.write_text(json.dumps({"annotations": rows}))
    assert score_results(captions, annotations, metrics=["chair"], objects=path).scores["chair_i"] == 1


def test_labels_that_cannot_be_used_are_said_in_one_line(
    labelled: Dataset, tiny_flickr8k_kept: Path, perfect: dict[str, str], tmp_path: Path
):
    with pytest.raises(ConfigError, match=r"needs object labels.*--objects"):
        score_results(perfect, tiny_flickr8k_kept, metrics=["chair"])
    odd = [replace(example, objects=frozenset({"sofa"})) for example in labelled.examples("train")]
    dataset = replace(labelled, splits={**labelled.splits, "train": odd})
    with pytest.raises(DataError, match=r"1 name that COCO's 80 categories lack \(sofa\)"):
        evaluate(None, dataset, "train", captions=captions_by_name(dataset, "a dog"), metrics=["chair"])
    assert (
        "cider"
        in evaluate(None, dataset, "train", captions=captions_by_name(dataset, "a dog"), metrics=["cider"]).scores
    )
    with pytest.raises(DataError, match=r"missing\.json"):
        score_results(perfect, tiny_flickr8k_kept, metrics=["chair"], objects=tmp_path / "missing.json")
    (tmp_path / "others.json").write_text('{"categories": ["dog"], "photos": {"elsewhere.jpg": [0]}}')
    with pytest.raises(DataError, match=r"others\.json labels none of the photos"):
        score_results(perfect, tiny_flickr8k_kept, metrics=["chair"], objects=tmp_path / "others.json")


def test_photos_without_labels_are_counted_in_a_warning(labelled: Dataset, caplog: pytest.LogCaptureFixture):
    examples = labelled.examples("train")
    some = replace(labelled, splits={**labelled.splits, "train": [replace(examples[0], objects=None), *examples[1:]]})
    result = evaluate(None, some, "train", captions=captions_by_name(some, "a cat"), metrics=["chair"])
    assert result.scores == {"chair_s": 1, "chair_i": 1}
    assert caplog.messages == ["1 of 8 photos have no object labels: CHAIR counts the others"]


# Several sources, and people


def test_a_mixture_is_scored_together_and_each_source_alone(labelled: Dataset, tmp_path: Path):
    examples = labelled.examples("train")
    names = {example.name: "flickr8k" if number < 5 else "coco" for number, example in enumerate(examples)}
    mixed = [
        replace(example, source=names[example.name], objects=example.objects if number >= 5 else None)
        for number, example in enumerate(examples)
    ]
    dataset = replace(labelled, name="flickr8k+coco", splits={**labelled.splits, "train": mixed})
    captions = {example.name: example.captions[0] for example in examples}
    result = evaluate(None, dataset, "train", captions=captions, metrics=["cider", "chair"], output=tmp_path)
    alone = replace(labelled, splits={**labelled.splits, "train": mixed[5:]})
    expected = evaluate(None, alone, "train", captions=dict(list(captions.items())[5:]), metrics=["cider", "chair"])
    assert set(result.sources) == {"flickr8k", "coco"}
    assert result.sources["coco"] == expected.scores
    assert expected.sources == {}
    assert set(result.sources["flickr8k"]) == {"cider"}  # no labels there
    assert result.scores["cider"] != result.sources["coco"]["cider"]
    assert json.loads((tmp_path / "scores.json").read_text())["sources"] == result.sources
    first = {mixed[number].name: "a dog" for number in (0, 1, 5, 6)}
    few = evaluate(None, dataset, "train", captions=first, metrics=["cider"], limit=2)  # of each source
    assert [image.source for image in few.images] == ["flickr8k", "flickr8k", "coco", "coco"]


def test_people_are_scored_against_people(tiny_flickr8k_kept: Path):
    dataset = load_dataset(tiny_flickr8k_kept)
    result = evaluate_people(dataset, "train", metrics=QUICK, seed=3)
    for image in result.images:
        texts = next(example.captions for example in dataset.examples("train") if example.name == image.name)
        assert sorted((image.caption, *image.references)) == sorted(texts)
    assert result.captions == evaluate_people(dataset, "train", metrics=QUICK, seed=3).captions
    assert result.captions != evaluate_people(dataset, "train", metrics=QUICK, seed=4).captions
    assert result.signature.endswith("|captions:people's, seed 3")
    lonely = [replace(example, captions=example.captions[:1]) for example in dataset.examples("train")]
    one_less = [*lonely[:-1], dataset.examples("train")[-1]]
    assert len(evaluate_people(replace(dataset, splits={"train": one_less}), "train", metrics=["bleu"]).images) == 1
    with pytest.raises(DataError, match="two captions"):
        evaluate_people(replace(dataset, splits={"train": lonely}), "train", metrics=["bleu"])


def test_the_number_of_training_photos_is_kept_where_the_model_records_it(
    tiny_model: Path, tiny_flickr8k_kept: Path, tmp_path: Path
):
    copy = tmp_path / "model"
    shutil.copytree(tiny_model, copy)
    recorded = json.loads((copy / "metrics.json").read_text()) | {"train_photos": 8}
    (copy / "metrics.json").write_text(json.dumps(recorded))
    result = evaluate(copy, tiny_flickr8k_kept, metrics=["bleu"], output=tmp_path)
    assert result.train_photos == 8
    assert json.loads((tmp_path / "scores.json").read_text())["train_photos"] == 8


def test_a_metric_that_cannot_run_is_left_out_and_said_once(
    perfect: dict[str, str], tiny_flickr8k_kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def missing() -> Metric:
        raise DataError("its data is not here")

    monkeypatch.setitem(METRICS, "meteor", missing)
    result = score_results(perfect, tiny_flickr8k_kept, metrics=["bleu", "meteor"])
    assert "meteor" not in result.scores
    assert caplog.messages == ["meteor is left out: its data is not here"]
    caplog.clear()
    with pytest.raises(DataError, match="lack 1 of 2 images"):
        score_results(dict([*perfect.items()][:1]), tiny_flickr8k_kept, metrics=["bleu", "meteor"])
    assert not caplog.messages  # it is said with the scores, not before another error
    with pytest.raises(DataError, match="its data is not here"):  # an empty table would answer nothing
        score_results(perfect, tiny_flickr8k_kept, metrics=["meteor"])


def test_a_table_that_does_not_exist_is_one_line(command: Command, tiny_flickr8k_kept: Path):
    outcome = command("score", "gone.csv", "--references", tiny_flickr8k_kept, "--metrics", "bleu")
    assert outcome.complaints == ["error: gone.csv cannot be read: No such file or directory; check the path"]


# The command


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a dog", "1 different caption of 2, 2 different words, 2.0 words each; the most frequent, 2 times: a dog"),
        (None, ""),
    ],
)
def test_a_caption_given_more_than_once_is_named(
    command: Command, perfect: dict[str, str], tiny_flickr8k_kept: Path, tmp_path: Path, text: str | None, shown: str
):
    write_results(tmp_path / "results.json", {name: text or own for name, own in perfect.items()})
    scored = command("score", tmp_path / "results.json", "--references", tiny_flickr8k_kept, "--metrics", "bleu")
    assert scored.code == 0, scored.err
    assert shown in scored.out and ("most frequent" in scored.out) == bool(text)


def test_the_command_scores_people_and_objects(command: Command, tiny_flickr8k: Path, tmp_path: Path):
    names = [example.name for example in load_dataset(tiny_flickr8k).examples("test")]
    labels = tmp_path / "labels.json"
    labels.write_text(json.dumps({"categories": ["dog"], "photos": {name: [0] for name in names}}))
    data = ("--data", tiny_flickr8k, "--split", "test")
    done = command(
        "evaluate", "--human", *data, "--objects", labels, "--metrics", "cider,chair", "-o", tmp_path / "out"
    )
    assert done.code == 0
    assert "CHAIR, objects" in done.out
    assert "captions:people's, seed 0" in done.out
    assert "2 different captions of 2" in done.out and "most frequent" not in done.out
    results = tmp_path / "out" / "captions.json"
    scored = command("score", results, "--references", tiny_flickr8k, "--objects", labels, "--metrics", "chair")
    assert scored.code == 0
    assert "CHAIR, captions" in scored.out
    for wrong, message in ((("--human", "runs/x"), "without a model"), ((), "no model is named")):
        refused = command("evaluate", *wrong, *data)
        assert refused.code == 2
        assert message in refused.err
