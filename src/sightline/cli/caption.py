"""``sightline caption``: photos in, sentences out; ``explain``: where each word of one photo's caption came from."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from sightline.cli.console import (
    STDIN,
    Beam,
    Candidates,
    Datastore,
    Models,
    Runtime,
    Sample,
    Seed,
    SetDecoding,
    Temperature,
    complain,
    decoding_options,
    failure_line,
)
from sightline.errors import ConfigError
from sightline.io.files import SkippedFiles, atomic_path, counted, find_images, local_path, printable
from sightline.types import COLUMNS, Caption, Failure, write_csv_row

if TYPE_CHECKING:
    from sightline.engine.captioner import Captioner


FORMATS = ("text", "json", "jsonl", "csv")
MANY = 1000  # photos; from here on a job that can be continued after a stop is worth a hint
LISTS_AND_SHARDS = (".tar", ".txt", ".lst", ".csv", ".tsv", ".jsonl", ".parquet")
EMPTY = "is empty: give a photo, as in `sightline caption - < dog.jpg`"
MOST_BYTES = 64 * 2**20 + 1  # one more than an image may have, so that too large a one is recognised


def caption(
    inputs: Annotated[
        list[str],
        typer.Argument(help="Photos, folders, quoted patterns or file:// URLs; - reads one photo from standard input."),
    ],
    model: Models = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="Write to this file; .json, .jsonl and .csv choose the format."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array with each word's probability.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print one JSON object per line, photo by photo.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help=f"Print a table: {', '.join(COLUMNS)}, error.")] = False,
    alt: Annotated[
        bool, typer.Option("--alt", help="Print text for an HTML alt attribute; JSON and CSV gain a column.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Print bare lower-case words, as JSON and CSV have them.")] = False,
    beam: Beam = None,
    candidates: Candidates = None,
    sample: Sample = False,
    temperature: Temperature = None,
    seed: Seed = None,
    settings: SetDecoding = None,
    datastore: Datastore = None,
    runtime: Runtime = "auto",
) -> None:
    """Caption photos. For lists, shards and jobs that continue after a stop, see `sightline bulk`.

    One photo gives its sentence, several give path<TAB>sentence. A photo that cannot be read costs a line on stderr and
    exit code 1; the others are captioned.
    """
    form = _format({"json": as_json, "jsonl": jsonl, "csv": as_csv}, output)
    if alt and raw:
        raise ConfigError("--alt and --raw exclude each other: choose one")
    _check_inputs(inputs)
    options = decoding_options(
        settings, beam=beam, candidates=candidates, sample=sample, temperature=temperature, seed=seed
    )
    skipped = SkippedFiles()
    found = list(_find(inputs, skipped))
    images = [name for name in found if not isinstance(name, Failure)]
    missing = [failure for failure in found if isinstance(failure, Failure)]
    for failure in missing:
        complain(f"error: {failure_line(failure)}")
    if output and len(images) > MANY:
        complain(f"{len(images):,} photos: `sightline bulk` would continue after a stop, this command begins again")
    failed, captioned = len(missing), 0
    if images or form == "csv":
        alone = len(inputs) == 1 and (inputs[0] == STDIN or local_path(inputs[0]).is_file())
        to_text = Caption.alt if alt else (lambda caption: caption.text) if raw else Caption.sentence
        results: Iterable[Caption | Failure] = ()
        if images:
            from sightline.engine.captioner import load

            captioner = load(*(model or ()), runtime=runtime, datastore=datastore)
            results = _report_failures(_captions(captioner, images, options, bar=output is not None), alt)
        with _open(Path(output) if output else None) as file:
            outcomes = list(_write(file, form, chain(missing, results), to_text, alt, alone))
        failed, captioned = outcomes.count(True), outcomes.count(False)
    if output or ((failed or skipped.count) and len(found) > 1):
        where = f": {printable(output)}" if output else ""
        complain(f"{counted(captioned, 'photo')} captioned, {failed} failed{where}")
    if skipped.count:
        complain(str(skipped))
    if failed:
        raise typer.Exit(1)


def _format(chosen: dict[str, bool], output: str | None) -> str:
    names = [name for name, wanted in chosen.items() if wanted]
    if len(names) > 1:
        raise ConfigError(f"--{names[0]} and --{names[1]} exclude each other: choose one")
    suffix = Path(output or "").suffix.lower().removeprefix(".")
    if output and (suffix == "parquet" or output.endswith(("/", os.sep)) or Path(output).is_dir()):
        raise ConfigError(f"-o {output}: Parquet and folders are written by `sightline bulk`")
    if names or suffix in FORMATS:
        return names[0] if names else suffix
    if suffix not in ("", "txt", "md"):
        raise ConfigError(f"-o {output}: .{suffix} is not written; choose .txt, .csv, .json or .jsonl")
    return "text"


def _check_inputs(inputs: list[str]) -> None:
    for source in inputs:
        if source.lower().endswith(LISTS_AND_SHARDS) and Path(source).is_file():
            raise ConfigError(
                f"{printable(source)}: lists and shards are captioned by `sightline bulk {printable(source)} -o FILE`"
            )


def _find(inputs: list[str], skipped: SkippedFiles) -> Iterator[str | Failure]:
    """Names of photos, standard input among them; what does not exist as a failure."""
    found_before: set[str] = set()
    for source in dict.fromkeys(inputs):
        for found in [STDIN] if source == STDIN else find_images([source], skipped):
            if isinstance(found, Failure):
                yield found
            elif str(found) not in found_before:
                found_before.add(str(found))
                yield str(found)


def _captions(
    captioner: Captioner, images: list[str], options: dict[str, Any], bar: bool
) -> Iterator[Caption | Failure]:
    from sightline.io.progress import track

    sources = (_standard_input() if name == STDIN else name for name in images)
    results = captioner.stream(sources, want_attention=False, **options)
    if bar or not sys.stdout.isatty():  # on a terminal the captions themselves show how far along it is
        results = track(results, "captioning", len(images))
    for name, result in zip(images, results):
        if isinstance(result, Failure):
            yield _of_standard_input(result) if name == STDIN else result
        else:
            yield replace(result, source=name)


def _standard_input() -> bytes:
    """Read in pieces: one long read would not notice an interrupt. What cannot be read is empty."""
    data = bytearray()
    with suppress(OSError):
        while len(data) < MOST_BYTES and (piece := os.read(sys.stdin.fileno(), 2**16)):
            data += piece
    return bytes(data)


def _of_standard_input(failure: Failure) -> Failure:
    """The same failure under the name of standard input, without the number of bytes."""
    reason = re.sub(r"^(the input|input of [\d,]+ bytes?) ", "", failure.reason)
    return Failure(STDIN, EMPTY if reason.startswith("is empty") else reason)


def _report_failures(results: Iterable[Caption | Failure], alt: bool) -> Iterator[Caption | Failure]:
    for result in results:
        if isinstance(result, Failure):
            complain(f"error: {failure_line(result)}")
        elif alt and result.unsure:
            complain(f"{printable(result.source)} has no alt text: its caption is unsure, leave out --alt to see it")
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
    to_text: Callable[[Caption], str],
    alt: bool,
    alone: bool,
) -> Iterator[bool]:
    """Write every caption as it comes, and to a table also the failures; yields whether each photo failed."""
    if form == "csv":
        write_csv_row(file, [*COLUMNS, *(["alt"] if alt else []), "error"])
    before = "["
    for result in results:
        yield isinstance(result, Failure)
        if isinstance(result, Failure):
            if form == "csv":
                write_csv_row(file, [result.source, *[""] * (len(COLUMNS) - 1 + alt), result.reason])
                file.flush()
            continue
        row = {**result.as_dict(), **({"alt": result.alt()} if alt else {})}
        if form == "json":
            file.write(before + "\n" + json.dumps(row, ensure_ascii=False))
            before = ","
        elif form == "jsonl":
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        for one in (result, *result.others):
            if form == "csv":
                values = {**one.as_row(), "source": result.source}.values()
                write_csv_row(file, [*values, *([one.alt()] if alt else []), ""])
            elif form == "text":
                file.write(to_text(one) + "\n" if alone else f"{printable(result.source)}\t{to_text(one)}\n")
        file.flush()
    if form == "json":
        file.write("[]\n" if before == "[" else "\n]\n")


def explain(
    photo: Annotated[str, typer.Argument(help="The photo.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write a picture (.png) or a page (.html).", show_default="PHOTO-explained.html"
        ),
    ] = None,
    model: Models = None,
    occlusion: Annotated[
        bool,
        typer.Option(
            "--occlusion", help="Measure by hiding patches of the photo instead of reading the model's attention."
        ),
    ] = False,
    beam: Beam = None,
    candidates: Candidates = None,
    settings: SetDecoding = None,
    runtime: Runtime = "auto",
) -> None:
    """Show where each word of a photo's caption came from. The page has up to five captions to choose from."""
    source, target = _files(photo, output)
    options = decoding_options(settings, beam=beam, candidates=candidates)

    from sightline.engine.captioner import load
    from sightline.explain import explain as run
    from sightline.io.images import open_image

    open_image(source)  # a photo that cannot be read is reported before the model is loaded
    captioner = load(*(model or ()), runtime=runtime)
    explanation = run(captioner, source, occlusion, **options)
    explanation.save(target)
    typer.echo(explanation.caption.sentence())
    typer.echo(f"written to {printable(target)}")


def _files(photo: str, output: Path | None) -> tuple[Path, Path]:
    """The photo's path and the file to write, which must be a picture or a page and not the photo itself."""
    from sightline.explain.explanation import check_suffix

    try:
        source = local_path(photo)
    except ValueError as error:
        raise ConfigError(f"{printable(photo)} {error}") from None
    target = output or Path(f"{source.stem}-explained.html")
    check_suffix(target)
    if target.resolve() == source.resolve():
        raise ConfigError(f"{printable(target)} is the photo itself: name another file to write")
    return source, target
