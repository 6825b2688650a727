"""``sightline caption`` as a user meets it: every way in and out, and bad photos among good ones."""

from __future__ import annotations

import csv
import errno
import io
import json
import shutil
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from commands import Command, process
from default_model import SENTENCE

import sightline.cli
from sightline.cli.console import decoding_options
from sightline.decoding import DecodingOptions, user_options
from sightline.errors import ConfigError
from sightline.types import COLUMNS

DOG = Path(__file__).parents[1] / "examples" / "dog.jpg"


def test_one_photo_gives_just_its_sentence(command: Command, photos: list[Path], tiny_model: Path):
    outcome = command("caption", photos[0], "--model", tiny_model)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.endswith(".\n")
    assert outcome.out[0].isupper()
    assert "\t" not in outcome.out


def test_raw_gives_the_bare_words(command: Command, photos: list[Path], tiny_model: Path):
    raw = command("caption", photos[0], "--model", tiny_model, "--raw").out
    sentence = command("caption", photos[0], "--model", tiny_model).out
    assert raw.islower()
    assert sentence == raw.strip().capitalize() + ".\n"


def test_standard_input_takes_a_photo(photos: list[Path], tiny_model: Path, command: Command):
    by_name = command("caption", photos[3], "--model", tiny_model).out
    assert process("caption", "-", "--model", tiny_model, input=photos[3].read_bytes()) == (0, by_name, "")


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"", "is empty: give a photo, as in `sightline caption - < dog.jpg`"), (b"words", "is not an image: use JPEG")],
)
def test_standard_input_is_called_so(
    command: Command, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, reason: str
):
    monkeypatch.setattr(sys.modules["sightline.cli.caption"], "_standard_input", lambda: data)
    outcome = command("caption", "-", "--model", tiny_model, "--csv")
    assert outcome.code == 1
    (complaint,) = outcome.complaints
    assert complaint.startswith(f"error: standard input {reason}")
    (row,) = csv.DictReader(io.StringIO(outcome.out))
    assert row["source"] == "-"
    assert row["error"].startswith(reason)


def test_folders_patterns_and_addresses_name_the_same_photos_once(
    command: Command, photos: list[Path], tiny_model: Path
):
    folder = photos[0].parent
    inputs = (folder, f"{folder}/red*.jpg", photos[0].as_uri(), photos[1])
    lines = command("caption", *inputs, "--model", tiny_model).out.splitlines()
    assert [line.split("\t")[0] for line in lines] == [str(photo) for photo in photos]


def test_json_jsonl_and_csv_agree(command: Command, photos: list[Path], tiny_model: Path, tmp_path: Path):
    def ask(*options: object, expected: str = "") -> str:
        outcome = command("caption", *photos[:3], "--model", tiny_model, *options)
        assert (outcome.code, outcome.err) == (0, expected)
        return outcome.out

    array = json.loads(ask("--json"))
    assert [row["source"] for row in array] == [str(photo) for photo in photos[:3]]
    assert [json.loads(line) for line in ask("--jsonl").splitlines()] == array
    rows = list(csv.DictReader(io.StringIO(ask("--csv"))))
    assert list(rows[0]) == ["source", "caption", "confidence", "unsure", "ood_score", "finished", "error"]
    assert [row["caption"] for row in rows] == [row["caption"] for row in array]
    target = tmp_path / "captions.json"
    assert ask("-o", target, expected=f"3 photos captioned, 0 failed: {target}\n") == ""
    assert json.loads(target.read_text()) == array


def test_a_table_has_a_row_for_every_photo_that_failed(
    command: Command, photos: list[Path], tiny_model: Path, tmp_path: Path
):
    bad, gone = tmp_path / "bad.jpg", tmp_path / "gone.jpg"
    bad.write_bytes(b"no picture")
    outcome = command("caption", photos[0], bad, gone, photos[1], "--model", tiny_model, "--csv", "--alt")
    assert outcome.code == 1
    assert outcome.complaints[2:] == ["2 photos captioned, 2 failed"]
    rows = {row["source"]: row for row in csv.DictReader(io.StringIO(outcome.out))}
    assert list(rows) == [str(path) for path in (photos[0], bad, gone, photos[1])], "in the order of the inputs"
    assert rows[str(bad)]["error"].startswith("is not an image")
    assert rows[str(gone)]["error"].startswith("does not exist")
    assert (rows[str(bad)]["caption"], rows[str(bad)]["confidence"], rows[str(bad)]["alt"]) == ("", "", "")
    fine = rows[str(photos[0])]
    assert (fine["error"], fine["unsure"]) == ("", "false")
    assert fine["alt"] == fine["caption"].capitalize() + "."
    lines = command("caption", photos[0], bad, gone, photos[1], "--model", tiny_model, "--jsonl").out.splitlines()
    objects = {row["source"]: row for row in map(json.loads, lines)}
    assert list(objects) == list(rows)
    assert [row.get("error", "") for row in objects.values()] == [row["error"] for row in rows.values()]
    outcome = command("caption", gone, "--model", tiny_model, "--csv")
    assert outcome.code == 1
    assert [row["source"] for row in csv.DictReader(io.StringIO(outcome.out))] == [str(gone)]


