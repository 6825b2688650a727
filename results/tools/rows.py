"""What a row of the results is, and what a run's folder tells about itself.

``NAME.json`` is one system; its test captions and its learning curve have the same name. A run's folder gives the
recipe, the command that repeats it, how long it took, and its curve. Flickr8k's rows are in results/, another dataset's
in a folder of its name (results/coco/).
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sightline.errors import ConfigError, DataError, install_command
from sightline.io.files import printable, write_atomically
from sightline.recipes.config import RECIPES, Recipe, load_recipe, parse_recipe, recipe_names
from sightline.recipes.plans import FILE_KEYS, RUN_KEYS, Plans, RowPlan, Stage, load_plans, override_text, with_names
from sightline.training.state import read_history

SCORES = (
    "bleu_1", "bleu_2", "bleu_3", "bleu_4", "bleu_1_no_bp", "bleu_2_no_bp", "bleu_3_no_bp", "bleu_4_no_bp",
    "meteor", "rouge_l", "cider",
)  # fmt: skip
OBJECT_SCORES = ("chair_s", "chair_i")  # only where photos have object labels
EXPERIMENTS = (  # no rows
    "samples", "failures", "gradient_variance", "attention_vs_occlusion", "confidence", "own_data", "checkpoints",
    "bleu_1", "teacher_forced", "trials", "gender_words", "attention_on_objects", "trade_off",
)  # fmt: skip
# Recipes that have no row yet. DenseNet-201's weights are on no package index, only on their authors' servers.
WITHOUT_ROW = dict.fromkeys(
    (
        "clip-glove", "clip-transformer", "sat-soft-densenet121", "sat-soft-googlenet", "sat-soft-resnet152",
        "sat-soft-vgg16", "sat-soft-vgg19-paper",
    ),
    "not trained yet",
) | {"sat-soft-densenet201": "weights needed"}  # fmt: skip

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_ABSOLUTE = re.compile(r"(?<![\w.~:/-])~?(?:/[\w.@+-]+){2,}/?")


class Row(BaseModel):
    """One system, or people. Scores are times 100; ``test`` and ``interval`` are empty while only val was scored."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    recipe: str
    val: dict[str, float]
    test: dict[str, float]
    interval: dict[str, tuple[float, float]]  # 95 %, of the test scores
    parameters: Annotated[int, Field(ge=0)]  # 0: people
    trainable: Annotated[int, Field(ge=0)]
    train_minutes: Annotated[float, Field(ge=0)]
    train_photos: Annotated[int, Field(ge=1)] | None = None
    change: str | None = None  # what the row has that its recipe does not
    note: str | None = None
    commit: str
    seed: int
    signature: str

    @property
    def checkpoint(self) -> str:
        """The hash of the weights, from the signature."""
        return re.split(r"[/|]", self.signature.rpartition("|ckpt:")[2])[0]  # without runtime and precision

    def to_json(self) -> dict[str, Any]:
        values = self.model_dump(mode="json", exclude_none=True)
        minutes = values["train_minutes"]
        return values | {"train_minutes": int(minutes) if minutes == int(minutes) else minutes}


def read_row(path: Path) -> Row:
    try:
        row = Row.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{printable(path)} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(map(str, fault["loc"])) or "the file"
        raise DataError(f"{printable(path)} is no row of results: {field}: {fault['msg']}") from None
    for part in ("val", "test", "interval"):
        keys = set(getattr(row, part))
        if keys - set(OBJECT_SCORES) != set(SCORES) and (keys or part == "val"):
            raise DataError(f"{printable(path)}: {part} has {', '.join(sorted(keys)) or 'no scores'}; add it again")
    return row


def read_rows(folder: Path) -> dict[str, Row]:
    """Every row by name: best test CIDEr-D first, then those only scored on val."""
    paths = [path for path in sorted(folder.glob("*.json")) if "." not in path.stem and path.stem not in EXPERIMENTS]
    rows = {path.stem: read_row(path) for path in paths}
    order = sorted(rows, key=lambda name: (-rows[name].test.get("cider", -1), -rows[name].val["cider"], name))
    return {name: rows[name] for name in order}


def write_row(folder: Path, name: str, row: Row) -> None:
    write_json(folder / f"{check_name(name)}.json", row.to_json())


def write_json(path: Path, values: Any) -> None:
    """JSON for a repository: readable, and without a path of the machine it was made on."""
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    if found := _ABSOLUTE.search(text):
        raise DataError(f"{printable(path.name)} would hold {found[0]!r}, a path of this machine: leave it out")
    write_atomically(path, text)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{printable(path)} cannot be read: {error}") from None


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name) or name in EXPERIMENTS:
        raise ConfigError(f"a row cannot be called {name!r}: use small letters, digits and hyphens (--name)")
    return name


def hundredths(scores: Mapping[str, float]) -> dict[str, float]:
    """Fractions as a row holds them; a score that is missing is an error, as rows must be comparable.

    With four decimals, so that a page's one decimal is rounded once.
    """
    if missing := [key for key in SCORES if key not in scores]:
        raise DataError(f"{missing[0]} was not computed: {install_command('metrics')} brings METEOR's word lists")
    return {key: round(100 * scores[key], 4) for key in (*SCORES, *OBJECT_SCORES) if key in scores}


def title(row: Row) -> str:
    """What the system is, in words."""
    recipe = recipe_title(row.recipe) if row.recipe in recipe_names() else row.recipe
    return f"{recipe}: {row.change}" if row.change else recipe


