"""Finding photos by their captions: what matches, what a query may hold, every kind of table, and the page."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import shutil
import tarfile
from html import unescape
from pathlib import Path
from urllib.parse import urljoin

import pytest
from commands import Command
from default_model import SENTENCE
from PIL import Image

from sightline.bulk.search import find_table, query_phrases, read_captions, search
from sightline.errors import ConfigError, DataError

DOG = Path(__file__).parents[1] / "examples" / "dog.jpg"
CAPTIONS = {
    "beach.jpg": "a dog runs on the beach",
    "grass.jpg": "two dogs are running through the grass",
    "boy.jpg": "a boy plays on the beach",
    "café.jpg": "a woman sits in a café",
    "bike.jpg": "a man rides a bike",
    "snow.jpg": "a man on skis in the snow",
    "street.jpg": "people cross a street",
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "captions.csv"
    rows = [f"{name},{text},0.5,{str(name == 'bike.jpg').lower()}" for name, text in CAPTIONS.items()]
    path.write_text("source,caption,confidence,unsure\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def found(query: str, table: Path, **options) -> list[str]:
    return [one.source for one in search(query, table, **options)]


def test_the_photo_with_all_words_is_first(table: Path) -> None:
    assert found("dog on a beach", table)[0] == "beach.jpg"
    assert set(found("dog on a beach", table)[1:]) == {"boy.jpg", "grass.jpg"}
    scores = [one.score for one in search("dog on a beach", table)]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > scores[1] > 0
    assert found("dog on a beach", table, limit=1) == ["beach.jpg"]


@pytest.mark.parametrize("captions", [1, 2, 500])
def test_a_hit_never_scores_zero(command: Command, tmp_path: Path, captions: int) -> None:
    """A word of most captions, or of all, tells little apart, but what was found must not look as if it were not."""
    rows = [f"{number}.jpg,a dog runs" for number in range(captions)]
    (tmp_path / "a.csv").write_text("source,caption\n" + "\n".join(rows) + "\n")
    lines = command("search", "dog", tmp_path / "a.csv", "--limit", captions).out.splitlines()
    assert len(lines) == captions
    assert {line.split("\t")[2] for line in lines} == {"0.69"}  # ln 2


def test_the_score_is_bm25(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("source,caption\na.jpg,a dog and a dog\nb.jpg,a dog\nc.jpg,a cat\n")
    scores = {one.source: one.score for one in search("dog cat", tmp_path / "a.csv")}  # 3 words each on average
    common, rare = math.log(1 + 3 / 2), math.log(1 + 3 / 1)
    short, long = 1.2 * (0.25 + 0.75 * 2 / 3), 1.2 * (0.25 + 0.75 * 5 / 3)
    assert scores["a.jpg"] == pytest.approx(common * 2 * 2.2 / (2 + long))
    assert scores["b.jpg"] == pytest.approx(common * 2.2 / (1 + short))
    assert scores["c.jpg"] == pytest.approx(rare * 2.2 / (1 + short))


def test_words_are_compared_by_their_stems_without_accents_or_case(table: Path) -> None:
    assert found("RIDING bikes", table) == ["bike.jpg"]
    assert found("cafe", table) == ["café.jpg"]
    assert set(found("run", table)) == {"beach.jpg", "grass.jpg"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("man", "men"), ("woman", "women"), ("child", "children"), ("person", "people"), ("dog", "dogs"),
        ("running", "run"), ("bus", "buses"), ("knife", "knives"), ("sky", "skies"), ("puppy", "puppies"),
    ],
)  # fmt: skip
def test_a_word_finds_its_other_forms(tmp_path: Path, one: str, other: str) -> None:
    for asked, written in ((one, other), (other, one)):
        path = tmp_path / "captions.csv"
        path.write_text(f"source,caption\nin.jpg,the tall {written} in snow\nout.jpg,a ski and the manager\n")
        assert found(asked, path) == ["in.jpg"]
        assert found(f'"tall {asked}"', path) == ["in.jpg"]
        assert found(f'"snow {asked}"', path) == []


def test_words_in_quotes_follow_each_other(table: Path) -> None:
    assert found('"the beach"', table) == ["beach.jpg", "boy.jpg"]
    assert found('"beach the"', table) == []


def test_a_word_with_a_hyphen_is_one_word(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("source,caption\na.jpg,a red t-shirt\nb.jpg,a shirt\n")
    assert found("T-shirt", tmp_path / "a.csv") == ["a.jpg"]


def test_stop_words_count_only_alone(table: Path) -> None:
    assert found("the street", table) == ["street.jpg"]
    assert set(found("the", table)) == {"beach.jpg", "boy.jpg", "grass.jpg", "snow.jpg"}


@pytest.mark.parametrize(
    "query",
    [
        'dog"', '"dog', "dog AND", "NOT dog", "dog OR OR", "NEAR(dog beach, 2)", "dog*", "^dog", "caption:dog",
        "(dog", "dog)", "dog + beach", "-dog", "{a b}:dog", "'dog'; DROP TABLE captions; --", "dog\\", "dog\udcff",
        "dog ?",         "«dog»", "dog\n", "%dog%", '""dog""',
    ],
)  # fmt: skip
def test_no_query_is_taken_for_an_expression(table: Path, query: str) -> None:
    assert "grass.jpg" in found(query, table)


@pytest.mark.parametrize("query", ["", "  ", '"', '""', "()*", "__", "\udcff"])
def test_a_query_without_words_is_refused(query: str) -> None:
    with pytest.raises(ConfigError, match="has no word to search for"):
        query_phrases(query)


def test_every_kind_of_table_is_read(tmp_path: Path) -> None:
    rows = [{"source": name, "caption": text} for name, text in CAPTIONS.items()]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = "".join(f"{name}\t{text}\n" for name, text in CAPTIONS.items())
    (tmp_path / "a.tsv").write_bytes(b"\xff\xfe" + ("image\tcaption\n" + lines).encode("utf-16-le"))
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "_job.json").write_text("{}")
    for number, row in enumerate(rows):
        (tmp_path / "job" / f"part-{number:06d}.jsonl").write_text(json.dumps(row) + "\n")
    for name in ("a.json", "a.jsonl", "a.tsv", "a.parquet", "job"):
        assert find_table(str(tmp_path / name)) == tmp_path / name
        assert [(one.source, one.text) for one in read_captions(tmp_path / name)] == [*CAPTIONS.items()], name


def test_several_captions_of_a_photo_show_it_once_by_its_best(tmp_path: Path) -> None:
    path = tmp_path / "captions.jsonl"
    rows = [
        {"image": "a.jpg", "captions": ["a cat sleeps", "a cat on a red sofa"]},
        {"image": "b.jpg", "captions": "x"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [(one.source, one.text) for one in search("red cat", path)] == [("a.jpg", "a cat on a red sofa")]


def test_at_equal_score_unsure_captions_come_last(tmp_path: Path) -> None:
    path = tmp_path / "captions.csv"
    path.write_text("source,caption,unsure\na.jpg,a dog,true\nb.jpg,a dog,false\nc.jpg,a cat on a sofa,false\n")
    assert found("dog", path) == ["b.jpg", "a.jpg"]
    assert found("dog", path, limit=1) == ["b.jpg"]


def test_a_cell_that_was_guarded_from_spreadsheets_is_read_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("source,caption\n'=dog.jpg,'-dog\n")
    assert [(one.source, one.text) for one in read_captions(tmp_path / "a.csv")] == [("=dog.jpg", "-dog")]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "holds no caption"),
        ("a,b\n1,2\n", "has no columns of photos and captions: name them source and caption"),
        ("source,caption\nx.jpg,\n", "holds no caption"),
    ],
)
def test_a_table_without_captions_is_one_line(command: Command, tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "a.csv").write_text(content)
    outcome = command("search", "dog", tmp_path / "a.csv")
    assert (outcome.code, len(outcome.complaints)) == (1, 1)
    assert reason in outcome.err


@pytest.mark.parametrize("name", ["failed.json", "failed.jsonl"])
def test_a_table_may_begin_with_a_photo_that_failed(name: str, tmp_path: Path) -> None:
    rows = [{"source": "broken.jpg", "error": "it is cut off"}, {"source": "dog.jpg", "caption": "a dog"}]
    lines = json.dumps(rows) if name.endswith("json") else "\n".join(map(json.dumps, rows))
    (tmp_path / name).write_text(lines, encoding="utf-8")
    assert [(one.source, one.text) for one in read_captions(tmp_path / name)] == [("dog.jpg", "a dog")]


def test_damaged_tables_and_wrong_names_are_one_line(command: Command, tmp_path: Path, table: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{")
    (tmp_path / "a.parquet").write_text("words")
    (tmp_path / "a.doc").write_text("words")
    for name, code in (("a.jsonl", 1), ("a.parquet", 1), ("a.doc", 2), ("none.csv", 1)):
        outcome = command("search", "dog", tmp_path / name)
        assert (outcome.code, len(outcome.complaints)) == (code, 1), outcome
    assert command("search", "dog", table, "--html", tmp_path / "page.png").code == 2
    with pytest.raises(DataError, match="is a web address"):
        find_table("https://example.org/captions.csv")


def test_the_command_prints_path_caption_and_score(command: Command, table: Path) -> None:
    outcome = command("search", "bike", table)
    assert (outcome.code, outcome.err) == (0, "")
    source, text, score = outcome.out.rstrip("\n").split("\t")
    assert (source, text) == ("bike.jpg", "unsure: a man rides a bike.")
    assert float(score) > 0
    missing = command("search", "giraffe", table)
    assert (missing.code, missing.out) == (1, "")
    assert missing.complaints == [f"no caption in {table} matches 'giraffe': try fewer or other words"]


def photos_in(page: Path) -> list[Image.Image]:
    found = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', page.read_text(encoding="utf-8"))
    return [Image.open(io.BytesIO(base64.b64decode(data))) for data in found]


def test_the_page_shows_photos_of_files_and_of_shards(command: Command, tmp_path: Path) -> None:
    shutil.copy(DOG, tmp_path / "near.jpg")
    with tarfile.open(tmp_path / "0.tar", "w") as shard:
        shard.add(DOG, "in/a.jpg")
    rows = ["near.jpg,a dog <b>", f"{tmp_path}/0.tar::in/a.jpg,a dog", "gone.jpg,a dog"]
    (tmp_path / "a.csv").write_text("source,caption\n" + "\n".join(rows) + "\n")
    outcome = command("search", 'dog "<script>"', tmp_path / "a.csv", "--html", tmp_path / "found.html")
    assert (outcome.code, outcome.complaints) == (0, [f"3 photos on the page {tmp_path}/found.html"])
    assert [max(photo.size) for photo in photos_in(tmp_path / "found.html")] == [320, 320]
    page = (tmp_path / "found.html").read_text(encoding="utf-8")
    assert "A dog &lt;b&gt;." in page and "gone.jpg" in page
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "--background" in page, "the stylesheet of all pages"


def test_the_page_links_to_the_photos(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thumbnail and name, by a relative link where the name is; not to what is gone, in a shard or elsewhere."""
    names = ["my photos/50% #1?.jpg", 'a"b&c.jpg', "mailto:x.jpg", "été.jpg"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(DOG, tmp_path / name)
    with tarfile.open(tmp_path / "0.tar", "w") as shard:
        shard.add(DOG, "in.jpg")
    rows = [*names, str(tmp_path / names[0]), "0.tar::in.jpg", "gone.jpg", "https://example.org/x.jpg"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"source": name, "caption": "a dog"}) + "\n" for name in rows))
    monkeypatch.chdir(tmp_path)
    assert command("search", "dog", "a.jsonl", "--html", "pages/found.html").code == 0
    page = Path("pages/found.html")
    urls = [unescape(url) for url in re.findall(r'<a href="([^"]*)">', page.read_text(encoding="utf-8"))]
    assert urls[::2] == urls[1::2] and len(urls) == 2 * 5, "picture and name"
    targets = [urljoin(page.absolute().as_uri(), url) for url in urls[::2]]
    assert targets == [(tmp_path / name).as_uri() for name in [*names, names[0]]]
    assert [url.startswith("file:") for url in urls[::2]] == [False, False, False, False, True]


