"""Find a row's worst test captions and what they have in common.

    python results/tools/failures.py dinov2-scst --data flickr8k/ --page elsewhere/worst.html

Ranks the test photos by their own CIDEr-D (ties by METEOR), writes the twenty worst with people's captions to
results/failures.json and brings RESULTS.md up to date. The analysis is coarse and says what was counted, not why: how
long people's captions are, how much they agree, how many of their words training hardly knew, and whether the caption's
subject, its action or any telling word occurs in them. --page writes a page with the photos, outside the repository.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rows import check_name, write_json
from script import RESULTS, check_outside, parser, run
from sightline.data import Dataset, load_dataset
from sightline.errors import DataError, install_command
from sightline.evaluation.metrics import prepare
from sightline.evaluation.metrics.cider import Cider
from sightline.evaluation.metrics.ptb import tokenize_all
from sightline.evaluation.metrics.snowball import stem
from sightline.evaluation.report import write_page
from sightline.evaluation.scoring import Evaluation, ScoredImage, score_results
from table import write_pages

# fmt: off
SUBJECTS = {
    "person": frozenset({
        "man", "men", "woman", "women", "boy", "boys", "girl", "girls", "child", "children", "kid", "kids",
        "person", "people", "baby", "toddler", "lady", "guy", "guys", "couple", "group", "crowd", "player",
        "players", "family", "friends", "teenager", "teenagers", "adult", "adults", "someone", "male", "female",
        "skateboarder", "snowboarder", "skier", "surfer", "climber", "biker", "rider", "cyclist", "runner", "hiker",
        "swimmer", "musician", "drummer", "bicyclist", "wakeboarder", "kayaker", "students", "spectators", "friend",
    }),
    "dog": frozenset({
        "dog", "dogs", "puppy", "puppies", "poodle", "terrier", "hound", "greyhound", "greyhounds",
    }),
    "animal": frozenset({
        "animal", "animals", "horse", "horses", "cat", "cats", "bird", "birds", "cow", "cows", "sheep", "duck",
        "ducks",
    }),
}
FUNCTION = frozenset({
    "a", "an", "the", "this", "that", "these", "those", "some", "each", "another", "other", "his", "her", "its",
    "their", "and", "or", "but", "of", "in", "on", "at", "to", "from", "with", "without", "by", "for", "into",
    "onto", "over", "under", "through", "across", "along", "around", "behind", "beside", "near", "next", "up",
    "down", "off", "out", "front", "is", "are", "was", "were", "be", "being", "been", "has", "have", "having",
    "while", "as", "who", "which", "what", "where", "it", "he", "she", "they", "them", "him", "there", "one",
})
NO_ACTION = frozenset({
    "building", "clothing", "swing", "ring", "string", "wing", "king", "ceiling", "evening", "morning", "thing",
    "something", "nothing", "during", "spring", "sling", "railing", "wedding", "painting", "crossing",
})
# fmt: on


WORST = 20
KNOWN = 5  # times a word must occur in training captions to count as known, as most vocabularies here have it
GENERIC = 30  # most frequent content words of training captions: sharing only these says little


def kinds(caption: Sequence[str], references: Sequence[Sequence[str]], generic: frozenset[str]) -> dict[str, bool]:
    """What a caption's words in the references show; nothing where it has no such word."""
    known = {word for text in references for word in text}
    stems = {stem(word) for word in known}
    subject = next((group for word in caption for group in SUBJECTS.values() if word in group), None)
    actions = {stem(word) for word in caption if word.endswith("ing") and word not in NO_ACTION}
    shared = {stem(word) for word in caption if word not in FUNCTION} & stems
    return {
        "subject in no reference": subject is not None and not subject & known,
        "action in no reference": bool(actions) and not actions & stems,
        "shares only generic words": not shared - generic,
    }


def agreement(references: Sequence[Sequence[Sequence[str]]]) -> np.ndarray:
    """Of each photo (images,): the mean CIDEr-D (times 100) of each of its references against the others."""
    most = max(map(len, references))
    total, count = np.zeros(len(references)), np.zeros(len(references))
    for index in range(most):
        chosen = [image for image, texts in enumerate(references) if index < len(texts) and len(texts) > 1]
        if chosen:
            own = [references[image][index] for image in chosen]
            others = [[*references[image][:index], *references[image][index + 1 :]] for image in chosen]
            total[chosen] += Cider().statistics(own, others)[:, 0]
            count[chosen] += 1
    return 100 * total / np.maximum(count, 1)


