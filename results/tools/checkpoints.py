"""List the trained checkpoints of the rows with their size and SHA-256, so that a release can carry them.

    python results/tools/checkpoints.py runs/                          the folders of runs, by the names of their stages
    python results/tools/checkpoints.py runs/ clip-coco=runs/clip-xe   a stage whose folder has another name

Writes checkpoints.json and checkpoints.md to results/. A stage that the folders do not have keeps its entry; one that
has none is listed as not kept, with the command that trains it again. A checkpoint that no row was scored on is not
listed: its hash must be the one in a row's signature, or its settings those of a stage that a listed one started from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rows import Row, read_json, recipe_of, write_json
from script import RESULTS, number, parser, run, table
from sightline.errors import ConfigError
from sightline.io.files import write_atomically
from sightline.io.model_files import checkpoint_hash, weights_hash, weights_size
from sightline.nn.hub import DEFAULT_MODEL
from sightline.recipes.plans import Paths, Plans, load_plans
from table import all_rows

LARGE_MODEL = RESULTS.parent / "models" / "large"
FILES = ("config.json", "model.safetensors", "tokenizer.json")
PAGE = """# Trained checkpoints

`python results/tools/checkpoints.py runs/` writes this page from the folders of the runs. The weights are not in the
repository, except those of the default and the large model. A checkpoint is a folder; its `model.safetensors` holds the
weights. The large model's are divided into compressed files: `cat models/large/model-*.gz | gunzip | sha256sum`.
`sightline reproduce ROW` trains those that were not kept.

"""


def describe(folder: Path) -> dict[str, Any]:
    """A checkpoint's files with their sizes and digests."""
    files = {}
    for name in FILES:
        data = (folder / name).read_bytes()
        files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return {"hash": checkpoint_hash(folder), "files": files}


def find(plans: Plans, folders: Mapping[str, Path], rows: Mapping[str, Row]) -> dict[str, dict[str, Any]]:
    """The checkpoints of the stages in these folders, by stage."""
    scored = {model: rows[name].checkpoint for name, plan in plans.rows.items() for model in plan.models[:1]}
    found = {}
    for stage, folder in folders.items():
        if stage not in plans.stages:
            raise ConfigError(f"there is no stage {stage!r}: write STAGE=FOLDER with a name from plans.toml")
        content = describe(folder)
        exported = any(plan.export for plan in plans.rows.values() if stage in plan.models)
        if stage in scored and not exported and not scored[stage].startswith(content["hash"]):
            raise ConfigError(f"{folder} is not what the row of {stage} was scored on: its hash is {content['hash']}")
        if recipe_of(folder).title != plans.stages[stage].resolved(Paths()).title:
            raise ConfigError(f"{folder} was trained with another recipe than the stage {stage}")
        found[stage] = content
    return found


def page(plans: Plans, found: Mapping[str, Mapping[str, Any]], rows: Mapping[str, Row]) -> str:
    lines = []
    for stage in plans.stages:
        of_rows = [name for name, plan in plans.rows.items() if stage in plan.models]
        user = next(name for name, plan in plans.rows.items() if stage in plans.stages_of(plan))
        used = ", ".join(f"`{name}`" for name in of_rows) or f"a stage of `{user}`"
        weights = found.get(stage, {}).get("files", {}).get("model.safetensors")
        size = f"{number(weights['bytes'] / 1e6)} MB" if weights else ""
        digest = f"`{weights['sha256']}`" if weights else "not kept"
        lines.append([f"`{stage}`", used, size, digest])
    shipped = {"the default model": (DEFAULT_MODEL, "the package"), "the large model": (LARGE_MODEL, "`models/large`")}
    for title, (folder, where) in shipped.items():
        digest, size = weights_hash(folder), f"{number(weights_size(folder) / 1e6)} MB"
        users = ", ".join(f"`{name}`" for name, row in rows.items() if row.checkpoint == checkpoint_hash(folder))
        lines.append([title, f"{users}: weights in int8, in {where}", size, f"`{digest}`"])
    return PAGE + table(["stage", "scored as", "weights", "SHA-256 of `model.safetensors`"], lines, left=4) + "\n"


def named(arguments: Sequence[str], plans: Plans) -> dict[str, Path]:
    folders: dict[str, Path] = {}
    for argument in arguments:
        stage, equals, folder = argument.partition("=")
        if equals:
            folders[stage] = Path(folder)
            continue
        here = {run.name: run for run in sorted(Path(argument).iterdir()) if (run / "model.safetensors").is_file()}
        folders |= {stage: run for stage, run in here.items() if stage in plans.stages and stage not in folders}
    return folders


def main(arguments: Sequence[str]) -> None:
    reader = parser(__doc__)
    reader.add_argument("runs", nargs="*", metavar="RUNS", help="a folder of runs, or STAGE=FOLDER")
    reader.add_argument("--results", type=Path, default=RESULTS, help="where the list is kept")
    given = reader.parse_args(arguments)
    plans, rows = load_plans(), all_rows(RESULTS)
    path = given.results / "checkpoints.json"
    before = read_json(path) if path.exists() else {}
    kept = {stage: content for stage, content in before.items() if stage in plans.stages}
    found = kept | find(plans, named(given.runs, plans), rows)
    write_json(path, dict(sorted(found.items())))
    write_atomically(given.results / "checkpoints.md", page(plans, found, rows))
    print(f"{len(found)} of {len(plans.stages)} stages have a checkpoint")


if __name__ == "__main__":
    raise SystemExit(run(main))
