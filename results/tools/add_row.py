"""Score a finished run and add it to the results: one command, one row.

    python results/tools/add_row.py runs/sat-soft-vgg19 --data flickr8k/ --commit 1a2b3c4

Captions val and test as `sightline evaluate` does, but takes the encoder's features from the feature cache
(SIGHTLINE_CACHE), where training left them, and adds new ones. With --exported an exported model is scored as it
runs for its users, features included. Writes NAME.json (scores times 100, 95 %
intervals, command, commit, seed, signature), NAME.captions.json (test captions in COCO's results format),
NAME.curve.json (the run's epochs), and brings README.md and RESULTS.md up to date.

Choose decoding settings with --val-only, as often as you like; test is scored once, without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rows import (
    EXPERIMENTS,
    Row,
    add_plan,
    check_name,
    curve_of,
    hundredths,
    minutes_of,
    public,
    read_row,
    recipe_name,
    recipe_of,
    stages_of,
    write_json,
    write_row,
)
from script import RESULTS, evenly, parser, run
from sightline.data import Dataset, Example, load_dataset, with_objects, write_results
from sightline.engine.captioner import Captioner, load
from sightline.engine.torch_backend import TorchBackend
from sightline.errors import ConfigError
from sightline.evaluation.scoring import Evaluation, evaluate
from sightline.io.progress import track
from sightline.nn.checkpoint import read_json
from sightline.nn.hub import resolve
from sightline.recipes.plans import PLANS, RowPlan, Stage
from sightline.training.feature_cache import FeatureCache
from table import plans_file, write_pages

BATCH = 16  # photos, as `sightline evaluate` takes them
SAMPLES = 12
EXPORTS = {  # options of `sightline export` by the graphs' precision; float32 captions as torch does
    "int8": ("--int8",),
    "int8-arithmetic": ("--int8", "--int8-arithmetic"),
}


def captions_from_cache(
    captioner: Captioner, examples: Sequence[Example], precision: str, **options: Any
) -> dict[str, str]:
    """The captioner's own captions of these photos, its encoders' features taken from the cache or added to it."""
    models = [backend.model for backend in captioner.backends if isinstance(backend, TorchBackend)]
    caches = [
        FeatureCache(model.encoder, examples, grid=model.decoder.uses_grid, precision=precision).fill(
            device=captioner.device
        )
        for model in models
    ]
    chosen = captioner.options(want_attention=False, **options)
    captions: dict[str, str] = {}
    for start in track(range(0, len(examples), BATCH), "captioning", -(-len(examples) // BATCH)):
        rows = range(start, min(start + BATCH, len(examples)))
        features = [cache.features(rows).to(captioner.device) for cache in caches]
        found = captioner.finish(captioner.decode(features, chosen), features)
        captions |= {examples[row].name: caption.text for row, caption in zip(rows, found)}
    return captions


def score(
    captioner: Captioner,
    dataset: Dataset,
    split: str,
    limit: int | None,
    precision: str | None,
    options: dict[str, Any],
) -> Evaluation:
    """With the cached features of this precision, or with None as `sightline evaluate` does."""
    if precision is None:
        return evaluate(captioner, dataset, split, limit=limit, **options)
    captions = captions_from_cache(captioner, dataset.examples(split)[:limit], precision, **options)
    found = evaluate(captioner, dataset, split, captions=captions, limit=limit, **options)
    return found if precision == "float32" else replace(found, signature=f"{found.signature}|encoder:{precision}")


def make_row(
    models: Sequence[Path],
    dataset: Dataset,
    *,
    given: dict[str, Any],
    options: dict[str, Any],
    val_only: bool = False,
    limit: int | None = None,
) -> tuple[Row, dict[str, str]]:
    """The row and the test captions, none with ``val_only``; ``given`` is what the folders do not know."""
    facts = _facts(models, given)  # first: a missing argument should not cost an hour of captioning
    exported = bool(given.get("exported"))
    captioner = load(*models, runtime="onnx" if exported else "torch")  # cached features are torch's
    precision = None if exported else given.get("precision") or recipe_of(models[0]).data.cache_precision
    val = score(captioner, dataset, "val", limit, precision, options)
    test = None if val_only else score(captioner, dataset, "test", limit, precision, options)
    metrics = [read_json(folder / "metrics.json") for folder in models if (folder / "metrics.json").is_file()]
    parameters = sum(backend.parameters for backend in captioner.backends)
    row = Row(
        val=hundredths(val.scores),
        test=hundredths(test.scores) if test else {},
        interval={key: _pair(test.intervals[key]) for key in hundredths(test.scores)} if test else {},
        parameters=parameters,
        trainable=sum(int(own.get("trained", 0)) for own in metrics) or parameters,
        signature=(test or val).signature,
        train_photos=given.get("train_photos") or val.train_photos,
        **facts,
    )
    return row, test.captions if test else {}


def _pair(bounds: tuple[float, float]) -> tuple[float, float]:
    return round(100 * bounds[0], 4), round(100 * bounds[1], 4)


def _facts(models: Sequence[Path], given: dict[str, Any]) -> dict[str, Any]:
    """Where the row comes from, from the folders where they know it and from ``given`` where they do not."""
    recipes = [recipe_of(folder) for folder in models]
    named = given["recipe"]
    names = [named] * len(models) if named else [recipe_name(own, folder) for own, folder in zip(recipes, models)]
    minutes = given["minutes"]
    if minutes is None:
        minutes = sum(minutes_of(folder) for folder in models)
    commit = given["commit"] or _recorded(models[0], "commit")
    if not commit:
        raise ConfigError("the run does not say at which commit it was trained: give --commit")
    return {
        "recipe": names[0] if len(models) == 1 else f"ensemble of {_together(names)}",
        "train_minutes": round(minutes) if minutes >= 10 else round(minutes, 1),
        "change": public(given["change"]) if given["change"] else None,
        "note": public(given["note"]) if given["note"] else None,
        "commit": commit,
        "seed": recipes[0].training.seed if given["seed"] is None else given["seed"],
    }


def make_plan(
    models: Sequence[Path], dataset: str, given: dict[str, Any], options: dict[str, Any]
) -> tuple[RowPlan, dict[str, Stage]]:
    """How `sightline reproduce` makes the row again, with the stages that the run's folder tells of."""
    stages: dict[str, Stage] = {}
    for folder in [] if given["stage"] else models:
        stages |= stages_of(folder, given["recipe"])
    names = given["stage"] or [folder.absolute().name for folder in models]
    chosen = recipe_of(models[0]).decoding.model_dump() | options
    decoding = {key: chosen[key] for key in ("beam", "length_penalty", "no_repeat_ngram")}
    export = ("--int8", "--int8-arithmetic") if given["exported"] else ()
    return RowPlan(
        data=dataset, models=tuple(names), decoding=decoding, export=export, objects=dataset == "coco"
    ), stages


