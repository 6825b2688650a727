"""A captioner on a split: captions, scores with intervals, and the signature that names how they were made.

Captions come from the photos alone, references are the human captions as published, and every score is printed with
what it depends on, so that two numbers are comparable or visibly not. Where photos have object labels, CHAIR is scored,
too. (A module named ``evaluate`` would hide the function ``sightline.evaluate``.)
"""

from __future__ import annotations

import json
import logging
import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline import __version__
from sightline.data import (
    Dataset,
    Example,
    Report,
    first_of_each_source,
    load_dataset,
    read_references,
    read_results,
    with_objects,
    write_results,
)
from sightline.data.dataset import SPLITS, split_name
from sightline.data.reading import read_json
from sightline.data.tables import TABLES, captions_of_examples, errors_of_examples
from sightline.decoding import DecodingOptions
from sightline.errors import ConfigError, DataError
from sightline.evaluation.metrics import build, prepare
from sightline.evaluation.metrics.chair import Chair, check_categories
from sightline.evaluation.metrics.metric import Metric, diversity, interval
from sightline.io.files import FileSlice, counted, printable, write_atomically
from sightline.io.progress import track
from sightline.types import Failure

if TYPE_CHECKING:
    from sightline.engine.captioner import Captioner

FORMAT = "sightline-scores-1"
RESAMPLES = 1000
NO_IMAGE = Path()  # of a photo that only an annotations file names
# Options that change captions, and their short names in the signature; the first three are always named.
_NAMED = {"beam": "beam", "length_penalty": "lp", "max_length": "max"}
_NAMED_IF_CHANGED = {
    "min_length": "min", "no_repeat_ngram": "no-repeat", "no_repeat_words": "no-repeat-words",
    "allow_unknown": "unknown", "sample": "sample", "temperature": "temperature", "top_k": "top-k", "top_p": "top-p",
    "seed": "seed",
}  # fmt: skip


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScoredImage:
    """One photo's caption, its references, and its own scores (fractions)."""

    name: str
    caption: str
    references: tuple[str, ...]
    scores: dict[str, float]
    image: Path | FileSlice | None = None  # None where only a references file was given
    objects: frozenset[str] | None = None  # the photo's labels; None: not labelled
    source: str = ""  # the dataset of a mixture it comes from


@dataclass(frozen=True)
class Evaluation:
    """Scores are fractions; tables show them times 100."""

    signature: str
    scores: dict[str, float]
    intervals: dict[str, tuple[float, float]]  # 95 %, from the bootstrap over images
    diversity: dict[str, float | str]
    images: tuple[ScoredImage, ...]
    failures: tuple[Failure, ...] = ()  # photos that could not be opened: not captioned, not scored
    sources: dict[str, dict[str, float]] = field(default_factory=dict)  # of a mixture: each dataset scored alone
    train_photos: int | None = None  # how many the model was trained on, where its folder records it

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
            **({"sources": self.sources} if self.sources else {}),
            **({"train_photos": self.train_photos} if self.train_photos is not None else {}),
            "diversity": self.diversity,
            "failures": [{"source": failure.source, "reason": failure.reason} for failure in self.failures],
            "images": [
                {
                    "name": image.name,
                    "caption": image.caption,
                    "references": image.references,
                    **({"objects": sorted(image.objects)} if image.objects is not None else {}),
                    "scores": image.scores,
                }
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
    split: str = "val",
    *,
    captions: Mapping[str, str] | None = None,
    metrics: Sequence[str] | None = None,
    objects: str | Path | None = None,
    output: str | Path | None = None,
    batch_size: int = 16,
    resamples: int = RESAMPLES,
    limit: int | None = None,
    format: str = "auto",
    **options: Any,
) -> Evaluation:
    """Caption a split ("all": the whole dataset) and score it; a list of folders is an ensemble.

    ``captions`` (by example name) scores ready captions instead; ``metrics`` are all that can run if not given;
    ``objects`` is a file of object labels for CHAIR, otherwise one is found in the dataset's folder; ``options`` are
    `DecodingOptions`; ``limit`` takes only the first photos of each source; ``output`` is a folder for captions.json
    and scores.json.
    """
    from sightline.engine.captioner import load  # here, so that captions are scored where Pillow is not installed

    name, examples = _examples(data, split, format, objects)
    examples = first_of_each_source(examples, limit or 0)
    chair = wants_chair([example.objects for example in examples], metrics)
    if isinstance(captioner, str | Path):
        captioner = load(captioner)
    elif isinstance(captioner, Sequence):
        captioner = load(*captioner)
    scorers = build(metrics)  # a wrong name should not cost an hour of captioning first
    failures: list[Failure] = []
    if captions is None:
        if captioner is None:
            raise DataError("nothing to evaluate: give a captioner or ready captions")
        captions, failures = _caption(captioner, examples, batch_size, options)
        failed = {failure.source for failure in failures}
        examples = [example for example in examples if str(example.image) not in failed]
    where = [name, f"images:{len(examples)}"]
    made = describe(captioner, captioner.options(**options)) if captioner else ["captions:given"]
    result = _score(captions, examples, where, made, scorers, chair, resamples)
    trained = _train_photos(captioner) if captioner else None
    result = replace(result, failures=tuple(failures), train_photos=trained)
    if output is not None:
        result.save(output)
    return result


