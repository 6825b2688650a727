"""What a run's folder tells about itself: its recipe, the command that repeats it, how long it took, its curve."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

from rows import SCORES, header_overrides, public, recipe_title
from sightline.errors import ConfigError, DataError
from sightline.io.files import printable
from sightline.recipes.config import Recipe, load_recipe, parse_recipe, recipe_names
from sightline.training.records import read_history


def recipe_of(folder: Path) -> Recipe:
    """The recipe as it was run, all overrides included."""
    path = folder / "recipe.toml"
    try:
        return parse_recipe(tomllib.loads(path.read_text(encoding="utf-8")), source=printable(path))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{printable(path)} cannot be read: {error}") from None


def recipe_name(recipe: Recipe, folder: Path) -> str:
    """Which of our recipes this was: found by its title, which no override changes."""
    known = [name for name in recipe_names() if recipe_title(name) == recipe.title]
    if len(known) > 1 and folder.name in known:
        return folder.name
    if len(known) != 1:
        raise ConfigError(f"{printable(folder)}: no recipe is called {recipe.title!r}: name one with --recipe")
    return known[0]


def commands_of(folder: Path, data: str, name: str | None = None) -> list[str]:
    """All it takes to train this model: first what it started or learned from, as far as that lies here."""
    recipe = recipe_of(folder)
    name = name or recipe_name(recipe, folder)
    before = recipe.training.init, getattr(recipe.objective, "teacher", None)
    earlier = [_run_folder(path, folder) for path in before if path]
    found = [command for run in earlier if (run / "recipe.toml").is_file() for command in commands_of(run, data)]
    return list(dict.fromkeys([*found, command_of(recipe, name, data, folder.absolute().name)]))


def command_of(recipe: Recipe, name: str, data: str, folder: str) -> str:
    """The command that gives exactly this recipe, without paths of this machine."""
    overrides = _overrides(recipe, name)
    if load_recipe(name, overrides) != recipe:
        raise ConfigError(f"the run's settings cannot be written as overrides of {name}: give --command")
    parts = [f"--set {shlex.quote(_portable(override))}" for override in overrides]
    output = [] if folder == name else [f"--output runs/{folder}"]
    return " ".join(["sightline train", name, "--data", data, *output, *parts])


def _overrides(recipe: Recipe, name: str) -> list[str]:
    """First those of the recipe's own command, then whatever else differs."""
    wanted, header = recipe.to_dict(), header_overrides(name)
    base = load_recipe(name, header).to_dict()
    always = [override.partition("=")[0] for override in header]
    found = []
    for section, values in wanted.items():
        if not isinstance(values, dict):
            continue
        before = base.get(section) or {}
        renamed = values.get("name") != before.get("name")
        for key in dict.fromkeys([*(["name"] if renamed else []), *values, *([] if renamed else before)]):
            if renamed or values.get(key) != before.get(key) or f"{section}.{key}" in always:
                found += _assignments(f"{section}.{key}", values.get(key))
    return sorted(found, key=lambda override: _place(override, always))


def _place(override: str, always: list[str]) -> int:
    key = override.partition("=")[0]
    return always.index(key) if key in always else len(always)


def _assignments(key: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{key}.{inner}={_text(of_it)}" for inner, of_it in value.items()]
    return [f"{key}={_text(value)}"]


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)  # numbers, truth and lists are the same in TOML


def _portable(override: str) -> str:
    """Model folders lie in runs/, other files beside the reader."""
    key, _, value = override.partition("=")
    if key in ("training.init", "objective.teacher"):
        return f"{key}=runs/{Path(value).name}"
    if key in ("encoder.weights", "embedding.file"):
        return f"{key}={Path(value).name}"
    return public(override)


def minutes_of(folder: Path) -> float:
    """Time spent training, this run's and that of the run it started from; captioning dev is not counted."""
    return minutes_before(folder) + _last_minutes(folder)


def minutes_before(folder: Path) -> float:
    """Time that went into the weights this run started from."""
    start = recipe_of(folder).training.init
    return minutes_of(_run_folder(start, folder)) if start else 0.0


def _last_minutes(folder: Path) -> float:
    history = read_history(folder)
    if not history:
        raise ConfigError(f"{printable(folder)} has no history.jsonl that tells how long it trained: give --minutes")
    return float(history[-1]["minutes"])


def _run_folder(path: str, beside: Path) -> Path:
    """A folder named in a recipe: where it was, or now beside the run that names it."""
    places = [Path(path).expanduser(), beside.absolute().parent / Path(path).name]
    return next((place for place in places if place.is_dir()), places[-1])


def curve_of(folder: Path) -> dict[str, Any]:
    """For ``NAME.curve.json``: every epoch's minutes, losses and dev scores (times 100)."""
    try:
        before: float | None = round(minutes_before(folder), 2)
    except (ConfigError, DataError):
        before = None  # the run it started from is not here
    return {"minutes_before": before, "epochs": [_epoch(record) for record in read_history(folder)]}


def _epoch(record: dict[str, Any]) -> dict[str, Any]:
    losses = ("train_loss", "train_nll", "dev_nll", "dev_nll_per_character", "dev_nll_per_caption")
    return {
        "epoch": record["epoch"] + 1,
        "minutes": record["minutes"],
        **{key: round(record[key], 4) for key in losses if key in record},
        "dev": {key: round(100 * record[key], 2) for key in SCORES if key in record},
        "best": bool(record.get("best")),
    }
