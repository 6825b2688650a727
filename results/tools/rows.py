"""What a row of the results is: ``NAME.json`` for each system, its test captions and its learning curve beside it."""

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

from sightline.errors import ConfigError, DataError
from sightline.io.files import printable, write_atomically
from sightline.recipes.config import RECIPES, recipe_names

SCORES = (
    "bleu_1", "bleu_2", "bleu_3", "bleu_4", "bleu_1_no_bp", "bleu_2_no_bp", "bleu_3_no_bp", "bleu_4_no_bp",
    "meteor", "rouge_l", "cider",
)  # fmt: skip
EXPERIMENTS = (  # no rows
    "samples", "failures", "gradient_variance", "attention_vs_occlusion", "confidence", "own_data",
)  # fmt: skip
# Their encoders' weights are on no package index, only on their authors' servers.
WEIGHTS_NEEDED = ("clip-glove", "clip-transformer", "sat-soft-densenet201", "sat-soft-googlenet", "sat-soft-resnet152")

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_ABSOLUTE = re.compile(r"(?<![\w.~:/-])~?(?:/[\w.@+-]+){2,}/?")


class Row(BaseModel):
    """One system. Scores are times 100; ``test`` and ``interval`` are empty while only dev has been looked at."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    recipe: str
    dev: dict[str, float]
    test: dict[str, float]
    interval: dict[str, tuple[float, float]]  # 95 %, of the test scores
    parameters: Annotated[int, Field(ge=1)]
    trainable: Annotated[int, Field(ge=0)]
    train_minutes: Annotated[float, Field(ge=0)]
    command: str
    change: str | None = None  # what the row has that its recipe does not
    note: str | None = None
    commit: str
    seed: int
    signature: str

    @property
    def checkpoint(self) -> str:
        """The hash of the weights, from the signature."""
        return self.signature.rpartition("|ckpt:")[2].partition("/")[0]  # without the runtime

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
        place = ".".join(map(str, fault["loc"])) or "the file"
        raise DataError(f"{printable(path)} is no row of results: {place}: {fault['msg']}") from None
    for part in ("dev", "test", "interval"):
        keys = set(getattr(row, part))
        if keys != set(SCORES) and (keys or part == "dev"):
            raise DataError(f"{printable(path)}: {part} has {', '.join(sorted(keys)) or 'no scores'}; add it again")
    return row


def read_rows(folder: Path) -> dict[str, Row]:
    """Every row by name: best test CIDEr-D first, then those that only dev has seen."""
    paths = [path for path in sorted(folder.glob("*.json")) if "." not in path.stem and path.stem not in EXPERIMENTS]
    rows = {path.stem: read_row(path) for path in paths}
    order = sorted(rows, key=lambda name: (-rows[name].test.get("cider", -1), -rows[name].dev["cider"], name))
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
        raise DataError(f"{missing[0]} was not computed: `pip install pycocoevalcap` brings METEOR's word lists")
    return {key: round(100 * scores[key], 4) for key in SCORES}


def title(row: Row) -> str:
    """What the system is, in words."""
    recipe = recipe_title(row.recipe) if row.recipe in recipe_names() else row.recipe
    return f"{recipe}: {row.change}" if row.change else recipe


def recipe_title(name: str) -> str:
    return str(tomllib.loads((RECIPES / f"{name}.toml").read_text(encoding="utf-8")).get("title") or name)


def header_overrides(recipe: str) -> list[str]:
    """The --set arguments of the command in a recipe's first line."""
    words = shlex.split((RECIPES / f"{recipe}.toml").read_text(encoding="utf-8").splitlines()[0])
    return [value for option, value in pairwise(words) if option == "--set"]


def public(text: str) -> str:
    """A command or note as anyone may read it: ``runs/NAME``, ``flickr8k/`` or a file name for a path from here."""

    def shorter(match: re.Match[str]) -> str:
        parts = [part for part in match[0].split("/") if part]
        if "runs" in parts:
            return "/".join(parts[parts.index("runs") :])
        return "flickr8k/" if "flickr8k" in parts[-1:] else parts[-1]

    return _ABSOLUTE.sub(shorter, text)
