"""``sightline train``: a recipe and a dataset in, a model folder out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sightline.cli.console import console, is_first_process, ordered, percent, score_label
from sightline.cli.options import Data, Format, Overrides


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (`sightline recipes`) or a .toml file.")],
    data: Data,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The run's folder.", show_default="runs/RECIPE")
    ] = None,
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run in the output folder stopped.")] = False,
    format: Format = "auto",
    seed: Annotated[int | None, typer.Option("--seed", help="The same as --set training.seed=N.")] = None,
) -> None:
    """Train a recipe. Under torchrun the work is shared and the first process talks."""
    from sightline.recipes.config import load_recipe

    changes = [*(overrides or ()), *([] if seed is None else [f"training.seed={seed}"])]
    chosen = load_recipe(recipe, changes)
    folder = output or Path("runs") / Path(recipe).stem

    from sightline.training.trainer import train as run

    best = run(chosen, data, folder, resume, format)
    if is_first_process():
        _show(best, folder, data, chosen.training.init)


def _show(best: dict[str, Any], folder: Path, data: str, start: str | None) -> None:
    from rich.table import Table

    table = Table("best epoch", "dev loss per token", title=str(folder), title_justify="left")
    row = [str(best["epoch"] + 1), f"{best['dev_nll']:.3f}"] if "dev_nll" in best else ["none", ""]
    for key in ordered([key for key in best if key in ("bleu_1", "bleu_4", "rouge_l", "cider")]):
        table.add_column(score_label(key), justify="right")
        row.append(percent(best[key]))
    table.add_row(*row)
    console().print(table)
    advice = f"sightline evaluate {folder} --data {data} --split dev"
    if not best.get("passed_start", True):
        advice = f"stay with {start}, which is better on dev; more photos or captions may help"
    console().print(f"next: {advice}", markup=False, soft_wrap=True)
