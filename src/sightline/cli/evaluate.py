"""``sightline evaluate``, ``score`` and ``calibrate``: scores with intervals, comparisons, and a model's confidence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.console import (
    BatchSize,
    Beam,
    DataSources,
    Datastore,
    Format,
    Metrics,
    Objects,
    Runtime,
    SetDecoding,
    complain,
    console,
    decoding_options,
    failure_line,
    metric_options,
    ordered,
    percent,
    score_label,
)
from sightline.errors import CheckpointError, ConfigError
from sightline.io.files import counted, printable
from sightline.types import METRIC_NAMES

if TYPE_CHECKING:
    from sightline.evaluation.comparison import Comparison, ResultRow
    from sightline.evaluation.scoring import Evaluation

CALIBRATED = {"words": "words", "content_words": "content words", "captions": "captions"}
FEW_PHOTOS = 30  # below, a line says that scores mean little


def evaluate(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="A model folder; several are evaluated one by one. With --compare: scores.json or results files."
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", help="A dataset's folder, a captions table, or hf:OWNER/NAME; several are mixed."),
    ] = None,
    split: Annotated[
        str, typer.Option("--split", help="train, val, test or all; choose on val, use test once.")
    ] = "val",
    ensemble: Annotated[bool, typer.Option("--ensemble", help="Evaluate the models as one ensemble.")] = False,
    comparing: Annotated[
        bool,
        typer.Option(
            "--compare", help="Compare evaluations, rows of results, or captions with --data, by paired bootstrap."
        ),
    ] = False,
    human: Annotated[
        bool, typer.Option("--human", help="Score people instead: one caption of each photo against its others.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write captions.json and scores.json to this folder.",
        ),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", help="Write an HTML page with the 20 best and 20 worst photos.")
    ] = None,
    metrics: Metrics = None,
    objects: Objects = None,
    beam: Beam = None,
    settings: SetDecoding = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Evaluate only the first so many photos of each dataset.")
    ] = None,
    batch_size: BatchSize = 16,
    runtime: Runtime = "auto",
    datastore: Datastore = None,
    format: Format = "auto",
) -> None:
    """Caption a split and score it. The 95 % intervals are over 1,000 resamples of its photos."""
    if comparing:
        from sightline.evaluation.comparison import compare, result_rows

        if not data and (rows := result_rows(models or [])):
            show_rows(rows, len(models or []) - len(rows), **metric_options(metrics))
            return
        if data and len(data) > 1:
            raise ConfigError("--compare takes one --data: systems are compared on the same photos")
        found = compare(models or [], data[0] if data else None, split, objects=objects, **metric_options(metrics))
        show_comparison(found)
        return
    if not data:
        raise ConfigError("--data is missing: name the dataset's folder")
    if bool(models) == human:
        raise ConfigError("--human scores people, without a model" if human else "no model is named: give its folder")
    groups = [models or []] if ensemble else [[model] for model in models or []]
    if page is not None and len(groups) > 1:
        raise ConfigError("--page shows one model: evaluate one at a time, or all as one with --ensemble")

    from sightline.data import load_datasets
    from sightline.data.dataset import split_name
    from sightline.evaluation.scoring import evaluate as run
    from sightline.evaluation.scoring import evaluate_people

    dataset = load_datasets(data, format, None if split_name(split, "all") == "all" else 0)
    if human:
        people = evaluate_people(dataset, split, objects=objects, output=output, limit=limit, **metric_options(metrics))
        show_scores(people, "people")
        if page is not None:
            from sightline.evaluation.report import write_page

            write_page(people, page)
        return

    from sightline.engine.captioner import load

    options = decoding_options(settings, beam=beam) | metric_options(metrics)
    failed = False
    for number, group in enumerate(groups):
        folder = output / _folder_name(groups, number) if output and len(groups) > 1 else output
        try:
            captioner = load(*group, runtime=runtime, datastore=datastore)
            result = run(
                captioner, dataset, split, objects=objects, output=folder, limit=limit, batch_size=batch_size, **options
            )
        except CheckpointError as error:
            complain(f"error: {error}")
            failed = True
            continue
        for failure in result.failures:
            complain(f"error: {failure_line(failure)}")
        failed |= bool(result.failures)
        show_scores(result, " + ".join(group))
        if page is not None:
            from sightline.evaluation.report import write_page

            write_page(result, page)
    if failed:
        raise typer.Exit(1)


def score(
    results: Annotated[
        Path,
        typer.Argument(
            help='A JSON list of {"image_id": …, "caption": …}, or a table that bulk wrote (.csv, .jsonl, .parquet).'
        ),
    ],
    references: Annotated[
        str, typer.Option("--references", help="A dataset's folder, or a COCO annotations file (.json).")
    ],
    split: Annotated[str, typer.Option("--split", help="The dataset's split: train, val, test or all.")] = "test",
    metrics: Metrics = None,
    objects: Objects = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write captions.json and scores.json to this folder.")
    ] = None,
    format: Format = "auto",
) -> None:
    """Score captions that any system made."""
    from sightline.evaluation.scoring import score_results

    result = score_results(results, references, split, objects=objects, format=format, **metric_options(metrics))
    if output is not None:
        result.save(output)
    show_scores(result, str(results))


def calibrate(
    model: Annotated[str, typer.Argument(help="A model folder or hub name, or default.")],
    data: DataSources,
    photos: Annotated[
        int | None, typer.Option("--photos", min=1, help="Use so many val photos.", show_default="all")
    ] = None,
    train_photos: Annotated[
        int | None,
        typer.Option("--train-photos", min=1, help="Use so many train photos.", show_default="five per feature"),
    ] = None,
    batch_size: BatchSize = 16,
    format: Format = "auto",
) -> None:
    """Fit a model's confidence on val photos. It is written to confidence.json in the model's folder."""
    from rich.table import Table

    from sightline.data import load_datasets
    from sightline.engine.captioner import load
    from sightline.evaluation.calibration import calibrate as run
    from sightline.nn.hub import resolve

    folder = resolve(model)
    captioner = load(folder)  # in the runtime that will caption
    confidence = run(captioner, load_datasets(data, format), photos, train_photos, batch_size)
    confidence.save(folder)

    found = confidence.record["check"]
    table = Table("probability of being right", title=printable(Path(folder).name), title_justify="left")
    for column in ("right, %", "ECE before", "after", "Brier before", "after"):
        table.add_column(column, justify="right")
    rows = {name: found[key] for key, name in CALIBRATED.items()}
    rows |= {f"captions, {printable(source)}": values for source, values in found.get("sources", {}).items()}
    for name, values in rows.items():
        before, after = values["before"], values["after"]
        numbers = (after["rate"], before["ece"], after["ece"], before["brier"], after["brier"])
        table.add_row(f"{name} ({after['count']:,})", *map(percent, numbers))
    console().print(table)
    typer.echo(
        f"{percent(found['marked'])} % of val photos are marked unsure; each half was judged by the fit on the other"
    )
    typer.echo(f"written to {printable(Path(folder) / 'confidence.json')}")


def show_scores(result: Evaluation, title: str) -> None:
    """A table of all scores on stdout, and the signature below it."""
    from rich.table import Table

    table = Table("score", title=title, title_justify="left")
    table.add_column("×100", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_column("without brevity penalty", justify="right")  # as the papers of 2015 report BLEU
    for key in ordered(list(result.scores)):
        low, high = result.intervals[key]
        other = result.scores.get(f"{key}_no_bp")
        cells = (
            percent(result.scores[key]),
            f"{percent(low)} – {percent(high)}",
            "" if other is None else percent(other),
        )
        if not key.endswith("_no_bp"):
            table.add_row(score_label(key), *cells)
    variety = result.diversity
    printer = console()
    printer.print(table)
    if result.sources:
        sources = Table("source", title="each source alone, ×100", title_justify="left")
        keys = [key for key in ordered(list(result.scores)) if not key.endswith("_no_bp")]
        for key in keys:
            sources.add_column(METRIC_NAMES.get(key, key), justify="right")
        for name, scores in result.sources.items():
            sources.add_row(name, *(percent(scores[key]) if key in scores else "" for key in keys))
        printer.print(sources)
    different = counted(len(set(result.captions.values())), "different caption")
    summary = f"{different} of {len(result.images)}, {variety['vocabulary']} different words, "
    summary += f"{variety['mean_length']:.1f} words each"
    if (times := int(variety["most_repeated_count"])) > 1:
        summary += f"; the most frequent, {times} times: {variety['most_repeated']}"
    for line in (summary, few_photos(len(result.images), result.scores), result.signature):
        if line:
            printer.print(line, markup=False, soft_wrap=True)


def few_photos(count: int, scores: Mapping[str, float]) -> str:
    """That scores of so few photos mean little; empty where there are enough."""
    if count >= FEW_PHOTOS:
        return ""
    more = "; CIDEr-D weights words by how many photos have them and needs more" if "cider" in scores else ""
    return f"{counted(count, 'photo')}: too few for scores to mean much{more}"


def show_comparison(result: Comparison) -> None:
    """One table per system: its difference to the first, with interval and p-value."""
    from rich.table import Table

    printer = console()
    for name, scores, differences in zip(result.names[1:], result.scores[1:], result.differences):
        title = f"{name} against {result.names[0]}, {counted(result.images, 'image')}"
        table = Table("score", title=title, title_justify="left")
        for column in ("first", "this", "difference", "95 % interval", "p"):
            table.add_column(column, justify="right")
        for key in ordered(list(scores)):
            found = differences[key]
            table.add_row(
                score_label(key), percent(result.scores[0][key]), percent(scores[key]),
                f"{100 * found['difference']:+.1f}", f"{100 * found['low']:+.1f} – {100 * found['high']:+.1f}",
                f"{found['p']:.3f}",
            )  # fmt: skip
        printer.print(table)
    if line := few_photos(result.images, result.scores[0]):
        printer.print(line, markup=False, soft_wrap=True)


def show_rows(rows: list[ResultRow], left_out: int, metrics: list[str] | None = None) -> None:
    """Published scores side by side, each with its interval, and what more a dataset would tell."""
    from rich.table import Table

    keys = [key for key in ordered(list(rows[0].scores)) if not key.endswith("_no_bp")]
    if metrics is not None:
        keys = [key for key in keys if key.partition("_")[0] in metrics]
        if not keys:
            raise ConfigError(f"--metrics {','.join(metrics)}: these rows have no such score")
    table = Table("row", title=f"×100, with 95 % intervals, {rows[0].dataset}", title_justify="left")
    for key in keys:
        table.add_column(score_label(key), justify="right")
    for row in rows:
        cells = []
        for key in keys:
            low, high = row.intervals.get(key, (None, None))
            around = f" ({percent(low)} – {percent(high)})" if low is not None and high is not None else ""
            cells.append(percent(row.scores[key]) + around if key in row.scores else "")
        table.add_row(printable(row.path.stem), *cells)
    console().print(table)
    if left_out:
        complain(f"{counted(left_out, 'file')} left out: captions, curves and experiments of these rows")
    complain("these are the published scores; --data FOLDER --split test adds each difference with interval and p")


def _folder_name(groups: list[list[str]], number: int) -> str:
    """The model folder's own name, numbered where two are called the same."""
    names = [Path(group[0]).absolute().name for group in groups]
    return names[number] if names.count(names[number]) == 1 else f"{number + 1}-{names[number]}"