def evaluate_people(
    data: Dataset | str | Path,
    split: str = "test",
    *,
    seed: int = 0,
    metrics: Sequence[str] | None = None,
    objects: str | Path | None = None,
    output: str | Path | None = None,
    resamples: int = RESAMPLES,
    limit: int | None = None,
    format: str = "auto",
) -> Evaluation:
    """People against people: of each photo one caption, drawn with the seed, is scored against the others.

    A photo needs two captions to count. With one reference fewer the scores are a little lower than a system's with
    the same captions would be.
    """
    name, candidates = _examples(data, split, format, objects)
    draw = random.Random(seed)
    captions, examples = {}, []
    for example in first_of_each_source(candidates, limit or 0):
        if len(example.captions) > 1:
            chosen = draw.randrange(len(example.captions))
            captions[example.name] = example.captions[chosen]
            others = example.captions[:chosen] + example.captions[chosen + 1 :]
            examples.append(replace(example, captions=others))
    if not examples:
        raise DataError(f"no photo of {name} has two captions: people cannot be scored against people")
    where = [name, f"images:{len(examples)}"]
    made = [f"captions:people's, seed {seed}"]
    result = _score(
        captions,
        examples,
        where,
        made,
        build(metrics),
        wants_chair([example.objects for example in examples], metrics),
        resamples,
    )
    if output is not None:
        result.save(output)
    return result


def score_results(
    results: str | Path | Mapping[str, str],
    references: Dataset | str | Path,
    split: str = "test",
    metrics: Sequence[str] | None = None,
    objects: str | Path | None = None,
    resamples: int = RESAMPLES,
    format: str = "auto",
) -> Evaluation:
    """Score anyone's captions against a dataset's split ("all": the whole dataset) or a COCO annotations file.

    ``results`` are captions by image name, a file in COCO's results format, or a table such as `sightline bulk` writes:
    of a table, photos without references in the split are left out.
    """
    name, examples = reference_examples(references, split, format, objects)
    part = name.rpartition(":")[2]  # of an annotations file, and of all splits, there is none
    captions = (
        results
        if isinstance(results, Mapping)
        else _read_captions(Path(results), examples, part if part in SPLITS else None)
    )
    where = [name, f"images:{len(examples)}"]
    chair = wants_chair([example.objects for example in examples], metrics)
    check_same(captions, {example.name: example for example in examples})  # before a word about the metrics
    return _score(captions, examples, where, ["captions:given"], build(metrics), chair, resamples)


def _read_captions(path: Path, examples: Sequence[Example], split: str | None) -> dict[str, str]:
    """Captions by example name, from a results file, a table, or a bulk job's folder."""
    content = read_json(path) if path.suffix.lower() == ".json" else None
    if not (path.is_dir() or path.suffix.lower() in TABLES) or not isinstance(content, list | None):
        raise DataError(
            f'{printable(path)} holds no captions to score: give a JSON list of {{"image_id": …, "caption": …}}, or a '
            f"table ({', '.join(TABLES)}) with the columns source and caption, as `sightline bulk` writes it"
        )
    if content is not None and not (content and isinstance(content[0], dict) and "source" in content[0]):
        return read_results(path)
    captions, others = captions_of_examples(path, examples)
    if captions and others:
        where = f" in the {split} split" if split else ""
        hint = "; --split all scores the photos of all splits" if split else ""
        have, are = ("has", "is") if others == 1 else ("have", "are")
        photos = f"{counted(others, 'photo')} of {printable(path)}"
        _log.info("%s %s no references%s and %s left out%s", photos, have, where, are, hint)
    _check_none_failed(path, [example for example in examples if example.name not in captions])
    return captions


def _check_none_failed(path: Path, without_caption: Sequence[Example]) -> None:
    """`DataError` where a table says why photos have no caption: `check_same` could only say that they have none."""
    failed = errors_of_examples(path, without_caption) if without_caption else {}
    for name, why in failed.items():
        more, it = (f" and {len(failed) - 1} more have", "them") if len(failed) > 1 else (" has", "it")
        raise DataError(
            f"{printable(name)}{more} no caption in {printable(path)} ({why}): caption {it} again or remove {it} from "
            "the references"
        )