def test_alt_text(command: Command, photos: list[Path], tiny_model: Path):
    sentence = command("caption", photos[0], "--model", tiny_model).out
    assert command("caption", photos[0], "--model", tiny_model, "--alt").out == sentence
    row = json.loads(command("caption", photos[0], "--model", tiny_model, "--alt", "--jsonl").out)
    assert row["alt"] == sentence.strip()
    outcome = command("caption", photos[0], "--model", tiny_model, "--alt", "--raw")
    assert (outcome.code, outcome.complaints) == (2, ["error: --alt and --raw exclude each other: choose one"])


def test_a_web_address_alone_is_one_clear_error(command: Command, tiny_model: Path):
    outcome = command("caption", "https://example.com/a.jpg", "--model", tiny_model)
    assert outcome.code == 1 and outcome.out == ""
    assert outcome.complaints == [
        "error: https://example.com/a.jpg is a web address, and nothing is fetched from the web: "
        "download it and name the file"
    ]


def test_the_home_of_nobody_is_a_path_that_does_not_exist(command: Command, tiny_model: Path):
    outcome = command("caption", "~no-such-user/x.jpg", "--model", tiny_model)
    assert outcome.complaints == ["error: ~no-such-user/x.jpg does not exist: check the path"]


def test_alt_text_of_unsure_captions(command: Command, tmp_path: Path):
    """With the default model, which calls a page of noise unsure."""
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(1).integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
    for number, pixels in enumerate(noise):
        Image.fromarray(pixels).resize((400, 400), 0).save(tmp_path / f"noise{number}.png")
    shutil.copy(DOG, tmp_path / "dog.jpg")

    def ask(*options: object) -> tuple[list[str], list[str]]:
        outcome = command("caption", tmp_path, "--alt", *options)
        assert outcome.code == 0
        return [line.split("\t")[1] for line in outcome.out.splitlines()], outcome.complaints

    texts, complaints = ask()
    assert texts == [SENTENCE, "", ""]
    assert complaints == ["2 photos have no alt text: their captions are unsure (see --include-unsure)"]
    texts, complaints = ask("--include-unsure")
    assert all(texts) and complaints == []
    texts, complaints = ask("--min-confidence", 0.95)
    assert texts == ["", "", ""] and complaints[0].startswith("3 photos have no alt text")
    rows = csv.DictReader(io.StringIO(command("caption", tmp_path, "--alt", "--csv", "--min-confidence", 0.95).out))
    assert [(bool(row["caption"]), row["alt"]) for row in rows] == [(True, "")] * 3, "the table has every caption"
    for option in (("--include-unsure",), ("--min-confidence", 0.5)):
        outcome = command("caption", tmp_path, *option)
        assert (outcome.code, len(outcome.complaints)) == (2, 1)
        assert outcome.err.endswith("give it with --alt\n")


@pytest.mark.parametrize(("name", "flag"), [("c.json", "--csv"), ("c.csv", "--jsonl"), ("c.txt", "--json")])
def test_a_suffix_and_a_flag_that_contradict_each_other_are_refused(
    command: Command, tiny_model: Path, tmp_path: Path, name: str, flag: str
):
    outcome = command("caption", DOG, "--model", tiny_model, "-o", tmp_path / name, flag)
    assert outcome.complaints == [
        f"error: -o {tmp_path / name} and {flag} contradict each other: leave out one of them"
    ]
    assert (outcome.code, [*tmp_path.iterdir()]) == (2, [])
    same = tmp_path / f"c.{flag.removeprefix('--')}"
    assert command("caption", DOG, "--model", tiny_model, "-o", same, flag).code == 0


