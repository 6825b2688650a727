"""``sightline reproduce``: make a row of the results again, stage by stage, and compare its scores."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli.console import console, ordered, score_label
from sightline.errors import CheckpointError, ConfigError, DataError, require
from sightline.io.files import printable

if TYPE_CHECKING:
    from sightline.recipes.config import Recipe
    from sightline.recipes.plans import Paths, Plans, Stage, Step

log = logging.getLogger(__name__)
NEEDED = {"train": "train", "export": "onnx"}  # the extra of a command


def reproduce(
    row: Annotated[
        str | None, typer.Argument(help="A row of the results, such as dinov2-scst.", show_default="lists the rows")
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option("--data", help="A dataset's folder; once for each that the row needs.")
    ] = None,
    files: Annotated[
        Path | None,
        typer.Option("--files", help="The folder of weight and text files.", show_default="the current folder"),
    ] = None,
    library_weights: Annotated[
        bool, typer.Option("--library-weights", help="Let timm and torchvision download the encoders' weights.")
    ] = False,
    runs: Annotated[Path, typer.Option("--runs", help="The folder of the stages' runs.")] = Path("runs"),
    plans: Annotated[
        Path | None, typer.Option("--plans", help="A TOML file with rows of your own.", show_default="Sightline's rows")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands that are left, and exit.")] = False,
) -> None:
    """Train and score a row of the results again. Finished stages are skipped, interrupted ones continue."""
    from sightline.recipes.plans import PLANS, Paths, load_plans, load_scores, steps

    known = load_plans(plans or PLANS)
    published = load_scores() if plans is None else {}
    if row is None:
        _list_rows(known, published)
        return
    stages = known.stages_of(known.row(row))
    paths = Paths(_datasets(known, row, data or [], dry_run), files, runs, library_weights)
    commands = list(steps(known, row, paths))
    if dry_run:
        for line in _placeholders(known, row, paths, stages):
            typer.echo(f"# {line}")
        for step in commands:
            done = is_done(step, stages, paths)
            typer.echo(f"# done: {step.folder}" if done else _with_resume(step).command)
        return
    if missing := _missing(known, row, paths, data or []):
        raise ConfigError(missing)
    for step in commands:
        if is_done(step, stages, paths):
            log.info("%s is there already", step.folder)
            continue
        if extra := NEEDED.get(step.verb):
            require(extra, f"sightline {step.verb}")
        current = _with_resume(step)
        log.info("%s", current.command)
        if code := _run([sys.executable, "-m", "sightline", current.verb, *current.arguments]):
            raise typer.Exit(code)
    _compare(row, Path(commands[-1].folder), published.get(row))


def _list_rows(plans: Plans, published: Mapping[str, Any]) -> None:
    from rich.table import Table

    table = Table("row", "datasets", box=None, pad_edge=False)
    for column in ("stages", "CIDEr-D", "minutes"):
        table.add_column(column, justify="right")
    for name, row in plans.rows.items():
        facts = published.get(name, {})
        stages = plans.stages_of(row)
        cider = f"{facts['test']['cider']:.1f}" if facts.get("test") else ""
        minutes = f"{facts['minutes']:g}" if facts.get("minutes") else ""
        table.add_row(name, ", ".join(plans.datasets_of(row)), str(len(stages) or ""), cider, minutes)
    console().print(table)


def _datasets(plans: Plans, row: str, data: list[str], dry_run: bool) -> dict[str, str]:
    """The folders given, by the format that the plan names them by.

    A dry run takes folders that do not exist for the datasets that are left, those of their names first.
    """
    from sightline.data import find_format

    found: dict[str, str] = {}
    future = [path for path in data if dry_run and not Path(path).exists()]
    for path in data:
        if path in future:
            continue
        name = find_format(path)
        if name in found:
            raise ConfigError(f"{printable(found[name])} and {printable(path)} both are {name}: give one")
        found[name] = path
    needed = plans.datasets_of(plans.row(row))
    left = [name for name in needed if name not in found]
    for name in [*left]:
        if path := next((path for path in future if name in Path(path).name.lower()), ""):
            found[name] = path
            future.remove(path)
            left.remove(name)
    found.update(zip(left, future))
    if data and (absent := [name for name in needed if name not in found]):
        given = ", ".join(f"{printable(path)} is {name}" for name, path in found.items())
        raise ConfigError(f"{row} needs the dataset {absent[0]} ({given}): add --data with its folder")
    return found


def _placeholders(plans: Plans, row: str, paths: Paths, stages: Mapping[str, Stage]) -> list[str]:
    """What to give for the names in printed commands that stand for folders and files of the user."""
    lines = []
    absent = [name for name in plans.datasets_of(plans.row(row)) if name not in paths.data]
    if absent:
        shown, given = (" and ".join(f"{name}/" for name in absent), " ".join(["--data FOLDER"] * len(absent)))
        what = "the folder of that dataset" if len(absent) == 1 else "the folders of these datasets"
        lines.append(f"{shown} below: {what} on your machine; give {given} to have it in the commands")
    for name, path in paths.data.items():
        if not Path(path).exists():
            lines.append(f"{printable(path)} does not exist yet: taken for the dataset {name}")
    names = {name for stage in stages.values() for name in stage.files()}
    names -= {name for stage in stages.values() for name in stage.weights() if paths.library_weights}
    if missing := sorted(name for name in names if not Path(paths.file(name)).is_file()):
        lines.append(f"{', '.join(missing)}: give their folder, --files FOLDER (results/README.md says more)")
    return lines


def _missing(plans: Plans, row: str, paths: Paths, data: list[str]) -> str:
    """What is not there, before hours are spent; other contents than the published ones are only logged."""
    from sightline.data import find_objects
    from sightline.recipes.plans import other_contents

    plan, stages = plans.row(row), plans.stages_of(plans.row(row))
    if not data:
        return f"--data is missing: {row} needs {' and '.join(plans.datasets_of(plan))}"
    weights = [name for stage in stages.values() for name in stage.weights()]
    skipped = weights if paths.library_weights else []
    names = dict.fromkeys(name for stage in stages.values() for name in stage.files() if name not in skipped)
    absent = [name for name in names if not Path(paths.file(name)).is_file()]
    if plan.objects and find_objects(Path(paths.dataset(plan.data))) is None:
        return f"{row} is scored with CHAIR: put object labels, objects.json, into {paths.dataset(plan.data)}"
    if absent:
        advice = ", or --library-weights" if set(absent) <= set(weights) else ""
        return (
            f"{row} needs {', '.join(absent)}: put them into one folder and name it with --files{advice} "
            "(results/README.md says what they are)"
        )
    for name in [] if paths.library_weights else other_contents(plans, stages, paths):
        log.warning("%s is not the file of the published row: the scores may differ", name)
    return ""


def is_done(step: Step, stages: Mapping[str, Stage], paths: Paths) -> bool:
    folder = Path(step.folder)
    if step.verb == "train":
        return _is_trained(folder, stages[step.name].resolved(paths))
    if step.verb == "export":
        return (folder / "sightline.json").is_file()
    models = [Path(argument) for argument in step.arguments if (Path(argument) / "config.json").is_file()]
    scores = folder / "scores.json"
    newest = max(((model / "config.json").stat().st_mtime for model in models), default=0.0)
    return scores.is_file() and bool(models or "--human" in step.arguments) and scores.stat().st_mtime >= newest


def _is_trained(folder: Path, recipe: Recipe) -> bool:
    """Whether the run in a folder is finished. One with other settings is an error."""
    state = folder / "state.safetensors"
    if not state.is_file():
        return False
    progress = _progress(state)
    differ = _differences(progress.get("recipe", {}), recipe.to_dict())
    if differ:
        raise ConfigError(
            f"{printable(folder)} was trained with other settings ({', '.join(differ)}): choose another folder, --runs"
        )
    return bool(progress.get("finished")) or progress.get("epoch", 0) >= recipe.training.epochs


def _progress(state: Path) -> dict[str, Any]:
    """How far a run is, from the header of its state."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(state, framework="numpy") as file:
            return json.loads(file.metadata()["facts"])["progress"]
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{printable(state)} cannot be read: {error}; delete its folder to begin again") from None


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Settings that differ. A file may have moved to another folder."""
    from sightline.recipes.config import differences
    from sightline.recipes.plans import FILE_KEYS, RUN_KEYS

    found = differences(before, after)
    movable = [key for key in (*FILE_KEYS, *RUN_KEYS) if key in found]
    moved = [key for key in movable if _names(key, found[key][0]) == _names(key, found[key][1])]
    return [key for key in found if key not in moved]


def _names(key: str, paths: Any) -> list[str] | None:
    """The names of a setting's files or runs, without their folders."""
    from sightline.recipes.plans import file_names

    return None if paths is None else [Path(path).name for path in file_names(key, paths)]


