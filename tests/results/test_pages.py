"""README.md, RESULTS.md and results/*.md show what the JSON files hold; hand-written text on them stays as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import own_data
import table
from rows import read_json, read_row, read_rows
from script import RESULTS, ROOT
from sightline.data import load_dataset, read_results
from sightline.errors import DataError
from sightline.evaluation.metrics import score
from sightline.evaluation.scoring import evaluate_people


def block(page: str, name: str) -> str:
    return page.partition(f"<!-- results: {name} -->")[2].partition(f"<!-- end of results: {name} -->")[0]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("| ").split(" | ")]


@pytest.fixture
def made_pages(tmp_path: Path) -> Path:
    """The repository's pages, their tables emptied."""
    (tmp_path / "results").mkdir(exist_ok=True)
    for name in table.blocks(RESULTS):
        text = (ROOT / name).read_text(encoding="utf-8")
        emptied = re.sub(r"(<!-- results: (.*?) -->\n).*?(<!-- end of results: \2 -->)", r"\1\3", text, flags=re.S)
        (tmp_path / name).write_text(emptied, encoding="utf-8")
    return tmp_path


# The repository itself


def test_every_page_agrees_with_the_json_files() -> None:
    behind = [path.name for path, (before, after) in table.pages().items() if before != after]
    assert behind == [], "run results/tools/table.py"


def test_every_row_is_in_the_table_with_its_own_numbers() -> None:
    """Read back by other means than it was written: the numbers on the page against the numbers in the file."""
    lines = {
        line.partition("[`")[2].partition("`]")[0]: line
        for line in block((ROOT / "RESULTS.md").read_text(), "systems").splitlines()
    }
    rows = {name: row for name, row in read_rows(RESULTS).items() if row.test}
    assert rows
    for name, row in rows.items():
        found = cells(lines[name])
        keys = ("bleu_1", "bleu_4", "meteor")
        assert [float(cell) for cell in found[1:4]] == [pytest.approx(row.test[key], abs=0.0501) for key in keys]
        cider, low, high = map(float, re.findall(r"[\d.]+", found[4]))
        assert (cider, low, high) == pytest.approx((row.test["cider"], *row.interval["cider"]), abs=0.0501)
        if row.parameters:  # people have none
            captions = read_results(RESULTS / f"{name}.captions.json").values()
            assert int(found[5]) == len({text.removesuffix(" .") for text in captions}), "with a full stop or without"
            assert int(found[6]) == len(
                {word for text in captions for word in text.replace("'s", " 's").split()} - {"."}
            )
            assert float(found[7].removesuffix(" M")) == pytest.approx(row.parameters / 1e6, abs=0.0501)
            assert float(found[8]) == pytest.approx(row.train_minutes, abs=0.501)


def test_every_coco_row_has_chair_and_is_in_the_table_with_its_own_numbers() -> None:
    lines = {
        line.partition("[`")[2].partition("`]")[0]: line
        for line in block((ROOT / "RESULTS.md").read_text(), "coco").splitlines()
    }
    rows = {name: row for name, row in read_rows(RESULTS / "coco").items() if row.test}
    assert {"dinov2-coco-scst", "human"} <= set(rows)
    for name, row in rows.items():
        found = cells(lines[name])
        for cell, key in zip(found[1:4], ("cider", "chair_i", "chair_s")):
            numbers = tuple(map(float, re.findall(r"[\d.]+", cell)))
            assert numbers == pytest.approx((row.test[key], *row.interval[key]), abs=0.0501)
        expected = [pytest.approx(row.test[key], abs=0.0501) for key in ("bleu_4", "meteor")]
        assert [float(cell) for cell in found[4:6]] == expected
        if row.train_photos:
            assert found[6] == f"{row.train_photos:,}"


def test_the_page_on_own_data_agrees_with_its_json_file() -> None:
    page = own_data.PAGE.read_text(encoding="utf-8")
    assert page == table.filled(page, own_data.blocks(read_json(RESULTS / "own_data.json"))), "run own_data.py"


def test_no_row_names_a_folder_of_a_machine() -> None:
    for path in RESULTS.rglob("*.json"):
        assert not re.search(r'[ "=](/[\w.-]+){2,}', path.read_text(encoding="utf-8")), path.name


def test_a_rows_captions_give_its_scores(real_flickr8k: Path) -> None:
    references = {example.name: example.captions for example in load_dataset(real_flickr8k).examples("test")}
    for name, row in read_rows(RESULTS).items():
        if row.test and row.parameters:
            captions = read_results(RESULTS / f"{name}.captions.json")
            assert set(captions) == set(references)
            found = score([captions[photo] for photo in references], list(references.values()), ("bleu", "cider"))
            assert {key: 100 * found[key] for key in found} == {
                key: pytest.approx(row.test[key], abs=0.0051) for key in found
            }


def test_people_score_as_their_row_says(real_flickr8k: Path) -> None:
    row = read_row(RESULTS / "human.json")
    found = evaluate_people(real_flickr8k, "test", seed=row.seed, metrics=("bleu", "cider"), resamples=1).scores
    assert {key: 100 * found[key] for key in found} == {key: pytest.approx(row.test[key], abs=0.0051) for key in found}


