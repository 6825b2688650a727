"""``sightline train``, ``recipes`` and ``features``: a recipe and a dataset in, a model folder out.

``retrieval`` needs no training: it makes captioned photos a datastore for kNN-augmented decoding.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from itertools import chain, takewhile
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sightline.cli.console import (
    BatchSize,
    Data,
    DataSources,
    Format,
    Overrides,
    Ray,
    Runtime,
    complain,
    console,
    is_first_process,
    ordered,
    percent,
    score_label,
)
from sightline.errors import ConfigError, missing_packages, require
from sightline.io.files import counted, printable


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (`sightline recipes`) or a .toml file.")],
    data: DataSources,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The run's folder.", show_default="runs/RECIPE")
    ] = None,
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the output folder.")] = False,
    format: Format = "auto",
    seed: Annotated[int | None, typer.Option("--seed", help="The same as --set training.seed=N.")] = None,
    tracker: Annotated[
        str | None, typer.Option("--tracker", help="Also show the curves in wandb or mlflow, if installed.")
    ] = None,
) -> None:
    """Train a recipe. Under torchrun the processes share the work."""
    require("train", "sightline train")

    from sightline.recipes.config import load_recipe

    changes = [*(overrides or ()), *([] if seed is None else [f"training.seed={seed}"])]
    chosen = load_recipe(recipe, changes)
    folder = output or Path("runs") / Path(recipe).stem

    from sightline.training.trainer import train as run

    try:
        best = run(chosen, data, folder, resume, format, tracker)
    except KeyboardInterrupt:
        if is_first_process() and (folder / "state.safetensors").is_file():
            options = [("--data", source) for source in data] + [("--set", change) for change in overrides or ()]
            options += [("--output", str(folder))] if output else []
            options += [] if seed is None else [("--seed", str(seed))]
            options += [("--format", format)] if format != "auto" else []
            options += [("--tracker", tracker)] if tracker else []
            complain(f"to continue: {shlex.join(['sightline', 'train', recipe, *chain(*options), '--resume'])}")
        raise
    if is_first_process():
        _show(best, folder, data, chosen.training.init)


def _show(best: dict[str, Any], folder: Path, data: list[str], start: str | None) -> None:
    from rich.table import Table

    table = Table("best epoch", "val loss per token", title=str(folder), title_justify="left")
    row = [str(best["epoch"] + 1), f"{best['val_nll']:.3f}"] if "val_nll" in best else ["none", ""]
    for key in ordered([key for key in best if key in ("bleu_1", "bleu_4", "rouge_l", "cider")]):
        table.add_column(score_label(key), justify="right")
        row.append(percent(best[key]))
    table.add_row(*row)
    console().print(table)
    sources = " ".join(f"--data {source}" for source in data)
    advice = f"sightline evaluate {folder} {sources} --split val"
    if not best.get("passed_start", True):
        advice = f"stay with {start}, which is better on val; more photos or captions may help"
    console().print(f"next: {advice}", markup=False, soft_wrap=True)


def features(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (`sightline recipes`) or a .toml file.")],
    data: DataSources,
    overrides: Overrides = None,
    format: Format = "auto",
    ray: Ray = None,
) -> None:
    """Compute a frozen encoder's features ahead of training. Training then reads them from the cache."""
    require("train", "sightline features")

    from sightline.bulk.features import build_features

    for folder in build_features(recipe, list(overrides or ()), data, format, ray):
        typer.echo(folder)


def pseudo_caption(
    photos: Annotated[Path, typer.Argument(help="A folder of photos without captions.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A .jsonl file in a folder above the photos; it is continued.")
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", help="A model folder; several make an ensemble.", show_default="the default model"
        ),
    ] = None,
    objects: Annotated[
        Path | None, typer.Option("--objects", help="Object labels of the photos: keep only captions that agree.")
    ] = None,
    candidates: Annotated[int, typer.Option("--candidates", min=1, help="Captions found for each photo.")] = 5,
    keep: Annotated[int, typer.Option("--keep", min=1, help="At most so many are kept.")] = 3,
    batch_size: BatchSize = 16,
    runtime: Runtime = "auto",
) -> None:
    """Make training data of photos without captions. An interrupted run continues."""
    from sightline.engine.captioner import load
    from sightline.training.pseudo_captions import write_pseudo_captions

    captioner = load(*(model or ()), runtime=runtime)
    found = write_pseudo_captions(captioner, photos, output, objects, candidates, keep, batch_size)
    typer.echo(str(found))
    if found.failed:
        raise typer.Exit(1)


