"""Why our BLEU-1 is lower than that of Show, Attend and Tell: caption length, and the full stop as a word.

    python results/tools/bleu_1.py sat-soft-vgg19 sat-hard-vgg19 --data flickr8k/

Reads the rows' stored test captions, writes results/bleu_1.json and brings the pages up to date. Three BLEUs of each
row: ours (no punctuation, as the COCO tools count); with references as Flickr8k has them, split at blanks, and a full
stop after each caption, as the paper's program trains and scores; and BLEU-1 of the captions by their length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rows import check_name, write_json
from script import RESULTS, parser, run
from sightline.data import load_dataset, read_results
from sightline.evaluation.metrics.bleu import Bleu
from sightline.tokenizers.base import split_words
from table import write_pages

LENGTHS = {"up to 8 words": range(1, 9), "9 or 10": range(9, 11), "11 or 12": range(11, 13), "over 12": range(13, 999)}
Texts = list[list[str]]


def measure(captions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Any]:
    """BLEU times 100, lengths in words; a full stop counts as a word where it is kept."""
    words = [split_words(caption) for caption in captions]
    plain = [[split_words(text) for text in texts] for texts in references]
    dotted = [[*caption, "."] for caption in words]
    as_published = [[text.lower().split() for text in texts] for texts in references]
    return {
        "ours": _bleu(words, plain),
        "with a full stop": _bleu(dotted, as_published),
        "BLEU-1 by length": {
            name: _bleu_1([(own, texts) for own, texts in zip(words, plain) if len(own) in lengths])
            for name, lengths in LENGTHS.items()
        },
    }


def _bleu(captions: Texts, references: Sequence[Texts]) -> dict[str, Any]:
    metric = Bleu()
    statistics = metric.statistics(captions, references)
    scores = metric.aggregate(statistics)
    return {
        "bleu": [round(100 * scores[f"bleu_{order}_no_bp"], 2) for order in range(1, 5)],
        "brevity penalty": round(scores["bleu_1"] / scores["bleu_1_no_bp"], 4),
        "words": round(statistics[:, -2].mean(), 2),
        "words of the closest reference": round(statistics[:, -1].mean(), 2),
    }


def _bleu_1(pairs: Sequence[tuple[list[str], Texts]]) -> dict[str, float]:
    if not pairs:
        return {"captions": 0}
    statistics = Bleu().statistics(*zip(*pairs))
    return {"captions": len(pairs), "bleu_1": round(100 * statistics[:, 0].sum() / statistics[:, 4].sum(), 2)}


def main(arguments: Sequence[str]) -> None:
    reader = parser(__doc__)
    reader.add_argument("rows", nargs="+", metavar="ROW", help="a row with test captions")
    reader.add_argument("--data", required=True, help="Flickr8k's folder")
    given = reader.parse_args(arguments)
    references = {example.name: example.captions for example in load_dataset(given.data).examples("test")}
    rows = {}
    for name in given.rows:
        captions = read_results(RESULTS / f"{check_name(name)}.captions.json")
        rows[name] = measure([captions[photo] for photo in references], list(references.values()))
    command = f"python results/tools/bleu_1.py {' '.join(given.rows)} --data flickr8k/"
    write_json(RESULTS / "bleu_1.json", {"command": command, "rows": rows})
    write_pages()


if __name__ == "__main__":
    raise SystemExit(run(main))
