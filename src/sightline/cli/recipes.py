"""``sightline recipes``: what can be trained, each recipe in full, and what is wrong with one's own."""

from __future__ import annotations

from itertools import takewhile
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sightline.cli.console import complain, console
from sightline.cli.options import Overrides


class ByName(TyperGroup):
    """``sightline recipes NAME`` shows that recipe: whoever has just seen the list types its name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["show", *args])


recipes = typer.Typer(
    name="recipes",
    cls=ByName,
    help="List recipes, show one by its name, check one's own.",
    subcommand_metavar="[NAME | COMMAND] [ARGS]...",
    rich_markup_mode=None,
)


@recipes.callback(invoke_without_command=True)
def list_recipes(context: typer.Context) -> None:
    """List the recipes that come with Sightline."""
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
    names: Annotated[list[str] | None, typer.Argument(help="Recipes or .toml files; all shipped ones if none.")] = None,
    overrides: Overrides = None,
) -> None:
    """Say everything that is wrong with recipes. Nothing is trained."""
    from sightline.errors import ConfigError
    from sightline.recipes.config import load_recipe, recipe_names

    failed = False
    for name in names or recipe_names():
        try:
            load_recipe(name, overrides or ())
            typer.echo(f"{name}: fine")
        except ConfigError as error:
            complain(f"error: {error}")
            failed = True
    if failed:
        raise typer.Exit(1)
