"""METEOR 1.5 for English (Denkowski and Lavie, 2014): all four matchers, no Java.

Scores equal those of `java -jar meteor-1.5.jar - - -stdio -l en -norm`, which is how the COCO caption tools call it.
An image counts with its best reference; the corpus score is computed from summed counts, not from averaged scores.
The alignment with one reference (section 2.1 of the paper) is a beam search over the matches of the four matchers.
Where paper and released program differ this follows the program, so that scores agree with published ones. Words are
compared as such; the program compares 32-bit hashes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from sightline.evaluation.metrics.meteor_data import MeteorData, Sentence, Word, load
from sightline.evaluation.metrics.metric import check_pairs

ALPHA = 0.85  # weight of recall against precision
BETA = 0.2  # shape of the penalty for fragments
GAMMA = 0.6  # its size
DELTA = 0.75  # weight of content words against function words
WEIGHTS = (1.0, 0.6, 0.8, 0.6)  # of exact, stem, synonym and paraphrase matches
COLUMNS = 6  # matched weight of caption and of reference, whole weight of each, words matched (mean), chunks


class Meteor:
    """The metric: `statistics` once, then `aggregate` and `per_image` from those."""

    version = "meteor-1.5"
    keys = ("meteor",)

    def __init__(self, data: MeteorData | None = None) -> None:
        self.data = data or load()

    def statistics(
        self, captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
    ) -> np.ndarray:
        """Counts of each caption against its best reference (images, 6); both sides as PTB tokens."""
        check_pairs(captions, references)
        sentences = iter(self.data.sentences([*captions, *(text for texts in references for text in texts)]))
        candidates = [next(sentences) for _ in captions]
        rows = np.zeros((len(captions), COLUMNS))
        for row, caption, texts in zip(rows, candidates, references):
            compared = np.array([_compare(caption, next(sentences)) for _ in texts])
            row[:] = compared[np.argmax(_score(compared))]  # the first among equals, as in the jar
        return rows

    def aggregate(self, statistics: np.ndarray) -> dict[str, float]:
        """The corpus score of any selection of rows."""
        return {"meteor": float(_score(statistics.sum(axis=0)))}

    def per_image(self, statistics: np.ndarray) -> dict[str, np.ndarray]:
        """Each image's own score (images,)."""
        return {"meteor": _score(statistics)}


def _compare(caption: Sentence, reference: Sentence) -> list[float]:
    """One row of statistics."""
    matches = align(caption, reference)
    caption_spans = [(match.caption_start, match.caption_length, match.matcher) for match in matches]
    reference_spans = [(match.start, match.length, match.matcher) for match in matches]
    caption_matched = sum(length for _, length, _ in caption_spans)
    reference_matched = sum(length for _, length, _ in reference_spans)
    chunks = count_chunks(matches)
    complete = caption_matched == len(caption.words) and reference_matched == len(reference.words)
    return [
        _matched_weight(caption.words, caption_spans),
        _matched_weight(reference.words, reference_spans),
        _weight(caption.words),
        _weight(reference.words),
        (caption_matched + reference_matched) / 2,
        0 if complete and chunks == 1 else chunks,  # a perfect caption is not penalised for being one chunk
    ]


def _matched_weight(words: list[Word], spans: list[tuple[int, int, int]]) -> float:
    """The weight of the words in a match's (start, length, matcher)."""
    counts = [[0] * len(WEIGHTS), [0] * len(WEIGHTS)]  # content words, function words
    for start, length, matcher in spans:
        for word in words[start : start + length]:
            counts[word.function][matcher] += 1
    content, function = (sum(count * weight for count, weight in zip(kind, WEIGHTS)) for kind in counts)
    return DELTA * content + (1 - DELTA) * function


def _weight(words: list[Word]) -> float:
    """The weight of all words, were they matched exactly."""
    return sum(1 - DELTA if word.function else DELTA for word in words)