def _with_resume(step: Step) -> Step:
    begun = step.verb == "train" and (Path(step.folder) / "state.safetensors").is_file()
    return replace(step, arguments=[*step.arguments, "--resume"]) if begun else step


def _run(command: list[str]) -> int:
    """Run a command to its end. On Ctrl-C it saves its state, and is waited for."""
    with subprocess.Popen(command) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue  # the command was interrupted, too


def _compare(row: str, folder: Path, published: Mapping[str, Any] | None) -> None:
    """The published scores beside the new ones."""
    from rich.table import Table

    try:
        found = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{printable(folder / 'scores.json')} cannot be read: {error}") from None
    before = published or {}
    table = Table("score, ×100", title=row, title_justify="left")
    for column in ("published", "95 % interval", "here", "95 % interval"):
        table.add_column(column, justify="right")
    for key in ordered([key for key in found["scores"] if not key.endswith("_no_bp")]):
        here = [f"{100 * found['scores'][key]:.1f}", _interval([100 * bound for bound in found["intervals"][key]])]
        there = ["", ""]
        if key in before.get("test", {}):
            there = [f"{before['test'][key]:.1f}", _interval(before["interval"][key])]
        table.add_row(score_label(key), *there, *here)
    printer = console()
    printer.print(table)
    for line in (before.get("note"), found["signature"]):
        if line:
            printer.print(line, markup=False, soft_wrap=True)


def _interval(bounds: Any) -> str:
    low, high = bounds
    return f"{low:.1f} – {high:.1f}"
