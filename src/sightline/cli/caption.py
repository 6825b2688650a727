"""``sightline caption``: photos in, sentences out; ``explain``: what the model attended to while writing each word."""

from __future__ import annotations

import filecmp
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
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
from sightline.errors import ConfigError, DataError, ImageError
from sightline.io.files import SkippedFiles, atomic_path, counted, find_images, keep_backup, local_path, printable
from sightline.types import COLUMNS, RANK, UNSURE, Caption, Failure, write_csv_row

if TYPE_CHECKING:
    from sightline.engine.captioner import Captioner


FORMATS = ("text", "json", "jsonl", "csv")
TEXT_SUFFIXES = ("txt", "md")
MANY = 1000  # photos; from here on a job that can be continued after a stop is worth a hint
LISTS_AND_SHARDS = (".tar", ".txt", ".lst", ".csv", ".tsv", ".jsonl", ".parquet")
EMPTY = "is empty: give a photo, as in `sightline caption - < dog.jpg`"
MOST_BYTES = 64 * 2**20 + 1  # one more than an image may have, so that too large a one is recognised


def caption(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Photos, folders with all folders in them, quoted patterns or file:// URLs; - reads one photo from "
            "standard input."
        ),
    ],
    model: Models = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="Write to this file; .txt, .json, .jsonl and .csv choose the format."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array with each word's probability.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print one JSON object per line, photo by photo.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help=f"Print a table: {', '.join(COLUMNS)}, error.")] = False,
    alt: Annotated[
        bool, typer.Option("--alt", help="Print text for an HTML alt attribute; JSON and CSV gain a column.")
    ] = False,
    include_unsure: Annotated[
        bool, typer.Option("--include-unsure", help="With --alt: also print captions that are unsure.")
    ] = False,
    min_confidence: Annotated[
        float,
        typer.Option("--min-confidence", min=0, max=1, help="With --alt: leave out captions of a lower confidence."),
    ] = 0.0,
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

    One photo gives its sentence, several give path<TAB>sentence. If a photo cannot be read, a line on stderr says
    why, the others are captioned, and the exit code is 1. JSON and CSV list it with its error.
    """
    form = _format({"json": as_json, "jsonl": jsonl, "csv": as_csv}, output)
    if alt and raw:
        raise ConfigError("--alt and --raw exclude each other: choose one")
    if (include_unsure or min_confidence) and not alt:
        option = "--include-unsure" if include_unsure else "--min-confidence"
        raise ConfigError(f"{option} chooses the captions that become alt texts: give it with --alt")
    skipped = SkippedFiles()
    photos = _without_lists(inputs, skipped)
    options = decoding_options(
        settings, beam=beam, candidates=candidates, sample=sample, temperature=temperature, seed=seed
    )
    found = list(_find(photos, skipped))
    images = [name for name in found if not isinstance(name, Failure)]
    if output and len(images) > MANY:
        complain(f"{len(images):,} photos: `sightline bulk` would continue after a stop, this command begins again")
    to_alt = partial(Caption.alt, min_confidence=min_confidence, include_unsure=include_unsure) if alt else None
    to_text = to_alt or ((lambda caption: caption.text) if raw else Caption.sentence)
    captions: Iterator[Caption | Failure] = iter(())
    several = options.get("candidates", 1) > 1
    if images:
        from sightline.engine.captioner import load

        captioner = load(*(model or ()), runtime=runtime, datastore=datastore)
        several = captioner.options(**options).candidates > 1
        captions = _captions(captioner, images, options, bar=output is not None)
    results = (name if isinstance(name, Failure) else next(captions) for name in found)  # in the order of the inputs
    alone = len(inputs) == len(found) == len(images) == 1 and not local_path(inputs[0]).is_dir()
    failed = captioned = unreliable = 0
    earlier: list[Path] = []
    with _open(Path(output) if output and (images or form != "text") else None, earlier, inputs) as file:
        for result in _write(file, form, results, to_text, to_alt, alone, several):
            if isinstance(result, Failure):
                complain(f"error: {failure_line(result)}")
                failed += 1
            else:
                captioned += 1
                unreliable += not result.is_reliable(min_confidence, include_unsure)
    if alt and unreliable:
        has, are = ("has", "its caption is") if unreliable == 1 else ("have", "their captions are")
        below = f" or below {min_confidence:g}" if min_confidence else " (see --include-unsure)"
        complain(f"{counted(unreliable, 'photo')} {has} no alt text: {are} {UNSURE}{below}")
    if output or ((failed or skipped) and len(found) > 1):
        where = f": {printable(output)}" if output else ""
        complain(f"{counted(captioned, 'photo')} captioned, {failed} failed{where}")
    _name_backups(output, earlier)
    if skipped:
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
    if suffix not in ("", *FORMATS[1:], *TEXT_SUFFIXES):
        raise ConfigError(f"-o {output}: .{suffix} is not written; choose .txt, .csv, .json or .jsonl")
    by_suffix = "text" if suffix in TEXT_SUFFIXES else suffix
    if names and by_suffix and names[0] != by_suffix:
        raise ConfigError(f"-o {output} and --{names[0]} contradict each other: leave out one of them")
    return by_suffix or (names[0] if names else "text")


def _without_lists(inputs: list[str], skipped: SkippedFiles) -> list[str]:
    """The inputs without lists, such as sidecars that a shell's pattern found among the photos; they are counted."""
    lists = [source for source in inputs if source.lower().endswith(LISTS_AND_SHARDS) and Path(source).is_file()]
    shards = [source for source in lists if source.lower().endswith(".tar")]
    if lists and (shards or len(lists) == len(inputs)):
        name = printable((shards or lists)[0])
        raise ConfigError(f"{name}: lists and shards are captioned by `sightline bulk {name} -o FILE`")
    for source in lists:
        skipped.add(source)
    return [source for source in inputs if source not in lists]


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
            reason = result.reason.removeprefix(printable(name)).lstrip()
            yield _of_standard_input(result) if name == STDIN else Failure(name, reason)
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