def test_a_folder_is_captioned_once_by_the_default_model(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "photos"
    folder.mkdir()
    assert command("search", "dog", folder).complaints == [
        f"error: {folder} has no photo that can be captioned: name another folder"
    ]
    shutil.copy(DOG, folder / "dog.jpg")
    outcome = command("search", "running dogs", folder, "--html", tmp_path / "found.html")
    assert outcome.code == 0
    assert outcome.out.startswith(f"{folder}/dog.jpg\t{SENTENCE}\t")
    assert outcome.complaints[:3] == [
        f"{folder} has 1 photo, 1 new",
        "waiting until 1 photo is completely written",
        "1 photo captioned",
    ]
    assert len(photos_in(tmp_path / "found.html")) == 1
    again = command("search", "running dogs", folder)
    assert (again.out, again.err) == (outcome.out, "")
    monkeypatch.chdir(tmp_path)
    (folder / "broken.jpg").write_text("no photo")
    by_name = command("search", "running dogs", "photos", "--html", "found.html")
    assert by_name.out.startswith(f"photos/dog.jpg\t{SENTENCE}\t")
    assert by_name.complaints[0] == "photos has 2 photos, 1 new"
    assert any(line.startswith("error: photos/broken.jpg ") for line in by_name.complaints)
    assert len(photos_in(tmp_path / "found.html")) == 1
    assert "photos/dog.jpg" in (page := (tmp_path / "found.html").read_text()) and str(tmp_path) not in page
    (folder / "broken.jpg").unlink()
    monkeypatch.chdir(folder)
    assert command("search", "running dogs", ".").out.startswith(f"dog.jpg\t{SENTENCE}\t")
    assert command("search", "running dogs", folder.as_uri()).out == outcome.out
    shutil.copy(DOG, folder / "second.jpg")
    assert len(command("search", "running dogs", folder).out.splitlines()) == 2
    assert sorted(path.name for path in folder.iterdir()) == ["dog.jpg", "second.jpg"], "nothing is written there"
