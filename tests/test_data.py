"""The published datasets in every layout, sound and spoilt; what the report says, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from drawings import DEV, DRAWINGS, EVERY, LISTS, TEST, TRAIN
from layouts import SIZES, caption_rows, coco_annotations, draw_all, error_message, karpathy, names, sizes, write_csv

from sightline.data import DATASETS, find_format, load_dataset, verify_images
from sightline.data.dataset import FAULTS, Dataset, Report, mix
from sightline.data.tables import read_rows
from sightline.errors import ConfigError, DataError

# Flickr8k


def test_flickr8k_in_its_original_layout(tiny_flickr8k: Path) -> None:
    dataset = load_dataset(tiny_flickr8k)
    assert dataset.name == "flickr8k" and sizes(dataset) == SIZES
    assert names(dataset, "test") == {drawing.name for drawing in TEST}
    assert dataset.report.ok and not dataset.report.notes
    by_name = {example.name: example.captions for example in dataset.splits["train"]}
    assert by_name[TRAIN[0].name] == TRAIN[0].captions


@pytest.mark.parametrize("half", ["Flickr8k_text", "Flicker8k_Dataset"])
def test_flickr8k_named_by_one_of_its_halves(tiny_flickr8k: Path, half: str) -> None:
    assert sizes(load_dataset(tiny_flickr8k / half)) == SIZES


def test_flickr8k_spelt_and_nested_otherwise(tiny_flickr8k: Path) -> None:
    shutil.move(tiny_flickr8k / "Flicker8k_Dataset", tiny_flickr8k / "inner")
    (tiny_flickr8k / "Flickr8k_Dataset").mkdir()
    shutil.move(tiny_flickr8k / "inner", tiny_flickr8k / "Flickr8k_Dataset" / "Flicker8k_Dataset")
    assert sizes(load_dataset(str(tiny_flickr8k))) == SIZES


def test_flickr8k_as_images_and_captions_txt(tmp_path: Path) -> None:
    draw_all(tmp_path / "Images")
    write_csv(tmp_path / "captions.txt", [["image", "caption"], *caption_rows()])
    dataset = load_dataset(tmp_path)
    assert dataset.name == "flickr8k" and sizes(dataset) == {"train": 8, "val": 2, "test": 2}
    assert "divided at random with seed 0" in str(dataset.report) and dataset.report.ok
    published = {drawing.name: drawing.captions for drawing in EVERY}
    assert all(example.captions == published[example.name] for example in dataset.splits["train"])
    assert dataset.splits == load_dataset(tmp_path, seed=0).splits
    assert dataset.splits != load_dataset(tmp_path, seed=1).splits
    for split, drawings in DRAWINGS.items():
        (tmp_path / f"Flickr_8k.{LISTS[split]}Images.txt").write_text("\n".join(drawing.name for drawing in drawings))
    official = load_dataset(tmp_path)
    assert names(official, "val") == {drawing.name for drawing in DEV} and not official.report.notes


def test_flickr8k_in_karpathys_json(tmp_path: Path) -> None:
    draw_all(tmp_path / "images")
    (tmp_path / "dataset_flickr8k.json").write_text(json.dumps(karpathy()))
    assert names(load_dataset(tmp_path), "val") == {drawing.name for drawing in DEV}


def test_every_fault_of_flickr8k_is_reported_and_none_is_fatal(tiny_flickr8k: Path) -> None:
    tokens = tiny_flickr8k / "Flickr8k_text" / "Flickr8k.token.txt"
    first, second, third = (drawing.name for drawing in TRAIN[:3])
    with tokens.open("ab") as file:
        file.write(f"{first}#0\t{TRAIN[0].captions[0]}\n".encode())  # the same row again
        file.write(f"{first}#5\t{TRAIN[0].captions[0]}\n".encode())  # the same caption, numbered anew
        file.write(f"{second}#5\t  \n".encode())
        file.write(b"gone.jpg.1#0\tA photo that went away .\n" * 2)
        file.write(b"../../etc/secret.jpg#0\tOutside .\n/etc/secret.jpg#0\tOutside .\n")
        file.write(b"no tab at all\n#0\tno image\nwithout-number.jpg\tcaption\n")
        file.write(f"{third}#5\t".encode() + b"caf\xe9 in Latin-1\n\n")
    extra = tiny_flickr8k / "Flicker8k_Dataset" / "lonely.jpg"
    EVERY[0].draw().save(extra)
    shutil.copy(extra, extra.with_name("unlisted.jpg"))
    with tokens.open("a") as file:
        file.write("unlisted.jpg#0\tIn no list .\n")
    with (tokens.parent / "Flickr_8k.trainImages.txt").open("a") as file:
        file.write(f"unknown.jpg\n{TEST[0].name}\n")
    dataset = load_dataset(tiny_flickr8k)
    assert sizes(dataset) == SIZES and not dataset.report.ok
    assert dataset.report.counts == {
        "duplicate_row": 1,
        "repeated_caption": 1,
        "empty_caption": 1,
        "missing_image": 1,
        "escaping_name": 2,
        "unreadable_row": 3,
        "not_utf8": 1,
        "image_without_captions": 1,
        "unlisted": 1,
        "unknown_in_list": 1,
        "two_splits": 1,
    }
    text = str(dataset.report)
    assert "1 captioned image does not exist and was left out: gone.jpg.1" in text and "lonely.jpg" in text
    assert len(text.splitlines()) == 1 + len(dataset.report.counts)


@pytest.mark.real
def test_real_flickr8k(real_flickr8k: Path) -> None:
    dataset = load_dataset(real_flickr8k)
    assert sizes(dataset) == {"train": 6000, "val": 1000, "test": 1000}
    assert all(len(example.captions) == 5 for split in dataset.splits.values() for example in split)
    assert dataset.report.counts["repeated_caption"] == 10
    assert dataset.report.counts["missing_image"] >= 1  # among them 2258277193_586949ec62.jpg.1
    assert set(dataset.report.counts) <= {"repeated_caption", "missing_image", "unlisted"}
    assert (
        verify_images(Dataset("", real_flickr8k, {s: e[:20] for s, e in dataset.splits.items()}, dataset.report)) == []
    )


# Flickr30k


def test_flickr30k_with_the_public_splits(tmp_path: Path) -> None:
    draw_all(tmp_path / "flickr30k-images")
    (tmp_path / "dataset_flickr30k.json").write_text(json.dumps(karpathy()))
    dataset = load_dataset(tmp_path)
    assert dataset.name == "flickr30k" and sizes(dataset) == SIZES and dataset.report.ok
    assert names(dataset, "val") == {drawing.name for drawing in DEV}


def test_flickr30k_token_file(tmp_path: Path, tiny_flickr8k: Path) -> None:
    root = tmp_path / "flickr30k"
    draw_all(root / "images")
    shutil.copy(tiny_flickr8k / "Flickr8k_text" / "Flickr8k.token.txt", root / "results_20130124.token")
    dataset = load_dataset(root)
    assert dataset.name == "flickr30k" and sizes(dataset) == {"train": 10, "val": 1, "test": 1}


def test_flickr30k_results_csv_with_its_broken_row(tmp_path: Path) -> None:
    draw_all(tmp_path / "flickr30k_images")
    lines = ["image_name| comment_number| comment"]
    lines += [f"{d.name}| {number}| {text}" for d in EVERY for number, text in enumerate(d.captions)]
    lines[5] = lines[5].replace("| 4| ", "| 4   ")
    lines += [f"{EVERY[0].name}| 5| a | b", f"{EVERY[1].name}| nothing"]
    (tmp_path / "flickr30k_images" / "results.csv").write_text("\n".join(lines))
    dataset = load_dataset(tmp_path)
    found = {e.name: e.captions for split in dataset.splits.values() for e in split}
    assert found[EVERY[0].name] == (*EVERY[0].captions, "a | b")
    assert dataset.report.counts == {"repaired_row": 1, "unreadable_row": 1}


# COCO


def make_coco(root: Path, year: str = "2017") -> Path:
    (root / "annotations").mkdir(parents=True)
    for part, drawings, first in (("train", TRAIN, 1), ("val", DEV + TEST, 50)):
        (root / f"{part}{year}").mkdir()
        for drawing in drawings:
            drawing.draw().save(root / f"{part}{year}" / drawing.name)
        content = coco_annotations(drawings, first)
        (root / "annotations" / f"captions_{part}{year}.json").write_text(json.dumps(content))
    return root


def test_coco_annotations_with_val_halved(tmp_path: Path) -> None:
    root = make_coco(tmp_path)
    (root / "test2017").mkdir()
    EVERY[0].draw().save(root / "test2017" / "000.jpg")
    dataset = load_dataset(root)
    assert dataset.name == "coco" and sizes(dataset) == SIZES and dataset.report.ok
    assert "test is not given: val was divided at random with seed 0 into 2 test and 2 val photos" in str(
        dataset.report
    )
    assert names(dataset, "val") | names(dataset, "test") == {drawing.name for drawing in DEV + TEST}
    assert all(example.name.isdigit() for example in dataset.splits["test"])


def test_coco_takes_the_year_whose_photos_are_here(tmp_path: Path) -> None:
    root = make_coco(tmp_path, "2014")
    (root / "annotations" / "captions_val2017.json").write_text(json.dumps(coco_annotations(DEV, 1)))
    assert sizes(load_dataset(root)) == SIZES


def test_coco_public_splits_count_restval_as_train(tmp_path: Path) -> None:
    content = karpathy()
    for number, entry in enumerate(content["images"]):
        folder = "train2014" if number < 6 else "val2014"
        entry["split"] = "restval" if 6 <= number < 8 else entry["split"]
        entry |= {"filepath": folder, "cocoid": number + 1, "filename": f"COCO_{folder}_{number + 1:012d}.jpg"}
        (tmp_path / folder).mkdir(exist_ok=True)
        EVERY[number].draw().save(tmp_path / folder / entry["filename"])
    (tmp_path / "dataset_coco.json").write_text(json.dumps(content))
    dataset = load_dataset(tmp_path)
    assert sizes(dataset) == SIZES and dataset.report.ok and not dataset.report.notes
    assert {example.name for example in dataset.splits["test"]} == {"11", "12"}
    for path in list(tmp_path.glob("*2014/*.jpg")):  # the same photos under their names of 2017
        path.rename(path.with_name(path.name.rpartition("_")[2]))
    assert sizes(load_dataset(tmp_path)) == SIZES


def test_faults_of_coco(tmp_path: Path) -> None:
    root = make_coco(tmp_path)
    path = root / "annotations" / "captions_train2017.json"
    content = json.loads(path.read_text())
    content["images"] += [{"id": 900, "file_name": "../x.jpg"}, {"id": 901, "file_name": "gone.jpg"}, {"id": 902}, 7]
    content["annotations"] += [
        {"image_id": 900, "caption": "out"},
        {"image_id": 901, "caption": "gone"},
        {"image_id": 999, "caption": "of no image"},
        {"image_id": 1, "caption": None},
        {"image_id": 1, "id": 5, "caption": " "},
        {"image_id": [1], "caption": "x"},
        content["annotations"][0],
        "junk",
    ]
    path.write_text(json.dumps(content))
    assert load_dataset(root).report.counts == {
        "escaping_name": 1,
        "missing_image": 1,
        "unreadable_row": 6,
        "empty_caption": 1,
        "duplicate_row": 1,
    }


def test_broken_json_is_one_line(tmp_path: Path) -> None:
    root = make_coco(tmp_path)
    path = root / "annotations" / "captions_train2017.json"
    path.write_text(path.read_text()[:-50])
    assert "captions_train2017.json is not JSON" in error_message(DataError, root)
    path.write_text("[]")
    assert 'no list "images"' in error_message(DataError, root)
    (root / "dataset_coco.json").write_text("[" * 100_000)
    assert "dataset_coco.json is not JSON" in error_message(DataError, root)
    path = (root / "dataset_coco.json").rename(root / "captions.jsonl")
    with pytest.raises(DataError, match=r"captions\.jsonl cannot be read"):
        list(read_rows(path))


# Refusals and announcements


def test_unknown_format_suggests_the_nearest(tmp_path: Path) -> None:
    message = error_message(ConfigError, tmp_path, format="flicker8k")
    assert "did you mean 'flickr8k'" in message and "coco" in message


@pytest.mark.parametrize("format", list(DATASETS))
def test_a_format_named_wrongly_is_one_line(tmp_path: Path, format: str) -> None:
    EVERY[0].draw().save(tmp_path / "a.jpg")
    error_message(DataError, tmp_path, format=format)


def test_errors_of_a_whole_dataset(tmp_path: Path) -> None:
    assert "does not exist" in error_message(DataError, tmp_path / "no")
    assert "web address" in error_message(DataError, "https://example.org/flickr8k")
    with pytest.raises(DataError, match="web address"):
        find_format("https://example.org/flickr8k")
    assert "holds no known dataset" in error_message(DataError, tmp_path)
    (tmp_path / "readme.md").touch()
    message = error_message(DataError, tmp_path / "readme.md")
    assert "holds no known dataset" in message and "add a captions.csv (or .tsv, .jsonl) with the columns" in message
    write_csv(tmp_path / "captions.csv", [["image", "caption"], ["a.jpg", "A cat ."]])
    assert "no image lies under" in error_message(DataError, tmp_path)
    EVERY[0].draw().save(tmp_path / "b.jpg")
    message = error_message(DataError, tmp_path)
    EVERY[0].draw().save(tmp_path / "c.jpg")  # more images without captions than wrong names: they are not the cause
    cause = "1 captioned image does not exist and was left out, such as a.jpg"
    assert message.endswith(f"no image has a caption; {cause} (image paths are relative to {tmp_path})")
    assert error_message(DataError, tmp_path) == message
    write_csv(tmp_path / "other.csv", [["x", "y"], ["a.jpg", "A cat ."]])
    message = error_message(DataError, tmp_path / "other.csv")
    assert "other.csv has no image and no caption column, its columns are x, y: name them" in message
    write_csv(tmp_path / "captions.csv", [["image", "caption"], ["b.jpg", "A cat ."]])
    assert "three splits need more than 1 captioned photo;" in error_message(DataError, tmp_path)


def test_several_tables_must_be_named(tmp_path: Path) -> None:
    draw_all(tmp_path)
    for name in ("one.csv", "two.csv"):
        write_csv(tmp_path / name, [["image", "caption"], *caption_rows()])
    assert "several caption tables (one.csv, two.csv)" in error_message(DataError, tmp_path)
    assert sizes(load_dataset(tmp_path / "two.csv")) == {"train": 8, "val": 2, "test": 2}


def test_an_emptied_split_is_fatal(tiny_flickr8k: Path) -> None:
    for drawing in TEST:
        (tiny_flickr8k / "Flicker8k_Dataset" / drawing.name).unlink()
    message = error_message(DataError, tiny_flickr8k)
    assert message.startswith("the test split of") and "do not exist" in message


def test_a_random_split_of_no_photos_is_not_announced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    draw_all(tmp_path / "photos")
    table = tmp_path / "mine.csv"
    for splits in ([""], ["train"], ["train", "val"]):
        rows = [[f"x/{d.name}", "A cat .", split] for d in EVERY for split in splits]
        write_csv(table, [["image", "caption", "split"], *rows])
        message = error_message(DataError, table)
        assert re.match(rf"the train split of mine in {tmp_path} is empty: .* do not exist", message)
    assert caplog.text == ""


def test_one_held_out_photo_cannot_be_divided_and_this_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    draw_all(tmp_path)
    rows = [[d.name, "A cat .", "train"] for d in EVERY[1:]]
    write_csv(tmp_path / "captions.csv", [["image", "caption", "split"], *rows, [EVERY[0].name, "A cat .", "test"]])
    assert error_message(DataError, tmp_path).startswith("the val split of")
    assert "test was divided at random with seed 0 into 0 val and 1 test photos" in caplog.text


def test_faults_that_cost_photos_are_named_before_others(tmp_path: Path) -> None:
    draw_all(tmp_path)
    rows = [[EVERY[0].name, "A cat ."]] * 3 + [["gone.jpg", "A cat ."], [EVERY[1].name, "A dog ."]]
    write_csv(tmp_path / "captions.csv", [["image", "caption"], *rows])
    assert "1 captioned image does not exist" in error_message(DataError, tmp_path)


def test_random_split_is_announced_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    draw_all(tmp_path)
    write_csv(tmp_path / "captions.csv", [["image", "caption"], *caption_rows()])
    dataset = load_dataset(tmp_path, seed=7)
    assert caplog.text.count("divided at random with seed 7") == 1
    assert "divided at random with seed 7" in str(dataset.report)
    assert "at random" not in dataset.report.without_notes()  # training logs it after the warning
    assert "at random" not in mix([dataset, dataset]).report.without_notes()


def test_splits_are_reached_by_their_common_names(tiny_flickr8k: Path) -> None:
    dataset = load_dataset(tiny_flickr8k)
    assert dataset.examples("dev") is dataset.splits["val"]
    assert len(list(dataset.captions("train"))) == 40
    with pytest.raises(ConfigError, match="choose train, val or test"):
        dataset.examples("tset")


def test_verify_images_opens_each_photo(tiny_flickr8k: Path) -> None:
    path = tiny_flickr8k / "Flicker8k_Dataset" / TRAIN[0].name
    path.write_bytes(path.read_bytes()[:500])
    seen: list[tuple[int, int]] = []
    failures = verify_images(load_dataset(tiny_flickr8k), lambda done, total: seen.append((done, total)))
    assert [failure.source for failure in failures] == [str(path)]
    assert seen[-1] == (12, 12)


def test_faults_are_all_described() -> None:
    assert all(words for words in FAULTS.values())


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_is_told_in_the_singular(fault: str) -> None:
    report = Report()
    report.add(fault, "x")
    assert not re.search(r"\b(rows|images|names|captions|entries|are|were|do|have)\b", report.describe(fault))
    report.add(fault, "y")
    assert report.describe(fault) == f"2 {FAULTS[fault]}"


def test_a_dataset_here_is_told_by_its_name(
    tiny_flickr8k: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    draw_all(tiny_flickr8k)
    write_csv(tiny_flickr8k / "mine.csv", [["image", "caption"], *caption_rows()])
    monkeypatch.chdir(tiny_flickr8k)
    for here in (".", "mine.csv", "Flickr8k_text/.."):
        assert f"{tiny_flickr8k}: 8 train" in load_dataset(here).report.title
    assert f"mine in {tiny_flickr8k}: train, val and test are not given" in caplog.text
