"""Boxes against attention: how boxes become cells, and what counts as on the object."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import attention_on_objects
from attention_on_objects import cells, read_boxes
from attention_vs_occlusion import WordMaps, objects, photos_of, summary, things
from sightline.data import Example
from sightline.errors import DataError


def test_a_box_covers_its_cells_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "7.txt").write_text("1 0.25 0.75 0.5 0.5\n0 0.5 0.5 0.125 1\n")
    boxes = read_boxes(tmp_path / "7.txt", ["cat", "dog"])
    expected = np.zeros((8, 8))
    expected[4:, :4] = 1
    np.testing.assert_array_equal(cells(boxes["dog"]), expected)
    assert cells(boxes["cat"])[0].tolist() == [0, 0, 0, 0.5, 0.5, 0, 0, 0]


def test_lines_that_are_no_boxes_are_one_line(tmp_path: Path) -> None:
    for text in ("1 0.5 0.5\n", "9 0.5 0.5 0.1 0.1\n", "a b c d e\n"):
        (tmp_path / "7.txt").write_text(text)
        with pytest.raises(DataError, match="is not a file of boxes"):
            read_boxes(tmp_path / "7.txt", ["cat", "dog"])


def test_the_peak_counts_where_it_lies_in_the_words_own_box() -> None:
    left, right = np.zeros((8, 8)), np.zeros((8, 8))
    left[:, :4], right[:, 4:] = 1, 1
    attention = [np.zeros((8, 8)) for _ in range(2)]
    attention[0][2, 1], attention[1][2, 6] = 1, 1
    found = summary([WordMaps(0, "dog", attention[0], left), WordMaps(1, "zebra", attention[1], right)])
    assert found["all words"]["peak"] == 100
    assert found["all words"]["peak, other photos"] == 0
    assert set(found["by word"]) == {"dog", "zebra"}


def test_words_are_counted_by_list_or_as_objects() -> None:
    assert (things("Puppy"), things("zebra"), things("of")) == ("dog", None, None)
    assert (objects("puppy"), objects("zebra"), objects("of")) == ("dog", "zebra", None)


def test_photos_to_choose_with_are_none_that_are_measured() -> None:
    examples = [Example(Path(f"{number}.jpg"), (), str(number)) for number in range(1000)]
    measured, others = photos_of(examples, 60), photos_of(examples, 60, others=True)
    assert [example.name for example in measured[:3]] == ["0", "16", "32"]
    assert [example.name for example in others[:4]] == ["4", "8", "12", "20"]
    assert (len(measured), len(others)) == (60, 180)
    assert not {example.name for example in measured} & {example.name for example in others}


def test_a_folder_without_class_names_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["a=default", "--data", str(tmp_path), "--boxes", str(tmp_path)]
    assert attention_on_objects.run(attention_on_objects.main, arguments) == 1
    assert "has no classes.txt" in capsys.readouterr().err
