"""METEOR 1.5 for English, with the weights of its ranking task, as the COCO caption tools call it.

The score is that of Banerjee & Lavie (2005) and Denkowski & Lavie (2011, 2014). Where the papers leave the aligner
open, it follows the answers of METEOR's program to probes. docs/evaluation.md has the measured agreement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sightline.evaluation.metrics.meteor_data import MeteorData, Sentence, load
from sightline.evaluation.metrics.metric import check_pairs

EXACT, STEM, SYNONYM, PARAPHRASE = range(4)
WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])  # of the four matchers
ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75  # recall, fragmentation, penalty, content words
BEAM = 40
LONGEST = 100  # words of a sentence that are aligned; the rest counts as unmatched

# A row of statistics, each pair of numbers for hypothesis and reference: words, function words; for each matcher the
# content words and the function words matched; chunks; words matched; whether one chunk covers both sentences.
MATCHED, CHUNKS, WHOLE, COLUMNS = 4, 20, 23, 24


class Match(NamedTuple):
    """A pair of words or phrases that may be aligned."""

    matcher: int
    start: int  # in the hypothesis
    length: int
    reference_start: int
    reference_length: int

    @property
    def gain(self) -> int:
        """What the search earns for it: weight times words, rounded down on each side (6 // 10 avoids 0.6 * 5 < 3)."""
        weight = int(10 * WEIGHTS[self.matcher])
        return weight * self.length // 10 + weight * self.reference_length // 10


class Path(NamedTuple):
    """A partial alignment: the words of the reference up to some position are matched or skipped."""

    cost: int  # minus the gain
    closed: int  # chunks, without the one that may still grow
    next: int  # the word of the hypothesis that continues the last chunk, -1 if none can
    resume: int  # the first word of the reference behind the last match
    used: int  # bit i is set if word i of the hypothesis is matched
    match: Match | None
    before: Path | None


def find_matches(hypothesis: Sentence, reference: Sentence) -> list[Match]:
    """All candidates, in the order in which the search tries them: by matcher; long phrases of the reference first."""
    words, phrases = [], []
    others = list(enumerate(reference.words[:LONGEST]))
    for start, word in enumerate(hypothesis.words[:LONGEST]):
        for other_start, other in others:
            if word is other:
                words.append(Match(EXACT, start, 1, other_start, 1))
                continue
            if word.stem == other.stem:
                words.append(Match(STEM, start, 1, other_start, 1))
            if not word.synsets.isdisjoint(other.synsets):
                words.append(Match(SYNONYM, start, 1, other_start, 1))
    # The table's pairs hold in both directions; a pair that it has twice is two candidates.
    pairs = [
        (row, other)
        for row, paraphrases in hypothesis.paraphrases.items()
        for other in paraphrases & reference.phrases.keys()
    ] + [
        (row, other)
        for other, paraphrases in reference.paraphrases.items()
        for row in paraphrases & hypothesis.phrases.keys()
    ]
    for row, other_row in pairs:
        for start, length in hypothesis.phrases[row]:
            for other_start, other_length in reference.phrases[other_row]:
                if start + length <= LONGEST and other_start + other_length <= LONGEST:
                    phrases.append(Match(PARAPHRASE, start, length, other_start, other_length))
    phrases.sort(key=lambda match: (-match.reference_length, match.start, match.length))
    words.sort(key=lambda match: match.matcher)
    return words + phrases


def align(hypothesis: Sentence, reference: Sentence) -> list[Match]:
    """The matches that gain most; among these the alignment with fewest chunks; among these the first one found.

    A match whose words have no other candidate is always taken. The search walks along the reference.
    """
    matches = find_matches(hypothesis, reference)
    counts, reference_counts = [0] * LONGEST, [0] * LONGEST
    for match in matches:
        for index in range(match.start, match.start + match.length):
            counts[index] += 1
        for index in range(match.reference_start, match.reference_start + match.reference_length):
            reference_counts[index] += 1
    options: list[list[tuple[Match, int, int]]] = [[] for _ in reference.words[:LONGEST]]
    fixed = [False] * len(options)
    for match in matches:
        _, start, length, reference_start, reference_length = match
        options[reference_start].append((match, match.gain, ((1 << length) - 1) << start))
        if (
            max(counts[start : start + length])
            == 1
            == max(reference_counts[reference_start : reference_start + reference_length])
        ):
            fixed[reference_start] = True

    paths = [Path(0, 0, -1, 0, 0, None, None)]
    for position, candidates in enumerate(options):
        extended = []
        for path in paths:
            cost, closed, next_word, resume, used, _, _ = path
            if resume > position:  # inside a phrase
                extended.append(path)
                continue
            for match, gain, words in candidates:
                if not used & words:
                    _, start, length, _, reference_length = match
                    ended = closed + (next_word >= 0 and next_word != start)
                    behind = position + reference_length
                    extended.append(Path(cost - gain, ended, start + length, behind, used | words, match, path))
            if not fixed[position]:
                skipped = path if next_word < 0 else path._replace(closed=closed + 1, next=-1)
                extended.append(skipped)
        if len(extended) > BEAM:
            extended.sort(key=lambda path: path[:2])
            del extended[BEAM:]
        paths = extended
    last: Path | None = min(paths, key=lambda path: (path.cost, path.closed + (path.next >= 0)))
    found: list[Match] = []
    while last is not None:
        if last.match:
            found.append(last.match)
        last = last.before
    return sorted(found, key=lambda match: match.start)


def count(hypothesis: Sentence, reference: Sentence) -> list[int]:
    """The row of statistics of one pair."""
    row = [0] * COLUMNS
    row[0], row[1] = len(hypothesis.words), len(reference.words)
    row[2] = sum(word.is_function for word in hypothesis.words)
    row[3] = sum(word.is_function for word in reference.words)
    behind = (-1, -1)
    for matcher, start, length, reference_start, reference_length in align(hypothesis, reference):
        column = MATCHED + 4 * matcher
        for word in hypothesis.words[start : start + length]:
            row[column + 2 * word.is_function] += 1
        for word in reference.words[reference_start : reference_start + reference_length]:
            row[column + 1 + 2 * word.is_function] += 1
        row[CHUNKS] += behind != (start, reference_start)
        row[CHUNKS + 1] += length
        row[CHUNKS + 2] += reference_length
        behind = start + length, reference_start + reference_length
    row[WHOLE] = row[CHUNKS] == 1 and row[CHUNKS + 1 : WHOLE] == row[:2]
    return row


def scores(statistics: np.ndarray) -> np.ndarray:
    """The score of each row."""  # (rows, COLUMNS) -> (rows,)
    statistics = np.asarray(statistics, np.float64)
    sides = []
    for side in (0, 1):  # precision and recall: matched words over all words, function words counting less
        matched = statistics[:, MATCHED + side : CHUNKS : 2].reshape(-1, 4, 2)  # (rows, matcher, content or function)
        weighted = (matched @ [DELTA, 1 - DELTA]) @ WEIGHTS
        content = statistics[:, side] - statistics[:, 2 + side]
        total = DELTA * content + (1 - DELTA) * statistics[:, 2 + side]
        sides.append(np.divide(weighted, total, out=np.zeros_like(weighted), where=total > 0))
    precision, recall = sides
    mean = ALPHA * precision + (1 - ALPHA) * recall
    f = np.divide(precision * recall, mean, out=np.zeros_like(mean), where=mean > 0)
    # An alignment of one chunk that covers both sentences has no penalty: its chunk does not count.
    chunks = statistics[:, CHUNKS] - statistics[:, WHOLE]
    matched = statistics[:, CHUNKS + 1 : WHOLE].mean(1)
    fragmentation = np.divide(chunks, matched, out=np.zeros_like(f), where=matched > 0)
    return f * (1 - GAMMA * fragmentation**BETA)


class Meteor:
    """METEOR of captions, each against the reference that fits it best."""

    version = "meteor-1.5"
    keys = ("meteor",)

    def __init__(self, data: MeteorData | None = None) -> None:
        self.data = data or load()

    def statistics(
        self, captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
    ) -> np.ndarray:
        """One row per image: the counts against the best reference, the first of equals."""  # (images, COLUMNS)
        check_pairs(captions, references)
        hypotheses = self.data.sentences(captions)
        sentences = iter(self.data.sentences([text for texts in references for text in texts]))
        rows = [
            count(hypothesis, next(sentences))
            for hypothesis, texts in zip(hypotheses, references, strict=True)
            for _ in texts
        ]
        table = np.array(rows, np.float64)  # (pairs, COLUMNS)
        values = scores(table)
        best, first = [], 0
        for texts in references:
            best.append(first + int(values[first : first + len(texts)].argmax()))
            first += len(texts)
        return table[best]

    def aggregate(self, statistics: np.ndarray) -> dict[str, float]:
        """One score from the sums over all images."""
        return {"meteor": float(scores(np.sum(statistics, axis=0, keepdims=True))[0])}

    def per_image(self, statistics: np.ndarray) -> dict[str, np.ndarray]:
        return {"meteor": scores(statistics)}