def recipe_title(name: str) -> str:
    return str(tomllib.loads((RECIPES / f"{name}.toml").read_text(encoding="utf-8")).get("title") or name)


def header(recipe: str, option: str) -> list[str]:
    """The arguments of an option in the command of a recipe's first line."""
    words = shlex.split((RECIPES / f"{recipe}.toml").read_text(encoding="utf-8").splitlines()[0])
    return [value for name, value in pairwise(words) if name == option]


def public(text: str) -> str:
    """A command or note as anyone may read it: ``runs/NAME``, ``flickr8k/`` or a file name for a path from here."""

    def shorter(match: re.Match[str]) -> str:
        parts = [part for part in match[0].split("/") if part]
        if "runs" in parts:
            return "/".join(parts[parts.index("runs") :])
        return "flickr8k/" if "flickr8k" in parts[-1:] else parts[-1]

    return _ABSOLUTE.sub(shorter, text)


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


def stages_of(folder: Path, name: str | None = None) -> dict[str, Stage]:
    """All it takes to train this model, by the runs' names: first what it was initialised or distilled from."""
    recipe = recipe_of(folder)
    before = recipe.training.init, getattr(recipe.objective, "teacher", None)
    earlier = [_run_folder(path, folder) for path in before if path]
    found: dict[str, Stage] = {}
    for run in earlier:
        if (run / "recipe.toml").is_file():
            found |= stages_of(run)
    return found | {
        folder.absolute().name: stage_of(recipe, name or recipe_name(recipe, folder), recorded_data(folder))
    }


def recorded_data(folder: Path) -> tuple[str, ...]:
    """The datasets a run says it was trained on; empty where it says none."""
    path = folder / "run.json"
    return tuple(read_json(path).get("data", ())) if path.is_file() else ()


def stage_of(recipe: Recipe, name: str, data: tuple[str, ...] = ()) -> Stage:
    """The stage that gives exactly this recipe, without paths of this machine; on its own data if none is given."""
    changes = _changes(recipe, name)
    if load_recipe(name, [f"{key}={override_text(value)}" for key, value in changes.items()]) != recipe:
        raise ConfigError(f"the run's settings cannot be written as overrides of {name}: give --stage")
    data = data or tuple(Path(path).name for path in header(name, "--data"))
    return Stage(recipe=name, data=data, set={key: _portable(key, value) for key, value in changes.items()})


def _changes(recipe: Recipe, name: str) -> dict[str, Any]:
    """First those of the recipe's own command, then whatever else differs."""
    wanted, always = recipe.to_dict(), header(name, "--set")
    base = load_recipe(name, always).to_dict()
    order = [override.partition("=")[0] for override in always]
    found: dict[str, Any] = {}
    for section, values in wanted.items():
        if not isinstance(values, dict):
            continue
        before = base.get(section) or {}
        renamed = values.get("name") != before.get("name")
        for key in dict.fromkeys([*(["name"] if renamed else []), *values, *([] if renamed else before)]):
            if not (renamed or values.get(key) != before.get(key) or f"{section}.{key}" in order):
                continue
            if key == "options":
                found |= {f"{section}.{key}.{inner}": value for inner, value in values[key].items()}
            else:
                found[f"{section}.{key}"] = values.get(key)
    return dict(sorted(found.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


def _portable(key: str, value: Any) -> Any:
    """A stage or file is named without its folder; none, which TOML has not, is the word."""
    if value is None:
        return "none"
    return with_names(key, value, lambda path: Path(path).name) if key in RUN_KEYS or key in FILE_KEYS else value


def add_plan(path: Path, name: str, row: RowPlan, stages: Mapping[str, Stage]) -> None:
    """Add a row and its stages to a file of plans."""
    plans = load_plans(path) if path.exists() else Plans(stages={}, rows={})
    for stage, content in stages.items():
        if plans.stages.get(stage, content) != content:
            raise ConfigError(f"{path.name} has a stage {stage} with other settings: rename the run's folder")
    added = Plans(files=plans.files, stages={**plans.stages, **stages}, rows={**plans.rows, name: row})
    added.stages_of(row)
    write_atomically(path, added.to_toml())


def minutes_of(folder: Path) -> float:
    """Time spent training, this run's and that of the run it started from; captioning val is not counted."""
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


def _run_folder(path: str, neighbour: Path) -> Path:
    """A folder named in a recipe: where it was, or now next to the run that names it."""
    folders = [Path(path).expanduser(), neighbour.absolute().parent / Path(path).name]
    return next((folder for folder in folders if folder.is_dir()), folders[-1])


def curve_of(folder: Path) -> dict[str, Any]:
    """For ``NAME.curve.json``: every epoch's minutes, losses and val scores (times 100)."""
    try:
        before: float | None = round(minutes_before(folder), 2)
    except (ConfigError, DataError):
        before = None  # the run it started from is not here
    return {"minutes_before": before, "epochs": [_epoch(record) for record in read_history(folder)]}


def _epoch(record: dict[str, Any]) -> dict[str, Any]:
    losses = ("train_loss", "train_nll", "val_nll", "val_nll_per_character", "val_nll_per_caption")
    return {
        "epoch": record["epoch"] + 1,
        "minutes": record["minutes"],
        **{key: round(record[key], 4) for key in losses if key in record},
        "val": {key: round(100 * record[key], 2) for key in SCORES if key in record},
        "best": bool(record.get("best")),
    }
