"""Datasets of the Hugging Face hub, by way of one that lies on this machine: photos, captions, splits and errors."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from commands import Command, tiny_recipe
from PIL import Image

from sightline.data import load_dataset
from sightline.data.huggingface import Columns, captions_in, find_columns
from sightline.errors import DataError, SightlineError


class Photos:
    """The type of a column of images, by the name that the library gives it."""


Photos.__name__ = "Image"
TEXT = object()


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        ({"image": Photos(), "caption": TEXT}, {}, Columns("image", ("caption",), "")),
        ({"image": Photos(), "text": TEXT, "split": TEXT}, {}, Columns("image", ("text",), "split")),
        ({"jpg": Photos(), "caption_0": TEXT, "caption_1": TEXT}, {}, Columns("jpg", ("caption_0", "caption_1"), "")),
        ({"a": Photos(), "b": Photos(), "x": TEXT}, {"image": "b", "captions": "x"}, Columns("b", ("x",), "")),
    ],
)
def test_columns_are_found_by_type_and_name(
    columns: dict[str, Any], options: dict[str, str], expected: Columns
) -> None:
    assert find_columns("me/mine", columns, options) == expected


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"url": TEXT, "caption": TEXT}, {}, "me/mine has no column of images; its columns are url, caption"),
        ({"a": Photos(), "b": Photos()}, {}, "there are images in a and b; name the column, as in hf:me/mine?image=a"),
        ({"image": Photos(), "label": TEXT}, {}, "its columns are image, label: name one or more, as in hf:me/mine?"),
        (
            {"image": Photos(), "label": TEXT},
            {"captions": "lable"},
            "no column 'lable' (did you mean 'label'?); it has",
        ),
        ({"image": Photos(), "label": TEXT}, {"image": "label"}, "label holds no images"),
    ],
)
def test_an_error_lists_the_columns(columns: dict[str, Any], options: dict[str, str], message: str) -> None:
    with pytest.raises(DataError) as error:
        find_columns("me/mine", columns, options)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_captions_are_texts_lists_or_objects() -> None:
    assert list(captions_in("a dog")) == ["a dog"]
    assert list(captions_in([{"raw": "a dog", "id": 1}, "a cat", None])) == ["a dog", "a cat"]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset with three splits as the hub has them: Parquet files with photos; captions are lists."""
    pytest.importorskip("datasets", reason="pip install 'sightline-captions[datasets]'")
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "library")
    folder = tmp_path / "painted"
    for split, numbers in {"train": range(8), "validation": range(8, 11), "test": range(11, 14)}.items():
        write_parquet(folder / "data" / f"{split}-00000-of-00001.parquet", numbers)
    return folder


def write_parquet(path: Path, numbers: range) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    def photo(number: int) -> dict[str, Any]:
        data = io.BytesIO()
        Image.new("RGB", (40, 30), (8 * number, 99, 200 - 8 * number)).save(data, "PNG")
        return {"bytes": data.getvalue(), "path": None}

    captions = {"feature": {"dtype": "string", "_type": "Value"}, "_type": "List"}
    info = {"info": {"features": {"image": {"_type": "Image"}, "captions": captions}}}
    photos = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema(
        [("image", photos), ("captions", pa.list_(pa.string()))], metadata={"huggingface": json.dumps(info)}
    )
    rows = {
        "image": [photo(number) for number in numbers],
        "captions": [[f"a dog number {number}", "a painted dog"] for number in numbers],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(rows, schema=schema), path)


def test_a_dataset_has_its_photos_captions_and_splits(kept: Path, tmp_path: Path) -> None:
    dataset = load_dataset(f"hf:{kept}")
    assert dataset.name == "painted"
    assert [len(dataset.examples(split)) for split in ("train", "val", "test")] == [8, 3, 3]
    example = dataset.examples("val")[1]
    assert example.captions == ("a dog number 9", "a painted dog")
    assert isinstance(example.image, Path) and example.image.is_relative_to(tmp_path / "cache")
    assert Image.open(example.image).getpixel((3, 3)) == (72, 99, 128)
    before = example.image.stat().st_mtime_ns
    again = load_dataset(f"hf:{kept}").examples("val")[1]
    assert again == example and again.image.stat().st_mtime_ns == before, "the photos are written once"


def test_a_dataset_with_one_split_is_divided_at_random(kept: Path) -> None:
    alone = kept.parent / "alone"
    write_parquet(alone / "data.parquet", range(8))
    dataset = load_dataset(f"hf:{alone}")
    assert sum(len(dataset.examples(split)) for split in ("train", "val", "test")) == 8
    assert any("divided at random" in note for note in dataset.report.notes)


def test_a_model_is_trained_and_scored_on_it(kept: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "tiny.toml").write_text(tiny_recipe())
    run = tmp_path / "run"
    trained = command("train", tmp_path / "tiny.toml", "--data", f"hf:{kept}", "--output", run)
    assert trained.code == 0, trained.err
    scored = command("evaluate", run, "--data", f"hf:{kept}?captions=captions", "--split", "test")
    assert scored.code == 0 and "|painted:test|images:3|" in scored.out, scored.err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:nobody/nothing", "cannot be loaded|has no dataset"),
        ("hf:nobody/nothing?captoin=x", "unknown option 'captoin' \\(did you mean 'captions'\\?\\)"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="pip install 'sightline-captions[datasets]'")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SightlineError, match=message) as error:
        load_dataset(name)
    assert "\n" not in str(error.value)
