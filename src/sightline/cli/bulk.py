"""``sightline bulk``: folders, lists and shards in, tables out; ``watch``: what arrives in a folder.

Stopped at any moment, both continue.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.console import (
    BatchSize,
    Beam,
    Candidates,
    Datastore,
    IncludeUnsure,
    MinConfidence,
    Models,
    Ray,
    Runtime,
    Sample,
    Seed,
    SetDecoding,
    Temperature,
    complain,
    decoding_options,
)
from sightline.errors import ConfigError
from sightline.io.files import counted, printable
from sightline.types import Caption

TABLES = ("parquet", "jsonl", "csv")

Sidecar = Annotated[bool, typer.Option("--sidecar", help="Also write dog.txt next to each dog.jpg.")]
Embed = Annotated[bool, typer.Option("--embed", help="Also write captions into the photos' metadata, with exiftool.")]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Begin again; a table that is replaced is kept as .bak, parts in a FOLDER/ are deleted."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=0, help="Decode photos in this many processes.", show_default="by core count"),
]
Device = Annotated[
    str, typer.Option("--device", help="Run the model on cpu, cuda, cuda:1, mps, or auto: cuda where possible.")
]


def bulk(
    inputs: Annotated[
        list[str],
        typer.Argument(help="Folders, quoted patterns, lists (.txt, .csv, .jsonl, .parquet) and WebDataset shards."),
    ],
    output: Annotated[
        str,
        typer.Option("--output", "-o", help="A .parquet, .jsonl or .csv file, or FOLDER/ for one file per part."),
    ],
    output_format: Annotated[
        str | None,
        typer.Option("--output-format", help="For FOLDER/: parquet, jsonl, csv or tar.", show_default="parquet"),
    ] = None,
    model: Models = None,
    sidecar: Sidecar = False,
    embed: Embed = False,
    include_unsure: IncludeUnsure = False,
    min_confidence: MinConfidence = 0.0,
    overwrite: Overwrite = False,
    workers: Workers = None,
    device: Device = "auto",
    batch_size: BatchSize = 16,
    part_size: Annotated[int, typer.Option("--part-size", min=1, help="Save the job every so many photos.")] = 1000,
    ray: Ray = None,
    beam: Beam = None,
    candidates: Candidates = None,
    sample: Sample = False,
    temperature: Temperature = None,
    seed: Seed = None,
    settings: SetDecoding = None,
    datastore: Datastore = None,
    runtime: Runtime = "auto",
) -> None:
    """Caption many photos in a job that continues after a stop.

    The same command continues an unfinished job, and adds photos that are new to a finished one. Inputs that cannot be
    captioned go to a table of errors, and exit code 1 says so.
    """
    is_folder = output.endswith(("/", os.sep)) or Path(output).is_dir()
    format = _format(output, output_format, is_folder)
    decoding = decoding_options(
        settings, beam=beam, candidates=candidates, sample=sample, temperature=temperature, seed=seed
    )

    from sightline.bulk.job import BulkOptions, caption_all
    from sightline.bulk.job_folder import BulkOutput

    options = BulkOptions(
        batch_size=batch_size, workers=workers, device=device, runtime=runtime, datastore=datastore,
        part_size=part_size, sidecars=sidecar, embed=embed, include_unsure=include_unsure,
        min_confidence=min_confidence, overwrite=overwrite,
    )  # fmt: skip
    if caption_all(inputs, BulkOutput(Path(output), format, is_folder), model or (), options, decoding, ray).failed:
        raise typer.Exit(1)


def watch(
    folder: Annotated[str, typer.Argument(help="The folder, with all folders in it.")],
    output: Annotated[str, typer.Option("--output", "-o", help="The table: a .csv, .jsonl or .parquet file.")],
    model: Models = None,
    once: Annotated[bool, typer.Option("--once", help="End when the photos that are there are captioned.")] = False,
    sidecar: Sidecar = False,
    embed: Embed = False,
    include_unsure: IncludeUnsure = False,
    min_confidence: MinConfidence = 0.0,
    overwrite: Overwrite = False,
    workers: Workers = None,
    device: Device = "auto",
    batch_size: BatchSize = 16,
    beam: Beam = None,
    candidates: Candidates = None,
    settings: SetDecoding = None,
    datastore: Datastore = None,
    runtime: Runtime = "auto",
) -> None:
    """Caption a folder's photos as they arrive and print each.

    Ctrl-C ends it, and the same command continues. Each photo is captioned once, when its file has stopped growing.
    One that cannot be captioned goes to a table of errors, and is tried again when it changes.
    """
    format = Path(output).suffix.lower().removeprefix(".")
    if output.endswith(("/", os.sep)) or format not in TABLES:
        raise ConfigError(f"-o {output}: watch writes one table; name a .csv, .jsonl or .parquet file")
    decoding = decoding_options(settings, beam=beam, candidates=candidates)

    from sightline.bulk.job import BulkOptions, choose_device
    from sightline.bulk.job_folder import BulkOutput
    from sightline.bulk.watch import watch as run
    from sightline.engine.captioner import load

    options = BulkOptions(
        batch_size=batch_size, workers=workers, sidecars=sidecar, embed=embed, include_unsure=include_unsure,
        min_confidence=min_confidence, overwrite=overwrite,
    )  # fmt: skip
    device = choose_device(device, model or (), runtime)
    captioner = load(*(model or ()), device=device, runtime=runtime, datastore=datastore)
    summary = run(folder, BulkOutput(Path(output), format, False), captioner, options, decoding, once, show=_show)
    if once and summary.failed:
        complain(f"{counted(summary.failed, 'photo')} could not be captioned: see {printable(summary.errors)}")
        raise typer.Exit(1)
    if not once:
        complain(f"{counted(summary.photos, 'photo')} captioned in this run: {printable(output)}")  # Ctrl-C ended it


def _show(caption: Caption) -> None:
    complain(f"{printable(caption.source)}: {caption.sentence()}")


def _format(output: str, chosen: str | None, is_folder: bool) -> str:
    if chosen is not None and chosen not in (*TABLES, "tar"):
        raise ConfigError(f"--output-format is {chosen!r}: give {', '.join(TABLES)} or tar")
    if is_folder:
        return chosen or "parquet"
    suffix = Path(output).suffix.lower().removeprefix(".")
    if suffix not in TABLES or (chosen and chosen != suffix):
        raise ConfigError(
            f"a bulk job cannot write {output!r}{f' as {chosen}' if chosen else ''}: name a .parquet, .jsonl or .csv "
            "file, or a FOLDER/ (with --output-format jsonl, csv or tar if not Parquet)"
        )
    return suffix