def _score(statistics: np.ndarray) -> np.ndarray:
    """Statistics (..., 6) to scores (...): weighted mean of precision and recall, less the penalty for fragments."""
    caption_matched, reference_matched, caption_weight, reference_weight, matched, chunks = np.moveaxis(
        statistics, -1, 0
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = caption_matched / caption_weight
        recall = reference_matched / reference_weight
        mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
        penalty = GAMMA * (chunks / matched) ** BETA
        return np.nan_to_num(mean * (1 - penalty), nan=0.0)  # nothing matched: 0


EXACT, STEM, SYNONYM, PARAPHRASE = range(4)
BEAM = 40
# A path's rank is one integer, lower is better: more words matched, then fewer chunks, then shorter moves.
MATCHED, CHUNK = 1 << 48, 1 << 32


class Match(NamedTuple):
    """`length` reference words from `start` on mean `caption_length` caption words from `caption_start` on."""

    start: int
    length: int
    caption_start: int
    caption_length: int
    matcher: int


def align(caption: Sentence, reference: Sentence) -> list[Match]:
    """The best alignment, ordered by position in the reference."""
    return search(find_matches(caption, reference))


def count_chunks(matches: list[Match]) -> int:
    """The number of chunks: runs of matches that are contiguous and equally ordered on both sides."""
    breaks = sum(
        before.start + before.length != after.start
        or before.caption_start + before.caption_length != after.caption_start
        for before, after in pairwise(matches)
    )
    return breaks + bool(matches)


def find_matches(caption: Sentence, reference: Sentence) -> list[list[Match]]:
    """All matches, listed under the reference word they start at; their order decides ties later."""
    identical = [word.text for word in caption.words] == [word.text for word in reference.words]
    found: list[list[Match]] = []
    for start, (text, stem, synsets, _) in enumerate(reference.words):
        equal = [index for index, word in enumerate(caption.words) if word.text == text]
        found.append([Match(start, 1, index, 1, EXACT) for index in equal])
        if identical:
            continue
        others = [(index, word) for index, word in enumerate(caption.words) if word.text != text]
        found[start] += [Match(start, 1, index, 1, STEM) for index, word in others if word.stem == stem]
        if synsets:
            alike = [index for index, word in others if not synsets.isdisjoint(word.synsets)]
            found[start] += [Match(start, 1, index, 1, SYNONYM) for index in alike]
    if not identical:
        for start, length, index, size in _paraphrases(reference, caption):
            found[start].append(Match(start, length, index, size, PARAPHRASE))
        for index, size, start, length in _paraphrases(caption, reference):
            found[start].append(Match(start, length, index, size, PARAPHRASE))
    return found


def _paraphrases(source: Sentence, target: Sentence) -> Iterator[tuple[int, int, int, int]]:
    """Where a phrase of `source` is rendered by a phrase of `target`: (start, length) in each."""
    for start, length, paraphrases in source.phrases:
        for phrase in sorted(paraphrases.keys() & target.occurrences.keys(), key=paraphrases.__getitem__):
            for index, size in target.occurrences[phrase]:
                yield start, length, index, size


def search(found: list[list[Match]]) -> list[Match]:
    """Choose among matches so that each word takes part at most once, by beam search along the reference.

    A path is a plain tuple, since very many are made: its rank (lower is better); the caption word after the last
    match, or -1 where the last reference word is not matched; the next reference word; a bit mask of the caption
    words taken; and its matches as a linked list.
    """
    settled = _settled(found)
    beam: list[tuple[int, int, int, int, Any]] = [(0, -1, 0, 0, None)]
    for position, matches in enumerate(found):
        options = [
            (match.caption_start, match.caption_start + match.caption_length, _bits(match), _match_weight(match), match)
            for match in matches
        ]
        grown = []
        for path in beam:
            rank, end, following, taken, chain = path
            if following > position:  # inside a phrase matched earlier
                grown.append(path)
                continue
            closed = rank if end == -1 else rank + CHUNK
            moves = abs(position - options[0][0]) if position in settled else 0
            for start, after, bits, weight, match in options:
                if not taken & bits:
                    new = (rank if start == end else closed) - weight * MATCHED + moves
                    grown.append((new, after, position + match.length, taken | bits, (match, chain)))
                    # The program charges a move to the paths tried after it, not to the one that makes it.
                    moves += abs(position - start)
            if position not in settled:
                grown.append((closed + moves, -1, position + 1, taken, chain))
        grown.sort(key=itemgetter(0))  # stable: among equals the path found first stays ahead
        beam = grown[:BEAM]
    chain = min(beam, key=lambda path: path[0] if path[1] == -1 else path[0] + CHUNK)[4]
    chosen = []
    while chain:
        match, chain = chain
        chosen.append(match)
    return chosen[::-1]


def _match_weight(match: Match) -> int:
    """Words matched on both sides; words not equal count half, and the program rounds each side down."""
    if match.matcher == EXACT:
        return 2
    return match.length // 2 + match.caption_length // 2


def _bits(match: Match) -> int:
    """The caption words a match takes, as a bit mask."""
    return ((1 << match.caption_length) - 1) << match.caption_start


def _settled(found: list[list[Match]]) -> set[int]:
    """Where a match without alternative starts: no other touches any of its words. Every path takes it."""
    everything = [match for matches in found for match in matches]
    reference = Counter(index for match in everything for index in _reference_positions(match))
    caption = Counter(index for match in everything for index in _caption_positions(match))
    return {
        match.start
        for match in everything
        if all(reference[index] == 1 for index in _reference_positions(match))
        and all(caption[index] == 1 for index in _caption_positions(match))
    }


def _reference_positions(match: Match) -> range:
    return range(match.start, match.start + match.length)


def _caption_positions(match: Match) -> range:
    return range(match.caption_start, match.caption_start + match.caption_length)
