"""METEOR by its rules, on captions the program has scored, and with a damaged or missing index."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from sightline.errors import DataError
from sightline.evaluation.metrics import meteor_data
from sightline.evaluation.metrics.meteor import CHUNKS, MATCHED, Meteor
from sightline.evaluation.metrics.meteor_data import find_source
from sightline.evaluation.metrics.meteor_words import normalize

SAMPLE = Path(__file__).parents[1] / "data/meteor_sample.jsonl"


@pytest.fixture(scope="module")
def meteor() -> Meteor:
    try:
        find_source()
    except DataError as error:
        pytest.skip(str(error))
    return Meteor()


def one(meteor: Meteor, caption: str, *references: str) -> tuple[float, list[int], int]:
    """Score, words of the hypothesis matched by each matcher, chunks."""
    row = meteor.statistics([caption.split()], [[text.split() for text in references]])
    matched = row[0, MATCHED:CHUNKS].reshape(4, 4)[:, ::2].sum(1).astype(int).tolist()
    return float(meteor.per_image(row)["meteor"][0]), matched, int(row[0, CHUNKS])


@pytest.mark.parametrize(
    ("caption", "reference", "expected"),
    [
        ("dog", "dog", 1.0),  # one chunk that covers both: no penalty
        ("dog x1", "dog y1", 0.2),  # F 0.5, penalty 0.6
        ("the dog", "dog", 0.380952380952),  # function words weigh a third
        ("dog cat", "cat dog", 0.4),  # two chunks
        ("of the car", "of the automobile", 0.88),  # a synonym weighs 0.8
        ("dog cat bird zzz yyy", "dog www cat bird vvv uuu", 0.2290950),
        ("dog", "", 0.0),
        ("", "dog", 0.0),
    ],
)
def test_the_score(meteor: Meteor, caption: str, reference: str, expected: float) -> None:
    assert one(meteor, caption, reference)[0] == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    ("caption", "reference", "matched", "chunks"),
    [
        ("blorks", "blork", [0, 1, 0, 0], 1),  # the only candidate of both words is always taken
        ("couch", "sofa", [0, 0, 1, 0], 1),
        ("road", "street", [0, 0, 0, 1], 1),
        ("dogs", "dog", [0, 0, 0, 0], 0),  # stem and synonym: gains nothing, so it may open no chunk
        ("red dogs", "red dog", [1, 1, 0, 0], 1),
        ("red zzz dogs", "red yyy dog", [1, 0, 0, 0], 1),
        ("zebra car tiger", "zebra automobile tiger", [2, 0, 1, 0], 1),
        ("zebra red dog blue", "zebra red dogs blue dog", [4, 0, 0, 0], 3),  # gain comes before chunks
        ("red dog red cat", "red cat", [2, 0, 0, 0], 1),  # the second "red" saves a chunk
        ("inside or outside", "inside and outside", [1, 0, 0, 2], 1),  # a phrase saves a chunk
        ("to work on their", "work and their", [2, 0, 0, 0], 2),
        ("before", "in front of", [0, 0, 0, 1], 1),
        ("in front of", "before", [0, 0, 0, 2], 1),
        # The beam of 40: in a run of five, skipping everything is forgotten.
        ("frisbees zebras giraffes skateboards", "frisbee zebra giraffe skateboard", [0, 0, 0, 0], 0),
        (
            "frisbees zebras giraffes skateboards umbrellas",
            "frisbee zebra giraffe skateboard umbrella",
            [0, 5, 0, 0],
            1,
        ),
    ],
)
def test_the_alignment(meteor: Meteor, caption: str, reference: str, matched: list[int], chunks: int) -> None:
    assert one(meteor, caption, reference)[1:] == (matched, chunks)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a t-shirt", "a t shirt"),
        ("-lrb- a- --", "-lrb- a- --"),
        ("do n't o'clock", "do n 't o 'clock"),
        ("dog 's 'em dunkin'", "dog ' s ' em dunkin '"),
        ("`` don’t ''", '" don \'t "'),
        ("10,000 3.5 .99 x,y", "10,000 3.5 .99 x , y"),
        ("11:05 1/2 m&m !!", "11 : 05 1 / 2 m & m ! !"),
        ("a st. zebra st.", "a st. zebra st ."),
        ("no. 5 t.v.", "no . 5 tv"),
        ("vs. 5 pp. 5 pp.", "vs. 5 pp. 5 pp ."),
        ("日本 café", "日 本 café"),
    ],
)
def test_what_is_left_to_normalize(text: str, words: str) -> None:
    assert normalize(text.split(), {"vs": False, "pp": True}) == words.split()


def test_the_best_reference_counts_and_the_corpus_score_comes_from_sums(meteor: Meteor) -> None:
    assert one(meteor, "a dog runs", "cats", "a dog runs", "a dog")[0] == 1.0
    rows = meteor.statistics([["dog"], ["dog", "x1"]], [[["dog"]], [["dog", "y1"]]])
    # Matches 2 of 3 words on each side; the first image's chunk does not count, so one chunk for two matches.
    assert meteor.aggregate(rows)["meteor"] == pytest.approx(2 / 3 * (1 - 0.6 * 0.5**0.2))


def test_captions_that_the_program_has_scored(meteor: Meteor) -> None:
    rows = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
    found = meteor.statistics(
        [row["hypothesis"].split() for row in rows], [[text.split() for text in row["references"]] for row in rows]
    )
    expected = np.array([row["score"] for row in rows])
    different = np.abs(meteor.per_image(found)["meteor"] - expected) > 1e-6
    assert len(rows) == 308
    assert different.sum() <= 6  # 2 %: ties among alignments that the program breaks in another way
    assert abs(meteor.per_image(found)["meteor"].mean() - expected.mean()) < 5e-4


def test_thousands_of_equal_words_take_bounded_time(meteor: Meteor) -> None:
    began = time.process_time()
    one(meteor, "the dog " * 3000, "dog the " * 3000)
    assert time.process_time() - began < 20


def test_the_program_itself(meteor: Meteor) -> None:
    if not shutil.which("java"):
        pytest.skip("java is not installed")
    rows = [json.loads(line) for line in SAMPLE.read_text().splitlines()[:3]]
    lines = [" ||| ".join(["SCORE", *row["references"], row["hypothesis"]]) for row in rows]
    command = ["java", "-Xmx2G", "-jar", str(find_source().jar), "-", "-", "-stdio", "-l", "en", "-norm"]
    answer = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=300)
    counts = [[int(float(number)) for number in line.split()] for line in answer.stdout.splitlines()]
    assert counts == [row["statistics"] for row in rows]


def test_a_missing_wheel_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meteor_data, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pycocoevalcap"):
        Meteor()


def _small_source(folder: Path) -> meteor_data.Source:
    from gzip import compress
    from zipfile import ZipFile

    source = meteor_data.Source(folder / "meteor.jar", folder / "paraphrase.gz")
    with ZipFile(source.jar, "w") as jar:
        jar.writestr("nonbreaking/english.prefixes", "vs\n")
        jar.writestr("function/english.words", "the\n")
        jar.writestr("synonym/english.synsets", "dog\n1\nhound\n1\n")
        jar.writestr("synonym/english.exceptions", "goose\ngeese\n")
    source.paraphrases.write_bytes(compress(b"0.5\nroad\nstreet\n"))
    return source


def _build(source: meteor_data.Source, folder: Path) -> None:
    meteor_data._build_into(source, folder)
    meteor_data.MeteorData(folder)


def test_two_processes_build_the_index_at_once(tmp_path: Path) -> None:
    source, folder = _small_source(tmp_path), tmp_path / "cache/meteor-1"
    builders = [multiprocessing.get_context("spawn").Process(target=_build, args=(source, folder)) for _ in range(2)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert [builder.exitcode for builder in builders] == [0, 0]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_damaged_index_or_wheel_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = _small_source(tmp_path)
    monkeypatch.setattr(meteor_data, "find_source", lambda: source)
    monkeypatch.setattr(meteor_data, "cache_folder", lambda: tmp_path / "cache")
    small = Meteor()
    assert one(small, "dog road", "hound street")[1] == [0, 0, 1, 1]
    next((tmp_path / "cache").glob("meteor-*/synsets-keys.npy")).write_bytes(b"")
    with pytest.raises(DataError, match=r"is damaged .* delete that folder"):
        Meteor()
    source.jar.write_bytes(b"not a zip")
    with pytest.raises(DataError, match="reinstall pycocoevalcap"):
        Meteor()