def vocabulary(captions: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Words that training captions know, and the stems of their most frequent content words."""
    counts = Counter(word for words in tokenize_all(list(captions)) for word in words)
    content: Counter[str] = Counter()
    for word, count in counts.items():
        if word not in FUNCTION:
            content[stem(word)] += count
    known = frozenset(word for word, count in counts.items() if count >= KNOWN)
    return known, frozenset(word for word, _ in content.most_common(GENERIC))


def measures(images: Sequence[ScoredImage], known: frozenset[str], generic: frozenset[str]) -> dict[str, np.ndarray]:
    """Everything that is counted, of each image (images,)."""
    captions, references = prepare([image.caption for image in images], [image.references for image in images])
    found = [kinds(caption, texts, generic) for caption, texts in zip(captions, references)]
    words = [[word for text in texts for word in text] for texts in references]
    return {
        "words in the caption": np.array([len(caption) for caption in captions], float),
        "words in a reference": np.array([np.mean([len(text) for text in texts]) for texts in references]),
        "agreement of the references, CIDEr-D": agreement(references),
        "reference words rare in training, %": np.array(
            [100 * np.mean([word not in known for word in own]) if own else 0.0 for own in words]
        ),
        **{f"{kind}, %": np.array([100.0 * own[kind] for own in found]) for kind in found[0]},
    }


def ranked(evaluation: Evaluation) -> list[int]:
    """Positions of the images, worst first."""
    scores = [(image.scores["cider"], image.scores["meteor"], image.name) for image in evaluation.images]
    return sorted(range(len(scores)), key=lambda position: scores[position])


def analyse(evaluation: Evaluation, dataset: Dataset, count: int = WORST) -> dict[str, Any]:
    """What ``failures.json`` holds, but for the row's name."""
    if not evaluation.images or "meteor" not in evaluation.images[0].scores:
        raise DataError(f"ties are broken by METEOR: {install_command('metrics')} brings its word lists")
    found = measures(evaluation.images, *vocabulary(dataset.captions("train")))
    worst = ranked(evaluation)[:count]
    cider = np.array([image.scores["cider"] for image in evaluation.images])
    return {
        "images": len(evaluation.images),
        "summary": {
            name: {
                "worst": round(float(values[worst].mean()), 1),
                "all": round(float(values.mean()), 1),
                "correlation": round(_rank_correlation(values, cider), 2),
            }
            for name, values in found.items()
        },
        "worst": [_entry(evaluation.images[index], found, index) for index in worst],
    }


def _entry(image: ScoredImage, found: dict[str, np.ndarray], index: int) -> dict[str, Any]:
    return {
        "name": image.name,
        "caption": image.caption,
        "references": list(image.references),
        "scores": {key: round(100 * image.scores[key], 2) for key in ("cider", "meteor", "bleu_1", "rouge_l")},
        "measures": {name: round(float(values[index]), 1) for name, values in found.items()},
    }


def _rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's: 1 where one grows with the other, -1 where it falls, 0 without relation or variation."""
    ranks = [_ranks(values) for values in (first, second)]
    if min(own.std() for own in ranks) == 0:
        return 0.0
    return float(np.corrcoef(np.stack(ranks))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks; equal values share their mean rank."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[group]


def main(arguments: Sequence[str]) -> None:
    reader = parser(__doc__)
    reader.add_argument("row", help="its name; its captions are in results/NAME.captions.json")
    reader.add_argument("--data", required=True, help="the dataset's folder")
    reader.add_argument("--count", type=int, default=WORST, help=f"of photos, {WORST} if not given")
    reader.add_argument("--page", type=Path, help="an .html file outside the repository: best and worst with photos")
    reader.add_argument("--results", type=Path, default=RESULTS, help="where the rows are; elsewhere pages stay as is")
    given = reader.parse_args(arguments)
    page = check_outside(given.page) if given.page else None
    dataset = load_dataset(given.data)
    captions = given.results / f"{check_name(given.row)}.captions.json"
    evaluation = score_results(captions, dataset, "test", resamples=1)
    values = {"row": given.row, **analyse(evaluation, dataset, given.count)}
    write_json(given.results / "failures.json", values)
    if page:
        write_page(evaluation, page, given.count)
    if given.results.resolve() == RESULTS:
        write_pages()
    for name, numbers in values["summary"].items():
        print(f"{name}: {numbers['worst']} among the worst, {numbers['all']} over all")


if __name__ == "__main__":
    raise SystemExit(run(main))