def reference_examples(
    source: Dataset | str | Path, split: str, format: str = "auto", objects: str | Path | None = None
) -> tuple[str, list[Example]]:
    """The photos of a dataset's split or, for "all", of the whole, or of a COCO annotations file; and their name in
    the signature."""
    if isinstance(source, Dataset) or not (Path(source).is_file() and Path(source).suffix == ".json"):
        return _examples(source, split, format, objects)
    name = Path(source).stem
    examples = [Example(NO_IMAGE, tuple(texts), image) for image, texts in read_references(source).items()]
    dataset = Dataset(name, Path(source).parent, {"test": examples}, Report())
    return name, (dataset if objects is None else with_objects(dataset, Path(objects))).splits["test"]


def _examples(
    data: Dataset | str | Path, split: str, format: str, objects: str | Path | None
) -> tuple[str, list[Example]]:
    """The photos of a dataset's split or, for "all", of the whole, and their name in the signature."""
    name = split_name(split, "all")
    dataset = data if isinstance(data, Dataset) else load_dataset(data, format, None if name == "all" else 0)
    if objects is not None:
        dataset = with_objects(dataset, Path(objects))
    return f"{dataset.name}:{name}", dataset.all_examples() if name == "all" else dataset.examples(name)


def wants_chair(labels: Sequence[frozenset[str] | None], metrics: Sequence[str] | None) -> bool:
    """Whether to score CHAIR: if it is asked for, or if nothing is asked for and photos have labels."""
    labelled = sum(own is not None for own in labels)
    if metrics is not None and "chair" not in metrics:
        return False
    if not labelled:
        if metrics is not None:
            raise ConfigError(
                "the metric chair needs object labels, and no photo has any: give --objects FILE, or put objects.json "
                "into the dataset's folder"
            )
        return False
    check_categories(labels)
    if labelled < len(labels):
        _log.warning(
            "%d of %d photos have no object labels: CHAIR counts the others", len(labels) - labelled, len(labels)
        )
    return True


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


def _train_photos(captioner: Captioner) -> int | None:
    """How many photos the model was trained on, from its metrics.json; of an ensemble, the first that records it."""
    for folder in captioner.folders:
        try:
            return int(json.loads((Path(folder or "") / "metrics.json").read_text(encoding="utf-8"))["train_photos"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
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
    examples: Sequence[Example],
    where: list[str],
    made: list[str],
    scorers: Mapping[str, Metric],
    chair: bool,
    resamples: int,
) -> Evaluation:
    check_same(captions, {example.name: example for example in examples})
    texts = [captions[example.name] for example in examples]
    words, people = prepare(texts, [example.captions for example in examples])
    labels = [example.objects for example in examples]
    metrics: list[Metric | Chair] = [*scorers.values(), *([Chair()] if chair else [])]

    def statistics(metric: Metric | Chair, rows: Sequence[int]) -> np.ndarray:
        if isinstance(metric, Chair):
            return metric.statistics([texts[row] for row in rows], [labels[row] for row in rows])
        return metric.statistics([words[row] for row in rows], [people[row] for row in rows])

    scores: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    single: list[dict[str, float]] = [{} for _ in examples]
    members: dict[str, list[int]] = {}
    for row, example in enumerate(examples):
        members.setdefault(example.source, []).append(row)
    sources: dict[str, dict[str, float]] = {name: {} for name in members} if len(members) > 1 else {}
    for metric in track(metrics, "scoring"):
        found = statistics(metric, range(len(examples)))
        scores |= metric.aggregate(found)
        intervals |= interval(metric, found, resamples)
        for key, values in metric.per_image(found).items():
            for scored, value in zip(single, values):
                scored[key] = round(float(value), 6)
        # Each source anew: the weights of CIDEr's n-grams come from the references that are scored together.
        for name, source_scores in sources.items():
            if not isinstance(metric, Chair) or any(labels[row] is not None for row in members[name]):
                source_scores |= metric.aggregate(statistics(metric, members[name]))
    versions = "+".join(metric.version for metric in metrics)
    signature = "|".join([f"sightline {__version__}", *where, "ptb", *made[:-1], versions, made[-1]])
    images = tuple(
        ScoredImage(
            name=example.name, caption=text, references=example.captions, scores=image_scores, objects=example.objects,
            image=None if example.image == NO_IMAGE else example.image, source=example.source,
        )
        for example, text, image_scores in zip(examples, texts, single)
    )  # fmt: skip
    return Evaluation(signature, scores, intervals, diversity(words), images, sources=sources)


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
