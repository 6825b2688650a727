"""How every published row is made: the training stages it needs, the files they read, and how it is scored.

``published/plans.toml`` has the stages and rows; ``published/scores.json`` the scores, which results/tools/table.py
copies from results/. `sightline reproduce` carries a plan out.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError

from sightline.errors import ConfigError, nearest
from sightline.recipes.config import PLUS, RECIPES, Recipe, load_recipe

PLANS = RECIPES / "published" / "plans.toml"
SCORES = RECIPES / "published" / "scores.json"
RUN_KEYS = ("training.init", "objective.teacher")  # name another stage
WEIGHTS = "encoder.weights"
FILE_KEYS = (WEIGHTS, "embedding.file", "data.text")  # name files outside the dataset
HEADER = "# The stages and rows that `sightline reproduce` knows; results/tools/add_row.py adds to it.\n\n"


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Stage(Part):
    """One training run. ``set`` holds overrides of the recipe; a stage or file in it is named without its folder."""

    recipe: str
    data: tuple[str, ...]  # formats of the datasets: flickr8k, coco
    set: dict[str, Any] = {}

    def before(self) -> list[str]:
        """The stages that must be finished first."""
        return [self.set[key] for key in RUN_KEYS if key in self.set]

    def files(self) -> list[str]:
        return [name for key in FILE_KEYS if key in self.set for name in file_names(key, self.set[key])]

    def weights(self) -> list[str]:
        """The encoder's file, or those of several encoders; none if the library has them."""
        return file_names(WEIGHTS, self.set[WEIGHTS]) if WEIGHTS in self.set else []

    def overrides(self, paths: Paths) -> list[str]:
        """As ``--set`` takes them."""
        return [
            f"{key}={override_text(paths.value(key, value))}"
            for key, value in self.set.items()
            if not (key == WEIGHTS and paths.library_weights)
        ]

    def resolved(self, paths: Paths) -> Recipe:
        """The recipe with every override."""
        return load_recipe(self.recipe, self.overrides(paths))


class RowPlan(Part):
    """How one row is scored: which stages' models (several are an ensemble), on which dataset, with which options."""

    data: str
    models: tuple[str, ...] = ()  # none: people
    decoding: dict[str, int | float] = {}
    export: tuple[str, ...] = ()  # options of `sightline export`, for a row of an exported model
    objects: bool = False  # with CHAIR: object labels lie in the dataset's folder


class Plans(Part):
    files: dict[str, str] = {}  # the first digits of their SHA-256
    stages: dict[str, Stage]
    rows: dict[str, RowPlan]

    def row(self, name: str) -> RowPlan:
        if name not in self.rows:
            raise ConfigError(f"there is no row {name!r}{nearest(name, self.rows)}: `sightline reproduce` lists them")
        return self.rows[name]

    def stages_of(self, row: RowPlan) -> dict[str, Stage]:
        """All it takes, in the order of training."""
        found: dict[str, Stage] = {}

        def add(name: str, below: tuple[str, ...] = ()) -> None:
            if name in below:
                raise ConfigError(f"the stages {' → '.join([*below, name])} wait for each other")
            if name not in self.stages:
                raise ConfigError(f"there is no stage {name!r}{nearest(name, self.stages)}, which a row needs")
            for earlier in self.stages[name].before():
                add(earlier, (*below, name))
            found.setdefault(name, self.stages[name])

        for model in row.models:
            add(model)
        return found

    def datasets_of(self, row: RowPlan) -> list[str]:
        """The formats of the datasets that a row is trained and scored on."""
        trained = [name for stage in self.stages_of(row).values() for name in stage.data]
        return list(dict.fromkeys([*trained, row.data]))

    def to_toml(self) -> str:
        values = self.model_dump(mode="json", exclude_defaults=True)
        return HEADER + tomli_w.dumps({part: dict(sorted(content.items())) for part, content in values.items()})


