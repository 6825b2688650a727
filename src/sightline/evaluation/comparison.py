"""Is one system better than another, or was it luck? Paired bootstrap over the images both captioned (Koehn 2004)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sightline.data import Dataset, read_results
from sightline.data.reading import read_json
from sightline.errors import ConfigError, DataError
from sightline.evaluation.metrics import build, prepare
from sightline.evaluation.metrics.chair import Chair
from sightline.evaluation.metrics.metric import Aggregate, paired
from sightline.evaluation.scoring import FORMAT, RESAMPLES, check_same, reference_examples, wants_chair
from sightline.io.files import printable
from sightline.io.progress import track


@dataclass(frozen=True)
class Comparison:
    """Each system's scores, and each later one's difference to the first: difference, low, high, p by score."""

    names: tuple[str, ...]
    images: int
    scores: tuple[dict[str, float], ...]
    differences: tuple[dict[str, dict[str, float]], ...]  # of names[1:], minus names[0]


@dataclass(frozen=True)
class _Photo:
    """What captions of one photo are compared with."""

    references: tuple[str, ...]
    objects: frozenset[str] | None = None


@dataclass(frozen=True)
class ResultRow:
    """A row of RESULTS.md: a system's published scores on a test set, with intervals, as shares of 1."""

    path: Path
    scores: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    signature: str

    @property
    def dataset(self) -> str:
        """Which photos were scored: ``flickr8k:test|images:1000``."""
        return "|".join(self.signature.split("|")[1:3])


def result_rows(files: Sequence[str | Path]) -> list[ResultRow]:
    """The files as rows, where all are; empty where some are captions or evaluations, which `compare` scores anew."""
    rows = [_read_row(Path(path)) for path in without_companions(files)]
    found = [row for row in rows if row is not None]
    if len(found) < max(2, len(rows)):
        return []
    for row in found:
        if row.dataset != found[0].dataset:
            raise DataError(
                f"{printable(row.path)} was scored on {row.dataset}, {printable(found[0].path)} on {found[0].dataset}: "
                "compare rows of one dataset"
            )
    return found


def without_companions(files: Sequence[str | Path]) -> list[str | Path]:
    """The files, but of ``results/*.json`` only the rows: not their captions and curves, nor other experiments."""
    rows = {Path(path) for path in files if _read_row(Path(path))}
    if len(rows) < 2:
        return list(files)
    return [path for path in files if Path(path) in rows or not _accompanies(Path(path), rows)]


def _accompanies(path: Path, rows: set[Path]) -> bool:
    if not path.is_file() or path.suffix != ".json":
        return False
    content = read_json(path)
    if isinstance(content, dict):
        return content.get("format") != FORMAT
    return path.with_name(path.name.split(".")[0] + ".json") in rows


def _read_row(path: Path) -> ResultRow | None:
    if not path.is_file() or path.suffix != ".json":
        return None
    content = read_json(path)
    if not isinstance(content, dict) or not {"recipe", "test", "interval", "signature"} <= content.keys():
        return None
    try:
        scores = {key: value / 100 for key, value in content["test"].items()}
        intervals = {key: (low / 100, high / 100) for key, (low, high) in content["interval"].items()}
    except (AttributeError, TypeError, ValueError):
        raise DataError(f"{printable(path)} is a damaged row of results: its scores are not numbers") from None
    return ResultRow(path, scores, intervals, str(content["signature"]))


def compare(
    files: Sequence[str | Path],
    references: Dataset | str | Path | None = None,
    split: str = "test",
    metrics: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
    objects: str | Path | None = None,
) -> Comparison:
    """Compare ``scores.json`` files (or folders that hold one) or COCO results files; all against the first.

    Everything is scored anew, with one set of references and object labels: those given, or those of the first
    scores.json.
    """
    files = without_companions(files)
    if len(files) < 2:
        raise ConfigError(f"a comparison needs at least two files, got {len(files)}")
    systems = [_read(path) for path in files]
    photos = next((given for _, given in systems if given), None)
    if references is not None:
        _, examples = reference_examples(references, split, objects=objects)
        photos = {example.name: _Photo(example.captions, example.objects) for example in examples}
    if photos is None:
        raise DataError(
            "plain results files carry no references: name the dataset too (--data), or give scores.json files"
        )
    for path, (captions, given) in zip(files, systems):
        check_same(captions, photos, f"the captions of {printable(path)}")
        if given and references is None:
            stored = {name: photo.references for name, photo in given.items()}
            if stored != {name: photo.references for name, photo in photos.items()}:
                raise DataError(f"{printable(path)} was scored against other references than {printable(files[0])}")
    names = list(photos)
    texts = [[captions[name] for name in names] for captions, _ in systems]
    tokens = [prepare(captions, [photos[name].references for name in names]) for captions in texts]
    scores: list[dict[str, float]] = [{} for _ in files]
    differences: list[dict[str, dict[str, float]]] = [{} for _ in files[1:]]

    def add(metric: Aggregate, rows: list[np.ndarray]) -> None:
        for system, statistics in zip(scores, rows):
            system.update(metric.aggregate(statistics))
        for difference, statistics in zip(differences, rows[1:]):
            difference.update(paired(metric, statistics, rows[0], resamples))

    for metric in track(list(build(metrics).values()), "comparing"):
        add(metric, [metric.statistics(words, people) for words, people in tokens])
    labels = [photos[name].objects for name in names]
    if wants_chair(labels, metrics):
        add(Chair(), [Chair().statistics(captions, labels) for captions in texts])
    return Comparison(tuple(map(str, files)), len(names), tuple(scores), tuple(differences))


def _read(path: str | Path) -> tuple[dict[str, str], dict[str, _Photo] | None]:
    """Captions by image name and, from a scores.json, the references and labels."""
    path = Path(path)
    path = path / "scores.json" if path.is_dir() else path
    content = read_json(path)
    if not isinstance(content, dict):
        return read_results(path), None
    captions_file = path.with_name(f"{path.stem}.captions.json")
    if "recipe" in content and captions_file.is_file():  # a row of RESULTS.md, with its captions next to it
        return read_results(captions_file), None
    if content.get("format") != FORMAT:
        raise DataError(
            f"{printable(path)} is neither a scores.json of this version nor a results file: "
            "give what `sightline evaluate -o` wrote, or captions in COCO's results format"
        )
    try:
        captions = {str(image["name"]): str(image["caption"]) for image in content["images"]}
        photos = {
            str(image["name"]): _Photo(
                tuple(map(str, image["references"])), frozenset(image["objects"]) if "objects" in image else None
            )
            for image in content["images"]
        }
    except (KeyError, TypeError):
        raise DataError(f"{printable(path)} is a damaged scores.json: evaluate again") from None
    return captions, photos