@pytest.mark.parametrize("output", [(), ("-o", "captions.csv")])
def test_a_list_is_for_bulk_with_and_without_an_output(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: tuple[str, ...]
):
    monkeypatch.chdir(tmp_path)
    Path("list.txt").write_text(f"{DOG}\n")
    outcome = command("caption", "list.txt", *output)
    expected = "error: list.txt: lists and shards are captioned by `sightline bulk list.txt -o FILE`"
    assert (outcome.code, outcome.out, outcome.complaints) == (2, "", [expected])


def test_sidecars_among_the_photos_are_skipped(command: Command, photos: list[Path], tiny_model: Path, tmp_path: Path):
    sidecars = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for sidecar in sidecars:
        sidecar.write_text("a dog\n")
    outcome = command("caption", photos[0], sidecars[0], photos[1], sidecars[1], "--model", tiny_model)
    assert (outcome.code, len(outcome.out.splitlines())) == (0, 2)
    assert outcome.complaints == ["2 photos captioned, 0 failed", "skipped 2 files that are not photos: a.txt, b.txt"]
    assert "captioned by `sightline bulk" in command("caption", *sidecars).err


def test_candidates_widen_the_beam_and_are_all_shown(command: Command, photos: list[Path], tiny_model: Path):
    assert len(command("caption", photos[0], "--model", tiny_model, "--candidates", 4).out.splitlines()) == 4
    row = json.loads(command("caption", photos[0], "--model", tiny_model, "--candidates", 4, "--jsonl").out)
    assert len(row["others"]) == 3


def test_a_table_of_candidates_ranks_them(
    command: Command, photos: list[Path], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def table(*arguments: object) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(command("caption", *arguments, "--model", tiny_model, "--csv").out)))

    (bad := tmp_path / "bad.jpg").write_text("no photo")
    json_rows = json.loads(command("caption", *photos[:2], "--model", tiny_model, "--candidates", 3, "--json").out)
    expected = [
        (row["source"], one["caption"], str(rank))
        for row in json_rows
        for rank, one in enumerate((row, *row["others"]), start=1)
    ]
    for how in (("--candidates", 3), ("--set", "candidates=3")):
        rows = table(photos[0], bad, photos[1], *how, "--alt", "--include-unsure")
        assert list(rows[0]) == [*COLUMNS, "rank", "alt", "error"]
        failed = rows.pop(3)
        assert (failed["source"], failed["rank"]) == (str(bad), "") and failed["error"]
        assert [(row["source"], row["caption"], row["rank"]) for row in rows] == expected
        assert all(row["alt"].lower().startswith(row["caption"].split()[0]) for row in rows)
    assert list(table(bad, "--candidates", 3)[0]) == [*COLUMNS, "rank", "error"]
    for one in ((), ("--candidates", 1)):
        assert list(table(photos[0], *one)[0]) == [*COLUMNS, "error"]


def test_sampling_repeats_with_its_seed(command: Command, photos: list[Path], tiny_model: Path):
    def draw(seed: int) -> str:
        options = ("--sample", "--temperature", 2, "--seed", seed)
        return command("caption", photos[0], "--model", tiny_model, *options).out

    assert draw(1) == draw(1)
    assert len({draw(seed) for seed in range(5)}) > 1