@dataclass(frozen=True)
class Paths:
    """The paths of datasets by format, weight and text files, and the folder for runs."""

    data: Mapping[str, str] = field(default_factory=dict)
    files: Path | None = None
    runs: Path = Path("runs")
    library_weights: bool = False  # without encoder.weights: timm and torchvision download theirs

    def dataset(self, name: str) -> str:
        return self.data.get(name, f"{name}/")

    def file(self, name: str) -> str:
        return str(self.files / name) if self.files else name

    def run(self, name: str) -> str:
        return str(self.runs / name)

    def value(self, key: str, value: Any) -> Any:
        if key in RUN_KEYS:
            return self.run(value)
        return with_names(key, value, self.file) if key in FILE_KEYS else value


@dataclass(frozen=True)
class Step:
    """One command of a plan, and the folder that it fills."""

    verb: str  # train, export or evaluate
    name: str
    folder: str
    arguments: list[str]

    @property
    def command(self) -> str:
        return shlex.join(["sightline", self.verb, *self.arguments])


def steps(plans: Plans, name: str, paths: Paths) -> Iterator[Step]:
    """The commands that make a row, in order."""
    row = plans.row(name)
    for stage_name, stage in plans.stages_of(row).items():
        folder = paths.run(stage_name)
        data = [word for name in stage.data for word in ("--data", paths.dataset(name))]
        changes = [word for override in stage.overrides(paths) for word in ("--set", override)]
        yield Step("train", stage_name, folder, [stage.recipe, *data, "--output", folder, *changes])
    models = [paths.run(model) for model in row.models]
    if row.export:
        source, target = models[0], f"{models[0]}-exported"
        yield Step("export", Path(target).name, target, [source, "--output", target, *row.export])
        models = [target]
    scored = f"{name.replace('/', '-')}-scores"
    people = [] if models else ["--human"]
    together = ["--ensemble"] if len(models) > 1 else []
    options = [word for key, value in row.decoding.items() for word in ("--set", f"{key}={value}")]
    data = ["--data", paths.dataset(row.data), "--split", "test"]
    output = ["--output", paths.run(scored)]
    yield Step("evaluate", scored, paths.run(scored), [*people, *models, *together, *data, *options, *output])


def load_plans(path: Path = PLANS) -> Plans:
    try:
        plans = Plans.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except ValidationError as error:
        fault = error.errors()[0]
        raise ConfigError(f"{path}: {'.'.join(map(str, fault['loc']))}: {fault['msg'].lower()}") from None
    for row in plans.rows.values():
        plans.stages_of(row)
    return plans


def load_scores(path: Path = SCORES) -> dict[str, Any]:
    """The published test scores (times 100) with their intervals, minutes and notes, by row."""
    return json.loads(path.read_text(encoding="utf-8"))


def other_contents(plans: Plans, stages: Mapping[str, Stage], paths: Paths) -> list[str]:
    """Files of these stages whose content is not that of the published rows."""
    names = dict.fromkeys(name for stage in stages.values() for name in stage.files() if name in plans.files)
    return [name for name in names if not _digest(Path(paths.file(name))).startswith(plans.files[name])]


def file_names(key: str, value: str | Sequence[str]) -> list[str]:
    """The files that a setting names; the weights of several encoders are joined by "+"."""
    if isinstance(value, str):
        return value.split(PLUS) if key == WEIGHTS else [value]
    return list(value)


def with_names(key: str, value: str | Sequence[str], rename: Callable[[str], str]) -> str | list[str]:
    """The same setting with the names of its files changed."""
    names = [rename(name) for name in file_names(key, value)]
    return PLUS.join(names) if isinstance(value, str) else names


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def override_text(value: Any) -> str:
    """A value as ``--set`` reads it: TOML, with text unquoted."""
    if value is None:
        return "none"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={override_text(inner)}" for key, inner in value.items()) + "}"
    return value if isinstance(value, str) else json.dumps(value)
