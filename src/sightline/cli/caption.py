"""``sightline caption``: photos in, sentences out."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from sightline.cli.bulk import Wish, caption_in_bulk, is_bulk
from sightline.cli.console import STDIN, complain, failure_line
from sightline.cli.options import (
    BatchSize,
    Beam,
    Datastore,
    LengthPenalty,
    MaxLength,
    MinLength,
    NoRepeat,
    Runtime,
    given,
)
from sightline.errors import ConfigError
from sightline.io.files import atomic_path, counted, find_images, local_path, printable
from sightline.types import COLUMNS, Caption, Failure, cell

if TYPE_CHECKING:
    from sightline.engine.captioner import Captioner

FORMATS = ("text", "json", "jsonl", "csv", "parquet")
EMPTY = "is empty: give a photo, as in `sightline caption - < dog.jpg`"
MOST_BYTES = 64 * 2**20 + 1  # one more than an image may have, so that too large a one is seen as such


def caption(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Photos, folders, patterns (quoted), file:// addresses; with -o also lists and tar shards. "
            "- is one photo on standard input."
        ),
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", help="A model folder or hub name; several make an ensemble. Default: the shipped one."
        ),
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="path<TAB>Sentence. (the default; one photo: the sentence)")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array, with each word's probability.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="One JSON object per line, as soon as it is known.")] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Columns source, caption, confidence, unsure, ood_score, finished, error.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Text as bare lower-case words, as JSON and CSV have it.")] = False,
    alt: Annotated[
        bool, typer.Option("--alt", help="Text for an HTML alt attribute; in JSON and CSV one column more.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="Write here; .json, .jsonl, .csv and .parquet choose the format, FOLDER/ gets a file per part.",
        ),
    ] = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    min_length: MinLength = None,
    no_repeat_ngram: NoRepeat = None,
    candidates: Annotated[int | None, typer.Option("--candidates", help="Captions of each photo, best first.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw captions instead of searching for the best.")] = False,
    temperature: Annotated[float | None, typer.Option("--temperature", help="Sampling: above 1 is bolder.")] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Sampling: only the k likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Sampling: only the tokens that hold this share.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Sampling: the same number draws the same captions.")
    ] = None,
    batch_size: BatchSize = 16,
    runtime: Runtime = "auto",
    datastore: Datastore = None,
    workers: Annotated[int | None, typer.Option("--workers", min=0, help="Bulk: processes that decode photos.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="Bulk: cpu, cuda, cuda:1, mps.")] = None,
    part_size: Annotated[
        int | None, typer.Option("--part-size", min=1, help="Bulk: photos kept together; 1000 if not given.")
    ] = None,
    sidecar: Annotated[bool, typer.Option("--sidecar", help="Bulk: also dog.txt by each dog.jpg.")] = False,
    embed: Annotated[
        bool, typer.Option("--embed", help="Bulk: also as the photos' XMP and IPTC description, with exiftool.")
    ] = False,
    tar: Annotated[bool, typer.Option("--tar", help="Bulk: write WebDataset shards to the folder.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Bulk: begin again, whatever an earlier run left.")
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option("--ray", metavar="[ADDRESS]", help="Bulk: on a Ray cluster, or on all of this machine's devices."),
    ] = None,
) -> None:
    """Caption photos. One that cannot be read costs a line on stderr and exit code 1; the others are captioned.

    Bulk jobs (-o with shards, Parquet or FOLDER/; .csv or .jsonl of a list or of more than 1,000 photos) go on where
    they were when stopped.
    """
    form = _form({"text": text, "json": as_json, "jsonl": jsonl, "csv": as_csv}, output)
    options = given(
        beam=beam, length_penalty=length_penalty, max_length=max_length, min_length=min_length,
        no_repeat_ngram=no_repeat_ngram, candidates=candidates, sample=sample or None, temperature=temperature,
        top_k=top_k, top_p=top_p, seed=seed,
    )  # fmt: skip
    if alt and raw:
        raise ConfigError("--alt and --raw exclude each other: choose one")
    wish = Wish(workers, device, part_size, sidecar, embed, tar, overwrite, ray)
    if is_bulk(inputs, output, form, wish):
        if alt:
            raise ConfigError("--alt does not go with bulk jobs: leave out -o, and write `--csv --alt > FILE`")
        caption_in_bulk(inputs, str(output), form, model or (), batch_size, options, wish, runtime, datastore)
        return
    found = list(_find(inputs))
    images = [name for name in found if not isinstance(name, Failure)]
    missing = [failure for failure in found if isinstance(failure, Failure)]
    outcomes = [True] * len(missing)  # which inputs failed
    for failure in missing:
        complain(f"error: {failure_line(failure)}")
    if images or form == "csv":
        alone = len(inputs) == 1 and (inputs[0] == STDIN or local_path(inputs[0]).is_file())
        say = Caption.alt if alt else (lambda caption: caption.text) if raw else Caption.sentence
        results: Iterable[Caption | Failure] = ()
        if images:
            from sightline.engine.captioner import load

            captioner = load(*(model or ()), runtime=runtime, datastore=datastore)
            results = _tell_failures(_captions(captioner, images, batch_size, options, bar=output is not None))
        with _open(Path(output) if output else None) as file:
            outcomes = list(_write(file, form, chain(missing, results), say, alt, alone))
        if output:
            captioned = counted(outcomes.count(False), "photo")
            typer.echo(f"{captioned} captioned, {outcomes.count(True)} failed: {printable(output)}", err=True)
    if any(outcomes):
        raise typer.Exit(1)


def _form(chosen: dict[str, bool], output: str | None) -> str:
    names = [name for name, wanted in chosen.items() if wanted]
    if len(names) > 1:
        raise ConfigError(f"--{names[0]} and --{names[1]} exclude each other: choose one")
    suffix = Path(output or "").suffix.lower().removeprefix(".")
    if names or suffix in FORMATS:
        return names[0] if names else suffix
    if output and suffix not in ("", "txt", "md") and not output.endswith("/") and not Path(output).is_dir():
        raise ConfigError(f"-o {output}: .{suffix} is not written; choose .txt, .csv, .json, .jsonl or .parquet")
    return "text"


def _find(inputs: list[str]) -> Iterator[str | Failure]:
    """Names of photos, standard input among them; what is not there as a failure."""
    seen: set[str] = set()
    for source in dict.fromkeys(inputs):
        for found in [STDIN] if source == STDIN else find_images([source]):
            if isinstance(found, Failure):
                yield found
            elif str(found) not in seen:
                seen.add(str(found))
                yield str(found)


def _captions(
    captioner: Captioner, images: list[str], batch_size: int, options: dict, bar: bool
) -> Iterator[Caption | Failure]:
    from sightline.io.progress import track

    sources = (_standard_input() if name == STDIN else name for name in images)
    results = captioner.stream(sources, batch_size=batch_size, want_attention=False, **options)
    if bar or not sys.stdout.isatty():  # on a terminal the captions themselves show how far along it is
        results = track(results, "captioning", len(images))
    for name, result in zip(images, results):
        if isinstance(result, Failure):
            yield _of_standard_input(result) if name == STDIN else result
        else:
            yield replace(result, source=name)


def _standard_input() -> bytes:
    """In pieces, for one long read would not notice an interrupt."""
    data = bytearray()
    while len(data) < MOST_BYTES and (piece := os.read(sys.stdin.fileno(), 2**16)):
        data += piece
    return bytes(data)


def _of_standard_input(failure: Failure) -> Failure:
    """What is wrong with it, without the number of its bytes, which nobody asked for."""
    reason = re.sub(r"^(the input|input of [\d,]+ bytes?) ", "", failure.reason)
    return Failure(STDIN, EMPTY if reason.startswith("is empty") else reason)


def _tell_failures(results: Iterable[Caption | Failure]) -> Iterator[Caption | Failure]:
    for result in results:
        if isinstance(result, Failure):
            complain(f"error: {failure_line(result)}")
        yield result


@contextmanager
def _open(output: Path | None) -> Iterator[TextIO]:
    if output is None:
        yield sys.stdout
        return
    with (
        atomic_path(output) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        yield file


def _write(
    file: TextIO,
    form: str,
    results: Iterable[Caption | Failure],
    say: Callable[[Caption], str],
    alt: bool,
    alone: bool,
) -> Iterator[bool]:
    """Write every caption as it comes, and in a table also what failed; yields whether each one did."""
    table = csv.writer(file, lineterminator="\n")
    if form == "csv":
        table.writerow([*COLUMNS, *(["alt"] if alt else []), "error"])
    before = "["
    for result in results:
        yield isinstance(result, Failure)
        if isinstance(result, Failure):
            if form == "csv":
                table.writerow([result.source, *[""] * (len(COLUMNS) - 1 + alt), result.reason])
                file.flush()
            continue
        told = {**result.as_dict(), **({"alt": result.alt()} if alt else {})}
        if form == "json":
            file.write(before + "\n" + json.dumps(told, ensure_ascii=False))
            before = ","
        elif form == "jsonl":
            file.write(json.dumps(told, ensure_ascii=False) + "\n")
        for one in (result, *result.others):
            if form == "csv":
                row = {**one.as_row(), "source": result.source}
                table.writerow([*map(cell, row.values()), *([one.alt()] if alt else []), ""])
            elif form == "text":
                file.write(say(one) + "\n" if alone else f"{printable(result.source)}\t{say(one)}\n")
        file.flush()
    if form == "json":
        file.write("[]\n" if before == "[" else "\n]\n")
