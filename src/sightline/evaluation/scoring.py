"""A captioner on a split: captions, scores with intervals, and the signature that says how they were made.

Captions come from the photos alone, references are the human captions as published, and every score is printed with
what it depends on, so that two numbers are comparable or visibly not. (A module named ``evaluate`` would take the place
of the function ``sightline.evaluate``.)
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sightline import __version__
from sightline.data import Dataset, Example, load_dataset, read_references, read_results, write_results
from sightline.data.dataset import SPLIT_NAMES
from sightline.decoding import DecodingOptions
from sightline.engine.captioner import Captioner, load
from sightline.errors import DataError
from sightline.evaluation.metrics import METRICS, build, prepare
from sightline.evaluation.metrics.bootstrap import interval
from sightline.evaluation.metrics.metric import Metric, diversity
from sightline.io.files import FileSlice, printable, write_atomically
from sightline.io.progress import track
from sightline.types import Failure

FORMAT = "sightline-scores-1"
RESAMPLES = 1000
# Options that change captions, and their short names in the signature; the first three are always named.
_NAMED = {"beam": "beam", "length_penalty": "lp", "max_length": "max"}
_NAMED_IF_CHANGED = {
    "min_length": "min", "no_repeat_ngram": "no-repeat", "allow_unknown": "unknown", "sample": "sample",
    "temperature": "temperature", "top_k": "top-k", "top_p": "top-p", "seed": "seed",
}  # fmt: skip


@dataclass(frozen=True)
class ScoredImage:
    """One photo's caption beside the people's, with its own scores (fractions)."""

    name: str
    caption: str
    references: tuple[str, ...]
    scores: dict[str, float]
    image: Path | FileSlice | None = None  # None where only a references file was given


@dataclass(frozen=True)
class Evaluation:
    """Scores are fractions; tables show them times 100."""

    signature: str
    scores: dict[str, float]
    intervals: dict[str, tuple[float, float]]  # 95 %, from the bootstrap over images
    diversity: dict[str, float | str]
    images: tuple[ScoredImage, ...]
    failures: tuple[Failure, ...] = ()  # photos that could not be opened: not captioned, not scored

    @property
    def captions(self) -> dict[str, str]:
        return {image.name: image.caption for image in self.images}

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, with everything a later comparison needs."""
        return {
            "format": FORMAT,
            "signature": self.signature,
            "scores": self.scores,
            "intervals": {key: list(bounds) for key, bounds in self.intervals.items()},
            "diversity": self.diversity,
            "failures": [{"source": failure.source, "reason": failure.reason} for failure in self.failures],
            "images": [
                {"name": image.name, "caption": image.caption, "references": image.references, "scores": image.scores}
                for image in self.images
            ],
        }

    def save(self, folder: str | Path) -> None:
        """``captions.json`` in COCO's results format and ``scores.json`` with everything."""
        write_results(Path(folder) / "captions.json", self.captions)
        text = json.dumps(self.as_dict(), ensure_ascii=False, indent=1)
        write_atomically(Path(folder) / "scores.json", text + "\n")


def evaluate(
    captioner: Captioner | str | Path | Sequence[str | Path] | None,
    data: Dataset | str | Path,
    split: str = "dev",
    *,
    captions: Mapping[str, str] | None = None,
    metrics: Sequence[str] = tuple(METRICS),
    output: str | Path | None = None,
    batch_size: int = 16,
    resamples: int = RESAMPLES,
    limit: int | None = None,
    format: str = "auto",
    **options: Any,
) -> Evaluation:
    """Caption a split and score it; a list of folders is an ensemble.

    ``captions`` (by example name) scores ready captions instead; ``options`` are `DecodingOptions`; ``limit`` takes
    only the split's first photos; ``output`` is a folder for captions.json and scores.json.
    """
    scorers = build(metrics)  # a wrong name should not cost an hour of captioning first
    dataset = data if isinstance(data, Dataset) else load_dataset(data, format)
    examples = dataset.examples(split)[:limit]
    if isinstance(captioner, str | Path):
        captioner = load(captioner)
    elif isinstance(captioner, Sequence):
        captioner = load(*captioner)
    failures: list[Failure] = []
    if captions is None:
        if captioner is None:
            raise DataError("nothing to evaluate: give a captioner or ready captions")
        captions, failures = _caption(captioner, examples, batch_size, options)
        failed = {failure.source for failure in failures}
        examples = [example for example in examples if str(example.image) not in failed]
    where = [f"{dataset.name}:{SPLIT_NAMES[split.lower()]}", f"images:{len(examples)}"]
    made = describe(captioner, captioner.options(**options)) if captioner else ["captions:given"]
    references = {example.name: example.captions for example in examples}
    paths = {example.name: example.image for example in examples}
    result = _score(captions, references, where, made, scorers, resamples, paths, tuple(failures))
    if output is not None:
        result.save(output)
    return result