class ByName(TyperGroup):
    """``sightline recipes NAME`` means ``sightline recipes show NAME``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["show", *args])


recipes = typer.Typer(
    name="recipes",
    cls=ByName,
    help="List recipes, show one by its name, or check your own.",
    subcommand_metavar="[NAME | COMMAND] [ARGS]...",
    rich_markup_mode=None,
)


@recipes.callback(invoke_without_command=True)
def list_recipes(
    context: typer.Context,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of recipe files, for editors, and exit.")
    ] = False,
) -> None:
    """List the recipes that come with Sightline."""
    if schema:
        import json

        from sightline.recipes.config import recipe_schema

        typer.echo(json.dumps(recipe_schema(), indent=2))
        raise typer.Exit
    if context.invoked_subcommand is not None:
        return
    from rich.table import Table

    from sightline.recipes.config import load_recipe, recipe_names

    table = Table("recipe", "encoder", "decoder", "text", "objective", "what it is", box=None, pad_edge=False)
    for name in recipe_names():
        recipe = load_recipe(name)
        parts = (recipe.encoder.name, recipe.decoder.name, recipe.tokenizer.name, recipe.objective.name)
        table.add_row(name, *parts, recipe.title)
    console().print(table)


@recipes.command()
def show(
    name: Annotated[str, typer.Argument(help="A recipe's name or a .toml file.")],
    overrides: Overrides = None,
) -> None:
    """Print a recipe with every value, and the command that trains it."""
    from sightline.recipes.config import find_recipe, load_recipe

    recipe = load_recipe(name, overrides or ())
    comments = takewhile(lambda line: line.startswith("#"), find_recipe(name).read_text(encoding="utf-8").splitlines())
    typer.echo("".join(f"{line}\n" for line in comments) + recipe.to_toml(), nl=False)


@recipes.command()
def check(
    names: Annotated[
        list[str] | None, typer.Argument(help="Recipes or .toml files; without any, all recipes of Sightline.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Check recipes' keys and values, and report every fault of these. Nothing is trained."""
    from sightline.recipes.config import recipe_names

    failed = False
    for name in names or recipe_names():
        faults = _faults(name, overrides or ())
        for fault in faults:
            complain(f"error: {fault}")
        if not faults:
            typer.echo(f"{name}: fine")
        failed = failed or bool(faults)
    if failed:
        raise typer.Exit(1)


def _faults(name: str, overrides: Iterable[str]) -> list[str]:
    """The faults of a recipe. The encoder's name is looked up only where timm is installed."""
    from sightline.recipes.config import RecipeError, load_recipe

    try:
        recipe = load_recipe(name, overrides)
    except RecipeError as error:
        return [f"{name}: {fault}" for fault in error.faults]
    except ConfigError as error:
        return [str(error)]
    if missing_packages("train"):
        return []
    from sightline.nn.encoders import check_encoder_name

    try:
        check_encoder_name(recipe.encoder.name)
    except ConfigError as error:
        return [f"{name}: {error}"]
    return []


retrieval = typer.Typer(name="retrieval", help="Build a retrieval datastore of your own captioned photos.")


@retrieval.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@retrieval.command()
def build(
    data: Data,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the datastore to this folder; an existing one is replaced.")
    ],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="A model folder or hub name.", show_default="the default model")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="Use this split: train, val, test or all.")] = "train",
    weight: Annotated[
        float | None,
        typer.Option("--weight", help="Weight of the neighbours' captions, 0 to 1.", show_default="the best on val"),
    ] = None,
    runtime: Runtime = "auto",
    format: Format = "auto",
) -> None:
    """Build a datastore of captioned photos. Verbs that caption take its folder with --datastore."""
    from sightline.engine.captioner import load
    from sightline.training.retrieval import build_datastore

    captioner = load(*([model] if model else []), runtime=runtime)
    datastore, scores = build_datastore(captioner, data, split, weight, format)
    datastore.save(output)
    new = datastore.tokenizer(captioner.tokenizer).size - captioner.tokenizer.size
    typer.echo(f"{counted(len(datastore), 'photo')} in {printable(output)}, {counted(new, 'word')} new to the model")
    if scores:
        listed = ", ".join(f"{each:g}: {percent(found)}" for each, found in scores.items())
        typer.echo(f"CIDEr-D on val by weight: {listed}; chosen: {datastore.contents.weight:g}")
        if not datastore.contents.weight:
            typer.echo("retrieval does not help on these val photos; fine-tuning may: sightline train own-photos")