def _name_backups(output: str | Path | None, earlier: Iterable[Path]) -> None:
    for backup in earlier:
        complain(f"the earlier {printable(output)} is kept as {printable(backup)}")


@contextmanager
def _open(output: Path | None, earlier: list[Path], inputs: list[str]) -> Iterator[TextIO]:
    """Standard output, or a file; another file that is there is kept as a backup, whose name goes to ``earlier``.

    A file is written whole or not at all: Ctrl-C says how captioning ``inputs`` could be continued instead.
    """
    if output is None:
        yield sys.stdout
        return
    try:
        with atomic_path(output) as temporary:
            with temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
                yield file
            earlier += _earlier(output, temporary)
    except KeyboardInterrupt:
        table = output.with_suffix(".jsonl" if "json" in output.suffix.lower() else ".csv")  # which bulk writes, too
        command = shlex.join(["sightline", "bulk", *inputs, "-o", str(table)]) if len(inputs) < 4 else "sightline bulk"
        complain(f"nothing is written to {printable(output)}; `{printable(command)}` continues after a stop")
        raise


def _earlier(output: Path, replacement: Path) -> list[Path]:
    """The backup of a file that another one is about to replace; none where nothing changes."""
    changes = output.exists() and not filecmp.cmp(output, replacement, shallow=False)
    return [keep_backup(output)] if changes else []


