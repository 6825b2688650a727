"""``sightline evaluate``: a model on a split, with intervals and a signature; or two evaluations compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.console import complain, console, failure_line, ordered, percent, score_label
from sightline.cli.options import (
    BatchSize,
    Beam,
    Datastore,
    Format,
    LengthPenalty,
    MaxLength,
    Metrics,
    MinLength,
    NoRepeat,
    Runtime,
    given,
    metric_names,
)
from sightline.errors import CheckpointError, ConfigError
from sightline.io.files import counted

if TYPE_CHECKING:
    from sightline.evaluation.comparison import Comparison
    from sightline.evaluation.scoring import Evaluation


def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(
            help="A model folder; several are evaluated one by one. With --compare: scores.json or results files."
        ),
    ],
    data: Annotated[str | None, typer.Option("--data", help="The dataset's folder, or a captions table.")] = None,
    split: Annotated[
        str, typer.Option("--split", help="train, dev or test. Choose on dev, look at test once.")
    ] = "dev",
    ensemble: Annotated[bool, typer.Option("--ensemble", help="Evaluate the models together, as one.")] = False,
    comparing: Annotated[
        bool, typer.Option("--compare", help="Compare evaluations (or results files with --data) by paired bootstrap.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for captions.json and scores.json; several models: one each."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", help="An HTML page with the 20 best and 20 worst photos.")
    ] = None,
    metrics: Metrics = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    min_length: MinLength = None,
    no_repeat_ngram: NoRepeat = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the split's first photos.")] = None,
    batch_size: BatchSize = 16,
    runtime: Runtime = "auto",
    datastore: Datastore = None,
    format: Format = "auto",
) -> None:
    """Caption a split and score it. The 95 % intervals are over 1,000 resamples of its photos."""
    if comparing:
        from sightline.evaluation.comparison import compare

        names = given(metrics=metric_names(metrics))
        show_comparison(compare(models, data, split, **names))
        return
    if data is None:
        raise ConfigError("--data is missing: name the dataset's folder")
    groups = [models] if ensemble else [[model] for model in models]
    if page is not None and len(groups) > 1:
        raise ConfigError("--page shows one model: evaluate one at a time, or all as one with --ensemble")

    from sightline.data import load_dataset
    from sightline.engine.captioner import load
    from sightline.evaluation.scoring import evaluate as run

    dataset = load_dataset(data, format)
    options = given(
        metrics=metric_names(metrics), beam=beam, length_penalty=length_penalty, max_length=max_length,
        min_length=min_length, no_repeat_ngram=no_repeat_ngram,
    )  # fmt: skip
    failed = False
    for number, group in enumerate(groups):
        folder = output / _folder_name(groups, number) if output and len(groups) > 1 else output
        try:
            captioner = load(*group, runtime=runtime, datastore=datastore)
            result = run(captioner, dataset, split, output=folder, limit=limit, batch_size=batch_size, **options)
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
    different = counted(len(set(result.captions.values())), "different caption")
    times = counted(int(variety["most_repeated_count"]), "time")
    lines = [
        f"{different} of {len(result.images)}, {variety['vocabulary']} words, "
        f"{variety['mean_length']:.1f} words each; {times}: {variety['most_repeated']}",
        result.signature,
    ]
    for line in lines:
        printer.print(line, markup=False, soft_wrap=True)


def show_comparison(result: Comparison) -> None:
    """One table per system: its difference to the first, how sure that is, and whether it is more than luck."""
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


def _folder_name(groups: list[list[str]], number: int) -> str:
    """The model folder's own name, numbered where two are called the same."""
    names = [Path(group[0]).absolute().name for group in groups]
    return names[number] if names.count(names[number]) == 1 else f"{number + 1}-{names[number]}"
