"""Whether our tokens and scores equal those of the original COCO caption tools, on every caption given.

    python benchmarks/metrics_agreement.py Flickr8k.token.txt dataset_coco.json flickr30k_captions.txt.gz \
        --captions results/*.captions.json results/coco/*.captions.json

The first files hold people's captions: Flickr8k's own file (`name#number`, a tab, a caption), the public splits as JSON
(`dataset_coco.json`), or one caption a line. Each may end in .gz. The tokens of all these captions are compared.
Each file after --captions holds one system's captions in COCO's results format. Its references are the captions of the
same photos in the first files. People are one more system for each set of photos: the first caption of a photo is
scored against the others. Both sides start from the raw captions.

Needs Java and the `metrics` extra: the tools and their jars come with the package `pycocoevalcap`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.meteor.meteor import Meteor
from pycocoevalcap.rouge.rouge import Rouge
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

from sightline.data import read_results
from sightline.evaluation.metrics import build, prepare
from sightline.evaluation.metrics.ptb import tokenize_all

TOLERANCE = 1e-12  # scores are fractions
SCORES = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider", "meteor")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path, nargs="+", help="files of people's captions")
    parser.add_argument("--captions", type=Path, nargs="*", default=[], help="systems' captions, in COCO's format")
    options = parser.parse_args()
    os.environ["JAVA_TOOL_OPTIONS"] = "-Dfile.encoding=UTF-8"  # the jars read in the locale's encoding otherwise

    people: dict[str, list[str]] = {}
    print(f"{'tokens':46}{'captions':>10}{'differing':>11}")
    for path in options.texts:
        texts, by_photo = read_texts(path)
        people |= by_photo
        print(f"{path.name:46}{len(texts):10}{sum(differing_tokens(texts)):11}", flush=True)

    systems = {f"{path.parent.name}/{path.name}": read_results(path) for path in options.captions}
    pairs = {name: [(text, people[photo]) for photo, text in captions.items()] for name, captions in systems.items()}
    for photos in dict.fromkeys(tuple(captions) for captions in systems.values()):
        rows = [people[photo] for photo in photos if len(people[photo]) > 1]
        pairs[f"people, {len(rows)} photos"] = [(first, others) for first, *others in rows]
    if pairs:
        compare_scores(pairs)


def read_texts(path: Path) -> tuple[list[str], dict[str, list[str]]]:
    """All captions of a file, and by photo where the file names photos."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = content.decode("utf-8")
    by_photo: dict[str, list[str]] = {}
    if ".json" in path.suffixes:
        for image in json.loads(text)["images"]:
            name = str(image.get("cocoid", image["filename"]))
            by_photo[name] = [sentence["raw"] for sentence in image["sentences"]]
    else:
        lines = text.rstrip("\n").split("\n")
        if "\t" not in lines[0]:
            return lines, {}
        for line in lines:
            name, _, caption = line.partition("\t")
            by_photo.setdefault(name.partition("#")[0], []).append(caption)
    return [caption for captions in by_photo.values() for caption in captions], by_photo


@lru_cache(maxsize=4)
def original_tokens(texts: tuple[str, ...]) -> list[str]:
    """The tokens that the tools keep, joined by blanks."""
    tokens: list[str] = PTBTokenizer().tokenize({0: [{"caption": text} for text in texts]})[0]
    assert len(tokens) == len(texts), f"{len(texts)} captions, but the jar gave {len(tokens)} lines"
    return tokens


def differing_tokens(texts: list[str]) -> list[bool]:
    return [" ".join(ours) != original for ours, original in zip(tokenize_all(texts), original_tokens(tuple(texts)))]


def compare_scores(pairs: dict[str, list[tuple[str, list[str]]]]) -> None:
    """Print a row per system with its largest difference of METEOR, then the sums over systems for every score."""
    tools = [Bleu(4), Rouge(), Cider(), Meteor()]
    per_image: dict[str, list[np.ndarray]] = {name: [] for name in SCORES}  # absolute differences
    per_corpus: dict[str, list[float]] = {name: [] for name in SCORES}
    print(f"\n{'system':46}{'images':>10}{'differing':>11}{'largest':>12}  METEOR of an image")
    for system, rows in pairs.items():
        captions, references = [text for text, _ in rows], [texts for _, texts in rows]
        ours, our_corpus = our_scores(captions, references)
        theirs, their_corpus = original_scores(tools, captions, references)
        for name in SCORES:
            per_image[name].append(np.abs(ours[name] - theirs[name]))
            per_corpus[name].append(abs(our_corpus[name] - their_corpus[name]))
        print(f"{system:46}{counts(per_image['meteor'][-1])}", flush=True)
    print(f"\n{'all systems':46}{'tried':>10}{'differing':>11}{'largest':>12}")
    for name in SCORES:
        print(f"{name + ', images':46}{counts(np.concatenate(per_image[name]))}")
        print(f"{name + ', corpora':46}{counts(np.array(per_corpus[name]))}")


def counts(differences: np.ndarray) -> str:
    return f"{len(differences):10}{(differences > TOLERANCE).sum():11}{differences.max():12.1e}"


def our_scores(captions: list[str], references: list[list[str]]) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    tokens = prepare(captions, references)
    per_image: dict[str, np.ndarray] = {}
    corpus: dict[str, float] = {}
    for metric in build().values():
        statistics = metric.statistics(*tokens)
        per_image |= metric.per_image(statistics)
        corpus |= metric.aggregate(statistics)
    return per_image, corpus


def original_scores(
    tools: list[Any], captions: list[str], references: list[list[str]]
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    flat = iter(original_tokens(tuple(text for texts in references for text in texts)))
    by_photo = {photo: [next(flat) for _ in texts] for photo, texts in enumerate(references)}
    results = {photo: [tokens] for photo, tokens in enumerate(original_tokens(tuple(captions)))}
    bleu, *others = tools
    bleu_corpus, bleu_images = bleu.compute_score(by_photo, results, verbose=0)
    scores = [*zip(bleu_corpus, bleu_images), *(tool.compute_score(by_photo, results) for tool in others)]
    images = {name: np.array(values) for name, (_, values) in zip(SCORES, scores)}
    return images, {name: float(corpus) for name, (corpus, _) in zip(SCORES, scores)}


if __name__ == "__main__":
    main()