def _write(
    file: TextIO,
    form: str,
    results: Iterable[Caption | Failure],
    to_text: Callable[[Caption], str],
    to_alt: Callable[[Caption], str] | None,
    alone: bool,
    several: bool,
) -> Iterator[Caption | Failure]:
    """Write every caption as it comes, and to a table or JSON also the failures; yields them all."""
    columns = [*COLUMNS, *([RANK] if several else []), *(["alt"] if to_alt else []), "error"]
    if form == "csv":
        write_csv_row(file, columns)
    before = "["
    for result in results:
        yield result
        if isinstance(result, Failure):
            row = {"source": result.source, "error": result.reason}
        else:
            row = {**result.as_dict(), **({"alt": to_alt(result)} if to_alt else {})}
        if form == "json":
            file.write(before + "\n" + json.dumps(row, ensure_ascii=False))
            before = ","
        elif form == "jsonl":
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        if isinstance(result, Failure):
            if form == "csv":
                write_csv_row(file, [row.get(column, "") for column in columns])
            file.flush()
            continue
        for one, row in zip((result, *result.others), result.rows()):
            if form == "csv":
                row |= {"alt": to_alt(one)} if to_alt else {}
                write_csv_row(file, [row.get(column, "") for column in columns])
            elif form == "text":
                file.write(to_text(one) + "\n" if alone else f"{printable(result.source)}\t{to_text(one)}\n")
        file.flush()
    if form == "json":
        file.write("[]\n" if before == "[" else "\n]\n")


def explain(
    context: typer.Context,
    photo: Annotated[str, typer.Argument(help="The photo, one at a time; - reads it from standard input.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write a picture (.png) or a page (.html).", show_default="PHOTO-explained.html here"
        ),
    ] = None,
    model: Models = None,
    datastore: Datastore = None,
    occlusion: Annotated[
        bool,
        typer.Option(
            "--occlusion", help="Measure by hiding patches of the photo instead of reading the model's attention."
        ),
    ] = False,
    paper: Annotated[
        bool, typer.Option("--paper", help="Draw the maps of a .png as in the figures of Show, Attend and Tell.")
    ] = False,
    beam: Beam = None,
    candidates: Candidates = None,
    settings: SetDecoding = None,
    runtime: Runtime = "auto",
) -> None:
    """Show what the model attended to while writing each word. A page has up to five captions, or --candidates."""
    if context.args:
        raise ConfigError(f"explain takes one photo at a time, and {1 + len(context.args)} are given: run it for each")
    source, target = _files(photo, output, paper)
    if photo == STDIN:
        source = _standard_input()
        if not source:
            raise ImageError("standard input is empty: give a photo, as in `sightline explain - < dog.jpg`")
    options = decoding_options(settings, beam=beam, candidates=candidates)
    if options.get("candidates", 1) > 1 and target.suffix.lower() == ".png":
        raise ConfigError(f"{printable(target)} shows one caption: --candidates is for pages, as in -o dog.html")

    from sightline.engine.captioner import load
    from sightline.explain import explain as run
    from sightline.io.images import open_image

    open_image(source, called="standard input")  # a photo that cannot be read is reported before the model is loaded
    captioner = load(*(model or ()), runtime=runtime, datastore=datastore)
    explanation = run(captioner, source, occlusion, **options)
    if explanation.method == "occlusion" and not occlusion:
        several = len(captioner.backends) > 1
        why = "these models have no common attention map" if several else "this model has no attention"
        complain(f"{why}: the maps show occlusion, as with --occlusion")
    try:
        with atomic_path(target) as temporary:
            explanation.save(temporary, paper)
            earlier = _earlier(target, temporary)
    except DataError as error:
        if output:
            raise
        raise DataError(f"{error}, as in -o FOLDER/{printable(target)}") from error
    typer.echo(explanation.caption.sentence())
    if note := explanation.note():
        typer.echo(note)
    typer.echo(f"written to {printable(target)}")
    _name_backups(target, earlier)


def _files(photo: str, output: Path | None, paper: bool) -> tuple[Path | bytes, Path]:
    """The photo's path and the file to write, which must be a picture or a page and not the photo itself."""
    from sightline.explain.explanation import check_suffix

    try:
        source = local_path(photo)
    except ValueError as error:
        raise ConfigError(f"{printable(photo)} {error}") from None
    target = output or Path(f"{'photo' if photo == STDIN else source.stem}-explained.{'png' if paper else 'html'}")
    check_suffix(target, paper)
    if photo != STDIN and target.resolve() == source.resolve():
        raise ConfigError(f"{printable(target)} is the photo itself: name another file to write")
    return source, target