def test_two_models_make_an_ensemble(command: Command, photos: list[Path], tiny_model: Path):
    alone = command("caption", photos[0], "--model", tiny_model).out
    assert command("caption", photos[0], "--model", tiny_model, "--model", tiny_model).out == alone


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("text.jpg", b"these are words, not a picture", "is not an image"),
        ("half.jpg", "half", "cut off"),
        ("empty.png", b"", "is empty"),
        ("missing.jpg", None, "does not exist"),
    ],
)
def test_a_bad_photo_is_one_line_and_the_others_are_captioned(
    command: Command, photos: list[Path], tiny_model: Path, tmp_path: Path, name: str, content, words: str
):
    bad = tmp_path / name
    if content is not None:
        whole = photos[0].read_bytes()
        bad.write_bytes(whole[: len(whole) // 2] if content == "half" else content)
    outcome = command("caption", photos[0], bad, photos[1], "--model", tiny_model)
    assert outcome.code == 1
    assert [line.split("\t")[0] for line in outcome.out.splitlines()] == [str(photos[0]), str(photos[1])]
    assert outcome.complaints[1:] == ["2 photos captioned, 1 failed"]
    assert outcome.err.startswith(f"error: {bad} ")
    assert words in outcome.err
    assert outcome.err.count(str(bad)) == 1


def test_a_mixed_folder(command: Command, photos: list[Path], tiny_model: Path, tmp_path: Path):
    shutil.copy(photos[0], tmp_path / "b.jpg")
    (tmp_path / "a.jpg").write_bytes(b"no")
    (tmp_path / "c.jpg").write_bytes(b"")
    for name in ("notes.txt", "clip.mov", "photo.cr2", "song.mp3", ".hidden"):
        (tmp_path / name).write_text("not a photo")
    outcome = command("caption", tmp_path, "http://example.org/x.jpg", "--model", tiny_model, "--json")
    assert outcome.code == 1
    rows = json.loads(outcome.out)
    names = [*(str(tmp_path / name) for name in ("a.jpg", "b.jpg", "c.jpg")), "http://example.org/x.jpg"]
    assert [row["source"] for row in rows] == names, "in the order of the inputs"
    assert ["error" in row for row in rows] == [True, False, True, True]
    *errors, counts, skipped = outcome.complaints
    assert len(errors) == 3
    assert all(line.startswith("error: ") for line in errors)
    assert counts == "1 photo captioned, 3 failed"
    assert skipped == "skipped 4 files that are not photos: clip.mov, notes.txt, photo.cr2 and 1 more"


def test_nothing_but_bad_photos_leaves_valid_json(command: Command, tiny_model: Path, tmp_path: Path):
    (tmp_path / "a.jpg").write_bytes(b"no")
    outcome = command("caption", tmp_path, "--model", tiny_model, "--json")
    assert outcome.code == 1
    (row,) = json.loads(outcome.out)
    assert row == {"source": str(tmp_path / "a.jpg"), "error": row["error"]}
    assert row["error"].startswith("is not an image: ")


def test_options_that_contradict_are_one_line(command: Command, photos: list[Path], tiny_model: Path):
    for options in (
        ("--set", "top_k=3"),
        ("--set", "max_length=99"),
        ("--beam", 0),
        ("--candidates", 5, "--beam", 2),
        ("--set", "top_p"),
        ("--set", "top_pp=0.9"),
        ("--set", "top_p=high"),
        ("--beam", 2, "--set", "beam=3"),
    ):
        outcome = command("caption", photos[0], "--model", tiny_model, *options)
        assert (outcome.code, outcome.out, len(outcome.complaints)) == (2, "", 1), options


@pytest.mark.parametrize("verb", ["caption", "bulk", "evaluate", "explain"])
def test_flags_of_decoding_options_are_those_declared(verb: str):
    declared = {option.name: option for option in user_options()}
    parameters = get_type_hints(getattr(sightline.cli, verb), include_extras=True)
    flags = {name: get_args(hint) for name, hint in parameters.items() if name in declared}
    assert "beam" in flags
    for name, (kind, option) in flags.items():
        assert [option.default, *option.param_decls] == [f"--{name.replace('_', '-')}"]  # as Typer keeps them
        assert option.help == declared[name].help
        assert declared[name].type in (kind, *get_args(kind))


def test_caption_has_few_options():
    parameters = get_type_hints(sightline.cli.caption, include_extras=True)
    assert len(parameters.keys() - {"inputs", "return"}) <= 17


def test_an_unknown_decoding_option_like_no_other_gets_them_all_listed():
    names = ", ".join(option.name for option in user_options())
    with pytest.raises(ConfigError, match=f"^--set foo=1: unknown decoding option 'foo'; give one of {names}$"):
        decoding_options(["foo=1"])


def test_any_decoding_option_can_be_set():
    settings = [f"{option.name}={option.default}" for option in user_options() if option.name != "sample"]
    assert DecodingOptions(**decoding_options([*settings, "sample=true"])) == DecodingOptions(sample=True)
    assert decoding_options(["sample=TRUE"], beam=0, sample=False, candidates=None) == {"beam": 0, "sample": True}
    with pytest.raises(ConfigError, match=r"unknown decoding option 'top_q' \(did you mean 'top_p'\?\)"):
        decoding_options(["top_q=1"])


@pytest.mark.parametrize("flag", [["--temperature", 0.8], ["--seed", 1], ["--set", "top_p=0.9"], ["--set", "seed=0"]])
@pytest.mark.parametrize("verb", ["caption", "bulk"])
def test_sampling_options_need_sampling(command: Command, photos: list[Path], verb: str, flag: list[object]):
    output = ["-o", photos[0].with_suffix(".csv")] if verb == "bulk" else []
    outcome = command(verb, photos[0], *output, *flag)
    named = f"{flag[0]} {str(flag[1]).partition('=')[0]}" if flag[0] == "--set" else flag[0]
    assert outcome.err == f"error: {named} acts on sampling only: add --sample, or leave it out\n"
    assert outcome.code == 2


def test_a_beam_of_none_is_one_fault_and_not_two(command: Command, photos: list[Path], tiny_model: Path):
    outcome = command("caption", photos[0], "--model", tiny_model, "--beam", 0)
    assert outcome.err == "error: decoding options: beam is 0, give 1 to 1000\n"


def test_what_belongs_to_bulk_is_said_in_one_line(command: Command, photos: list[Path], tmp_path: Path):
    names, shard = tmp_path / "list.txt", tmp_path / "00000.tar"
    names.write_text(f"{photos[0]}\n")
    shard.touch()
    for arguments in (
        (photos[0], "-o", tmp_path / "a.parquet"), (photos[0], "-o", f"{tmp_path}/out/"), (photos[0], "-o", tmp_path),
        (names,), (photos[0], shard),
    ):  # fmt: skip
        outcome = command("caption", *arguments)
        assert (outcome.code, outcome.out, len(outcome.complaints)) == (2, "", 1), arguments
        assert "`sightline bulk" in outcome.err


def test_a_file_that_is_replaced_is_kept(command: Command, photos: list[Path], tiny_model: Path, tmp_path: Path):
    target = tmp_path / "captions.csv"
    target.write_text("my own table\n")
    outcome = command("caption", photos[0], "--model", tiny_model, "-o", target)
    assert outcome.complaints == [
        f"1 photo captioned, 0 failed: {target}",
        f"the earlier {target} is kept as {target}.bak",
    ]
    assert Path(f"{target}.bak").read_text() == "my own table\n"
    assert command("caption", photos[0], "--model", tiny_model, "-o", target).code == 0
    assert len(list(tmp_path.glob("*.bak*"))) == 1, "the same captions replace nothing"


@pytest.mark.parametrize(
    ("name", "table"),
    [("c.csv", "c.csv"), ("c.jsonl", "c.jsonl"), ("c.json", "c.jsonl"), ("c.txt", "c.csv"), (None, None)],
)
def test_an_interrupt_says_that_no_file_is_written_and_what_would_continue(
    command: Command, photos: list[Path], tiny_model: Path, monkeypatch: pytest.MonkeyPatch, name: str, table: str
):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(photos[0].parent.parent)
    monkeypatch.setattr("sightline.engine.captioner.Captioner.stream", interrupted)
    folder = photos[0].parent.name
    outcome = command("caption", folder, "--model", tiny_model, *(["-o", name] if name else []))
    hint = f"nothing is written to {name}; `sightline bulk {folder} -o {table}` continues after a stop"
    assert (outcome.code, outcome.complaints) == (130, [*([hint] if name else []), "interrupted"])
    assert not name or not Path(name).exists()


def test_the_help_of_caption_speaks_of_what_it_writes(command: Command):
    text = command("caption", "--help").out
    assert "sidecar" not in text and "With --alt" in text


def test_a_large_folder_is_captioned_and_bulk_is_recommended(
    command: Command, photos: list[Path], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys.modules["sightline.cli.caption"], "MANY", 11)
    target = tmp_path / "captions.csv"
    outcome = command("caption", photos[0].parent, "--model", tiny_model, "-o", target)
    hint = "12 photos: `sightline bulk` would continue after a stop, this command begins again"
    assert (outcome.code, outcome.complaints) == (0, [hint, f"12 photos captioned, 0 failed: {target}"])
    assert len(target.read_text().splitlines()) == 13
    monkeypatch.setattr(sys.modules["sightline.cli.caption"], "MANY", 12)
    assert command("caption", photos[0].parent, "--model", tiny_model, "-o", target).complaints[1:] == []


def test_an_explanation_that_cannot_be_written_here_names_its_file_and_the_option_for_another(
    command: Command, photos: list[Path], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refused(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "write_bytes", refused)
    name = f"{photos[0].stem}-explained.html"
    explain = ("explain", photos[0], "--model", tiny_model)
    line = f"error: cannot write {tmp_path / name}: the folder is not writable; choose another one"
    assert command(*explain).complaints[-1:] == [f"{line}, as in -o FOLDER/{name}"]
    assert command(*explain, "-o", name).complaints[-1:] == [line]
