"""Is one system better than another, or was it luck? Paired bootstrap over the images both captioned (Koehn 2004)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sightline.data import Dataset, load_dataset, read_references, read_results
from sightline.data.reading import read_json
from sightline.errors import ConfigError, DataError
from sightline.evaluation.metrics import METRICS, build, prepare
from sightline.evaluation.metrics.bootstrap import paired
from sightline.evaluation.scoring import FORMAT, RESAMPLES, check_same
from sightline.io.files import printable
from sightline.io.progress import track


@dataclass(frozen=True)
class Comparison:
    """Each system's scores, and each later one's difference to the first: difference, low, high, p by score."""

    names: tuple[str, ...]
    images: int
    scores: tuple[dict[str, float], ...]
    differences: tuple[dict[str, dict[str, float]], ...]  # of names[1:], minus names[0]


def compare(
    files: Sequence[str | Path],
    references: Dataset | str | Path | None = None,
    split: str = "test",
    metrics: Sequence[str] = tuple(METRICS),
    resamples: int = RESAMPLES,
) -> Comparison:
    """Compare ``scores.json`` files (or folders that hold one) or COCO results files; all against the first.

    Everything is scored anew, with one set of references: those given, or those of the first scores.json.
    """
    if len(files) < 2:
        raise ConfigError(f"a comparison needs at least two files, got {len(files)}")
    systems = [_read(path) for path in files]
    people = _references(references, split) or next((given for _, given in systems if given), None)
    if people is None:
        raise DataError(
            "plain results files carry no references: name the dataset too (--data), or give scores.json files"
        )
    for path, (captions, given) in zip(files, systems):
        check_same(captions, people, f"the captions of {printable(path)}")
        if given and references is None and given != people:
            raise DataError(f"{printable(path)} was scored against other references than {printable(files[0])}")
    names = list(people)
    tokens = [prepare([captions[name] for name in names], [people[name] for name in names]) for captions, _ in systems]
    scores: list[dict[str, float]] = [{} for _ in files]
    differences: list[dict[str, dict[str, float]]] = [{} for _ in files[1:]]
    for metric in track(list(build(metrics).values()), "comparing"):
        rows = [metric.statistics(words, texts) for words, texts in tokens]
        for system, statistics in zip(scores, rows):
            system.update(metric.aggregate(statistics))
        for difference, statistics in zip(differences, rows[1:]):
            difference.update(paired(metric, statistics, rows[0], resamples))
    return Comparison(tuple(map(str, files)), len(names), tuple(scores), tuple(differences))


def _read(path: str | Path) -> tuple[dict[str, str], dict[str, tuple[str, ...]] | None]:
    """Captions by image name and, from a scores.json, the references."""
    path = Path(path)
    path = path / "scores.json" if path.is_dir() else path
    content = read_json(path)
    if not isinstance(content, dict):
        return read_results(path), None
    if content.get("format") != FORMAT:
        raise DataError(
            f"{printable(path)} is neither a scores.json of this version nor a results file: "
            "give what `sightline evaluate -o` wrote, or captions in COCO's results format"
        )
    try:
        captions = {str(image["name"]): str(image["caption"]) for image in content["images"]}
        people = {str(image["name"]): tuple(map(str, image["references"])) for image in content["images"]}
    except (KeyError, TypeError):
        raise DataError(f"{printable(path)} is a damaged scores.json: evaluate again") from None
    return captions, people


def _references(source: Dataset | str | Path | None, split: str) -> Mapping[str, Sequence[str]] | None:
    if source is None:
        return None
    if not isinstance(source, Dataset) and Path(source).is_file() and Path(source).suffix == ".json":
        return {name: tuple(texts) for name, texts in read_references(source).items()}
    dataset = source if isinstance(source, Dataset) else load_dataset(source)
    return {example.name: example.captions for example in dataset.examples(split)}
