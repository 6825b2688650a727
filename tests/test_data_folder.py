"""One's own captioned photos: every table and every layout of folders that is understood, and their faults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from drawings import DRAWINGS, EVERY, TEST, TRAIN
from layouts import KARPATHY, SIZES, caption_rows, draw_all, names, sizes, write_csv

from sightline.data import load_dataset
from sightline.errors import DataError


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("columns", [("image", "caption"), ("File_Name", "Text"), ("path", "description")])
def test_folder_with_a_table(tmp_path: Path, delimiter: str, columns: tuple[str, str]) -> None:
    draw_all(tmp_path / "photos")
    path = tmp_path / ("captions.tsv" if delimiter == "\t" else "captions.csv")
    write_csv(path, [list(columns), *caption_rows()], delimiter)
    for source in (tmp_path, path):
        dataset = load_dataset(source)
        assert dataset.name == (tmp_path.name if source == tmp_path else "captions")
        assert sizes(dataset) == {"train": 8, "val": 2, "test": 2}
        divided = (
            "train, val and test are not given: divided at random with seed 0 into 8 train, 2 val and 2 test photos"
        )
        assert divided in str(dataset.report) and dataset.report.ok


def test_folder_with_split_column_and_paths(tmp_path: Path) -> None:
    rows = [["split", "image", "note", "caption"]]
    for split, drawings in DRAWINGS.items():
        draw_all(tmp_path / split)
        rows += [[KARPATHY[split], f"{split}/{d.name}", "", caption] for d in drawings for caption in d.captions]
    rows[1][1] = str(tmp_path / "train" / TRAIN[0].name)  # an absolute path inside the folder is fine
    rows[2][1] = f".\\train\\{TRAIN[0].name}"
    write_csv(tmp_path / "data.csv", rows)
    dataset = load_dataset(tmp_path)
    assert sizes(dataset) == SIZES and not dataset.report.notes
    assert names(dataset, "test") == {drawing.name for drawing in TEST}
    assert {example.name for example in dataset.splits["test"]} == {f"test/{drawing.name}" for drawing in TEST}
    assert all(len(example.captions) == 5 for example in dataset.splits["train"])
    assert set(dataset.report.counts) == {"image_without_captions"}


def test_folder_with_jsonl_and_lists(tmp_path: Path) -> None:
    draw_all(tmp_path)
    rows = [json.dumps({"file_name": d.name, "captions": list(d.captions)}) for d in EVERY]
    rows += ["{not json", "[1]", json.dumps({"file_name": EVERY[0].name, "captions": [3]}), "", '{"captions": ["x"]}']
    (tmp_path / "metadata.jsonl").write_text("\n".join(rows))
    dataset = load_dataset(tmp_path)
    assert dataset.report.counts == {"unreadable_row": 4}
    assert all(len(example.captions) == 5 for example in dataset.splits["train"])


def test_folder_with_a_table_per_split(tmp_path: Path) -> None:
    draw_all(tmp_path / "images")
    for split, drawings in DRAWINGS.items():
        write_csv(tmp_path / f"{KARPATHY[split]}.csv", [["image", "caption"], *([d.name, "x y"] for d in drawings)])
    assert sizes(load_dataset(tmp_path)) == SIZES


def test_folder_with_a_folder_per_split(tmp_path: Path) -> None:
    for split, drawings in DRAWINGS.items():
        draw_all(tmp_path / split)
        rows = [["file_name", "text"], *([d.name, caption] for d in drawings for caption in d.captions)]
        write_csv(tmp_path / split / "metadata.csv", rows)
    dataset = load_dataset(tmp_path)
    assert sizes(dataset) == SIZES
    assert all(example.image.parent.name == "val" for example in dataset.splits["val"])


def test_folder_with_text_beside_each_image(tmp_path: Path) -> None:
    draw_all(tmp_path / "deep")
    for drawing in EVERY[:-1]:
        (tmp_path / "deep" / drawing.name).with_suffix(".txt").write_text("\n".join(drawing.captions) + "\n\n")
    (tmp_path / "deep" / EVERY[-1].name).with_suffix(".txt").touch()
    dataset = load_dataset(tmp_path)
    assert sizes(dataset) == {"train": 9, "val": 1, "test": 1}
    assert dataset.report.counts == {"empty_caption": 1, "image_without_captions": 1}


def test_faults_of_a_table(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        draw_all(tmp_path / folder)
    rows = [["image", "caption"], *caption_rows()]
    write_csv(tmp_path / "captions.csv", rows)
    with (tmp_path / "captions.csv").open("a") as file:
        name = EVERY[0].name
        file.write(f'{name},commas, not quoted\n{name}\n,no image\n{name},\nC:\\x.jpg,out\n{name},"{rows[1][1]}"\n')
        file.write(f'{name},caf\ufffd\nnotes.txt,no photo\n{name},"a quotation mark that\nnever ends\n')
    (tmp_path / "notes.txt").touch()
    report = load_dataset(tmp_path).report
    assert report.counts == {
        "two_files": 12,
        "not_utf8": 1,
        "unquoted_separator": 1,
        "several_lines": 1,
        "not_an_image": 1,
        "unreadable_row": 2,
        "empty_caption": 1,
        "escaping_name": 1,
        "duplicate_row": 1,
        "image_without_captions": 12,
    }
    assert len(report.examples["two_files"]) == 5 and "…" in str(report)


def test_neither_a_long_line_of_another_table_nor_a_blank_first_line_is_a_fault(tmp_path: Path) -> None:
    draw_all(tmp_path)
    (tmp_path / "numbers.csv").write_text("1" * 200_000 + "\n")
    write_csv(tmp_path / "captions.csv", [["  "], ["image", "caption"], *caption_rows()])
    assert load_dataset(tmp_path).report.ok


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_table_as_excel_writes_it(tmp_path: Path, encoding: str) -> None:
    draw_all(tmp_path)
    rows = "".join(f"{drawing.name};a café\r\n" for drawing in EVERY)
    table = tmp_path / "captions.csv"
    table.write_text(f"sep=;\r\nimage;caption\r\n{rows}only a name\r\n", encoding=encoding, newline="")
    dataset = load_dataset(table)
    assert dataset.report.examples == {"unreadable_row": [f"captions.csv line {len(EVERY) + 3}"]}
    assert set(dataset.captions("train")) == {"a café"}
    table.write_text(f"image;caption\r\n{rows}", encoding="cp1252", newline="")
    with pytest.raises(DataError, match=r"12 rows are not UTF-8 \(save the file as UTF-8, in Excel as CSV UTF-8\)"):
        load_dataset(table)


def test_a_misspelt_column_is_shown_among_those_found(tmp_path: Path) -> None:
    draw_all(tmp_path)
    write_csv(tmp_path / "captions.csv", [["image", "captoin"], *caption_rows()])
    for source in (tmp_path, tmp_path / "captions.csv"):
        with pytest.raises(DataError, match=r"captions.csv has no caption column, its columns are image, captoin: "):
            load_dataset(source)


@pytest.mark.parametrize("name", ["photos: 2024|x+y", "...", "big"])
def test_a_dataset_has_a_name_that_is_safe_in_signatures(tmp_path: Path, name: str) -> None:
    draw_all(tmp_path / name)
    write_csv(tmp_path / name / "captions.csv", [["image", "caption"], *caption_rows()])
    assert load_dataset(tmp_path / name).name == {"big": "big", "...": "folder"}.get(name, "photos-2024-x-y")


def test_pictures_of_a_training_run_are_no_photos(tmp_path: Path) -> None:
    draw_all(tmp_path / "photos")
    write_csv(tmp_path / "captions.csv", [["image", "caption"], *caption_rows()])
    run = tmp_path / "runs" / "mine"
    for name in ("curves.png", "samples.png", "other.png"):
        run.mkdir(parents=True, exist_ok=True)
        EVERY[0].draw().save(run / name)
    (run / "run.json").touch()
    assert load_dataset(tmp_path).report.examples == {"image_without_captions": ["runs/mine/other.png"]}


def test_paths_that_lie_elsewhere_are_told_what_is_supported(tmp_path: Path) -> None:
    draw_all(tmp_path / "photos")
    rows = [[str(tmp_path / "photos" / name), caption] for name, caption in caption_rows()]
    table = tmp_path / "tables" / "captions.csv"
    table.parent.mkdir()
    write_csv(table, [["image", "caption"], *rows])
    with pytest.raises(DataError, match=r"^no image lies under .*image paths are relative to the table\)$"):
        load_dataset(table)
    draw_all(table.parent / "others")
    with pytest.raises(DataError, match=r"point outside the dataset \(paths must be relative to the table\)"):
        load_dataset(table)


def test_a_stray_quotation_mark_cannot_break_a_large_table(tmp_path: Path) -> None:
    draw_all(tmp_path)
    rows = "".join(f"{name},{caption.replace(',', '')}\n" for name, caption in caption_rows())
    (tmp_path / "captions.csv").write_text(f'image,caption\n{rows}{EVERY[0].name},"open\n' + rows * 200)
    assert load_dataset(tmp_path).report.counts["unreadable_row"] >= 1
    for times in (1, 200):
        (tmp_path / "captions.csv").write_text('image,"caption\n' + rows * times)
        assert sizes(load_dataset(tmp_path)) == {"train": 8, "val": 2, "test": 2}