def score_results(
    results: str | Path | Mapping[str, str],
    references: Dataset | str | Path,
    split: str = "test",
    metrics: Sequence[str] = tuple(METRICS),
    resamples: int = RESAMPLES,
    format: str = "auto",
) -> Evaluation:
    """Score anyone's captions in COCO's results format against a dataset's split or a COCO annotations file."""
    captions = results if isinstance(results, Mapping) else read_results(results)
    if isinstance(references, Dataset) or not (Path(references).is_file() and Path(references).suffix == ".json"):
        return evaluate(None, references, split, captions=captions, metrics=metrics, resamples=resamples, format=format)
    people = {name: tuple(texts) for name, texts in read_references(references).items()}
    where = [Path(references).stem, f"images:{len(people)}"]
    return _score(captions, people, where, ["captions:given"], build(metrics), resamples)


def describe(captioner: Captioner, options: DecodingOptions) -> list[str]:
    """The signature's part about the model and how it searched."""
    defaults = {field.name: field.default for field in fields(DecodingOptions)}
    parts = [f"{short}:{getattr(options, name)}" for name, short in _NAMED.items()]
    for name, short in _NAMED_IF_CHANGED.items():
        if getattr(options, name) != defaults[name]:
            parts.append(f"{short}:{getattr(options, name)}")
    parts.append(f"vocabulary:{captioner.tokenizer.name}-{captioner.tokenizer.size}")
    folders = [folder for folder in captioner.folders if folder is not None]
    if folders and (count := _min_count(folders[0])) is not None:
        parts.append(f"min-count:{count}")
    hashes = [signature for signature in captioner.signatures() if signature]
    return [*parts, f"ckpt:{'+'.join(hashes) or 'unsaved'}"]


def _min_count(folder: Path) -> int | None:
    """How often a word had to occur to enter the vocabulary, if the model's recipe says so."""
    try:
        recipe = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))
        return int(recipe["tokenizer"]["min_count"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _caption(
    captioner: Captioner, examples: Sequence[Example], batch_size: int, options: Mapping[str, Any]
) -> tuple[dict[str, str], list[Failure]]:
    captions: dict[str, str] = {}
    failures: list[Failure] = []
    found = captioner.stream(
        [example.image for example in examples], batch_size=batch_size, **{"want_attention": False, **options}
    )
    for example, result in zip(examples, track(found, "captioning", len(examples))):
        if isinstance(result, Failure):
            failures.append(Failure(str(example.image), result.reason))
        else:
            captions[example.name] = result.text
    if failures and not captions:
        raise DataError(f"no photo of {len(examples)} could be opened; the first: {failures[0].reason}")
    return captions, failures


def _score(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    where: list[str],
    made: list[str],
    scorers: Mapping[str, Metric],
    resamples: int,
    paths: Mapping[str, Path | FileSlice] | None = None,
    failures: tuple[Failure, ...] = (),
) -> Evaluation:
    check_same(captions, references)
    names = list(references)
    words, people = prepare([captions[name] for name in names], [references[name] for name in names])
    scores: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    single: list[dict[str, float]] = [{} for _ in names]
    versions = []
    for metric in track(list(scorers.values()), "scoring"):
        statistics = metric.statistics(words, people)
        scores |= metric.aggregate(statistics)
        intervals |= interval(metric, statistics, resamples)
        for key, values in metric.per_image(statistics).items():
            for row, value in zip(single, values):
                row[key] = round(float(value), 6)
        versions.append(metric.version)
    signature = "|".join([f"sightline {__version__}", *where, "ptb", *made[:-1], "+".join(versions), made[-1]])
    images = tuple(
        ScoredImage(name, captions[name], tuple(references[name]), row, (paths or {}).get(name))
        for name, row in zip(names, single)
    )
    return Evaluation(signature, scores, intervals, diversity(words), images, failures)


def check_same(captions: Mapping[str, str], references: Mapping[str, Any], what: str = "the captions") -> None:
    """One caption for every image that has references, and none for any other."""
    missing = [name for name in references if name not in captions]
    extra = [name for name in captions if name not in references]
    for names, problem in ((missing, "lack"), (extra, "cover also")):
        if names:
            shown = ", ".join(map(printable, names[:3])) + (", …" if len(names) > 3 else "")
            raise DataError(
                f"{what} {problem} {len(names)} of {len(references) if names is missing else len(captions)} images "
                f"({shown}): both sides must name the same images; check the split"
            )