def _recorded(folder: Path, key: str) -> str | None:
    """What run.json says, should it say that."""
    path = folder / "run.json"
    return str(read_json(path).get(key) or "") or None if path.is_file() else None


def _together(names: Sequence[str]) -> str:
    counts = {name: names.count(name) for name in names}
    return " and ".join(f"{count} {name}" for name, count in counts.items())


def write_files(
    folder: Path, name: str, row: Row, captions: dict[str, str], models: Sequence[Path], dataset: Dataset
) -> None:
    """The row last: whoever finds it finds the others. An ensemble was never trained and has no curve."""
    if len(models) == 1:
        write_json(folder / f"{name}.curve.json", curve_of(models[0]))
    if captions:
        write_results(folder / f"{name}.captions.json", captions)
        chosen = sample_names(list(captions))
        people = {example.name: example.captions[0] for example in dataset.examples("test") if example.name in chosen}
        write_json(folder / f"{EXPERIMENTS[0]}.json", people)
    write_row(folder, name, row)


def sample_names(names: Sequence[str]) -> list[str]:
    """The dozen photos shown for every system."""
    return evenly(sorted(names), SAMPLES)


def main(arguments: Sequence[str]) -> None:
    reader = parser(__doc__)
    reader.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="the run's folder")
    reader.add_argument("--data", required=True, help="the dataset's folder")
    reader.add_argument("--name", help="of the row; the folder's own name if not given")
    reader.add_argument("--ensemble", action="store_true", help="several models together are one row; needs --name")
    reader.add_argument("--val-only", action="store_true", help="score val only")
    reader.add_argument("--again", action="store_true", help="score test although the row has test scores already")
    reader.add_argument("--exported", action="store_true", help="score the exported graphs, without the feature cache")
    about = reader.add_argument_group("what the folder may not know")
    about.add_argument("--commit", help="at which the run was trained; needed unless run.json says it")
    about.add_argument(
        "--stage", action="append", help="of the plans that trains it, one for each model; otherwise the run's own"
    )
    about.add_argument("--train-photos", type=int, help="how many it was trained on; otherwise from metrics.json")
    about.add_argument("--objects", type=Path, help="object labels for CHAIR; otherwise those in the dataset's folder")
    about.add_argument("--precision", help="of the cached features; otherwise the recipe's data.cache_precision")
    about.add_argument("--minutes", type=float, help="of training; otherwise from history.jsonl, with earlier stages'")
    about.add_argument("--recipe", help="otherwise found by the recipe's title")
    about.add_argument("--seed", type=int, help="otherwise the recipe's")
    about.add_argument("--change", help="what the row has that its recipe does not, in words for the table")
    about.add_argument("--note", help="anything a reader must know about this row")
    search = reader.add_argument_group("decoding; as the model folder says if not given")
    search.add_argument("--beam", type=int)
    search.add_argument("--length-penalty", type=float)
    search.add_argument("--no-repeat-ngram", type=int)
    search.add_argument("--min-length", type=int)
    search.add_argument("--max-length", type=int)
    reader.add_argument("--limit", type=int, help="only the splits' first photos: for trying, with --results elsewhere")
    reader.add_argument(
        "--results", type=Path, help="where rows are kept; results/ for Flickr8k, results/NAME/ for others if not given"
    )
    given = vars(reader.parse_args(arguments))

    models = [resolve(model) for model in given["models"]]
    if (len(models) > 1) != given["ensemble"]:
        raise ConfigError("one row is one model, or with --ensemble several")
    if given["ensemble"] and not given["name"]:
        raise ConfigError("an ensemble needs a name: give --name")
    name = check_name(given["name"] or models[0].absolute().name)
    dataset = load_dataset(given["data"])
    if given["objects"]:
        dataset = with_objects(dataset, given["objects"])
    folder: Path = given["results"] or (RESULTS if dataset.name == "flickr8k" else RESULTS / dataset.name)
    published = folder.resolve().is_relative_to(RESULTS)
    if given["limit"] and published:
        raise ConfigError("--limit is for trying: give --results another folder, a row is a whole split")
    _look_once(folder / f"{name}.json", given["again"])
    decoding = ("beam", "length_penalty", "no_repeat_ngram", "min_length", "max_length")
    options = {key: given[key] for key in decoding if given[key] is not None}
    plan = make_plan(models, dataset.name, given, options)  # first: it takes no time, and may fail
    row, captions = make_row(
        models, dataset, given=given, options=options, val_only=given["val_only"], limit=given["limit"]
    )
    write_files(folder, name, row, captions, models, dataset)
    full_name = (folder.resolve().relative_to(RESULTS) / name).as_posix() if published else name
    add_plan(PLANS if published else plans_file(folder), full_name, *plan)
    if published:
        write_pages()
    shown = row.test or row.val
    print(
        f"{name}: {'test' if row.test else 'val'} BLEU-4 {shown['bleu_4']:.1f}, METEOR {shown['meteor']:.1f}, "
        f"CIDEr-D {shown['cider']:.1f}"
    )


def _look_once(path: Path, again: bool) -> None:
    if not again and path.exists() and read_row(path).test:
        raise ConfigError(
            f"{path.name} has its test scores, and test is scored once: use another --name, or --again if the row "
            "itself was wrong"
        )


if __name__ == "__main__":
    raise SystemExit(run(main))