# Any rows


def test_a_row_that_is_added_appears_and_text_around_it_stays(made_results: Path, made_pages: Path) -> None:
    (made_pages / "RESULTS.md").write_text((made_pages / "RESULTS.md").read_text() + "\nA word of mine.\n")
    outside = re.sub(r"<!-- results.*?<!-- end", "", (made_pages / "RESULTS.md").read_text(), flags=re.S)
    changed = table.write_pages(made_pages, made_results)
    assert [path.name for path in changed][:3] == ["README.md", "RESULTS.md", "scores.md"]
    page = (made_pages / "RESULTS.md").read_text()
    assert re.sub(r"<!-- results.*?<!-- end", "", page, flags=re.S) == outside
    first = cells(block(page, "systems").strip().splitlines()[2])
    assert first[0].startswith("Show, Attend and Tell, soft attention, VGG-19 ([`sat-soft-vgg19`]")
    assert first[1:] == [
        "20.0",
        "20.8",
        "22.0",
        "44.0 (42.5–45.5)",
        "24",
        "27",
        "34.6 M",
        "123",
    ]
    assert "](sat-soft-vgg19.curve.json)" in (made_pages / "results" / "scores.md").read_text()
    assert table.write_pages(made_pages, made_results) == []


def test_a_row_that_only_val_has_seen_is_not_among_the_systems(made_results: Path, made_pages: Path) -> None:
    table.write_pages(made_pages, made_results)
    assert "only-val" not in (made_pages / "RESULTS.md").read_text()
    assert "only-val" not in (made_pages / "results" / "captions.md").read_text()
    assert "`only-val` | 20.0" in block((made_pages / "results" / "scores.md").read_text(), "scores")


def test_recipes_without_a_row_say_why_until_they_have_one(made_results: Path) -> None:
    last = table.systems(made_results).splitlines()[-1]
    assert last.startswith("Not trained yet: ") and "`sat-soft-resnet152`" in last
    assert last.endswith("Weights needed: `sat-soft-densenet201`.")
    row = json.loads((made_results / "sat-soft-vgg19.json").read_text())
    (made_results / "other.json").write_text(json.dumps(row | {"recipe": "sat-soft-resnet152"}))
    assert table.systems(made_results).splitlines()[-1] == last.replace("`sat-soft-resnet152`, ", "")


def test_the_default_model_is_found_by_its_weights(made_results: Path) -> None:
    from sightline.nn.checkpoint import checkpoint_hash
    from sightline.nn.hub import DEFAULT_MODEL

    row = json.loads((made_results / "sat-soft-vgg19.json").read_text())
    assert "the default model" not in table.systems(made_results)
    changed = row | {"signature": f"sightline|ckpt:{checkpoint_hash(DEFAULT_MODEL)}"}
    (made_results / "sat-soft-vgg19.json").write_text(json.dumps(changed))
    assert "the default model" in table.systems(made_results)


def test_samples_show_every_system_beside_a_person(made_results: Path) -> None:
    text = table.blocks(made_results)["results/captions.md"]["samples"]
    assert "`00.jpg`" in text and "| a person | A dog \\| a cat |" in text
    assert "| `sat-soft-vgg19` | a dog number 02 |" in text


def test_the_curves_table_names_the_epoch_that_was_kept(made_results: Path) -> None:
    (line,) = table.blocks(made_results)["results/scores.md"]["curves"].splitlines()[2:]
    assert cells(line)[1:4] == ["3", "2", "20"]
    assert cells(line)[-1] == "22.0"


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("no place", "has no markers for 'table'"),
        ("<!-- end of results: table --><!-- results: table -->", "has no markers for 'table'"),
        (
            "<!-- results: table --><!-- end of results: table --><!-- results: tabel -->",
            "'tabel', which nothing fills",
        ),
    ],
)
def test_a_page_without_its_places_is_refused(page: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        table.filled(page, {"table": "x"})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda row: row.pop("seed"),
        lambda row: row.update(extra=1),
        lambda row: row["test"].pop("cider"),
        lambda row: row["val"].clear(),
        lambda row: row.update(parameters=-1),
    ],
)
def test_a_damaged_row_is_named(spoil, made_results: Path) -> None:
    path = made_results / "sat-soft-vgg19.json"
    row = json.loads(path.read_text())
    spoil(row)
    path.write_text(json.dumps(row))
    with pytest.raises(DataError, match=r"sat-soft-vgg19\.json"):
        read_row(path)


def test_the_readme_shows_one_system_of_each_kind_and_marks_the_default_model() -> None:
    lines = table.best_systems(RESULTS).splitlines()[2:]
    assert len(lines) == len(table.README_ROWS) == 5
    assert [line for line in lines if line.startswith("| **")] == [
        line for line in lines if "the default model" in line
    ]
    row = read_row(RESULTS / "clip-dinov2-coco-scst.json")
    assert cells(lines[0])[1:4] == [f"{row.test[key]:.1f}" for key in ("bleu_4", "meteor", "cider")]
