"""METEOR 1.5 for English, with the weights of its ranking task, as the COCO caption tools call it.

The score is that of Banerjee & Lavie (2005) and Denkowski & Lavie (2011, 2014). The aligner follows the papers where
they say what to do, and the program's answers to probes where they do not: the program was run, never read.
docs/metrics.md describes the rules that the probes showed, and the measured agreement.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from sightline.evaluation.metrics.meteor_data import LONGEST, MeteorData, Sentence, load
from sightline.evaluation.metrics.metric import check_pairs

EXACT, STEM, SYNONYM, PARAPHRASE = range(4)
WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])  # of the four matchers
ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75  # recall, fragmentation, penalty, content words
BEAM = 40

# A row of statistics: length, function words (each of hypothesis, reference); for each matcher the content words
# matched (hypothesis, reference) and function words matched (hypothesis, reference); chunks, words matched (hypothesis,
# reference); whether the alignment is one chunk that covers both sentences.
MATCHED, CHUNKS, WHOLE, COLUMNS = 4, 20, 23, 24

# The rank of a partial alignment is one number: gain (more is better), chunks, sum of distances (fewer are better).
ONE_GAIN, ONE_CHUNK = -(1 << 40), 1 << 32


class Match(NamedTuple):
    """A pair of words or phrases that may be aligned."""

    matcher: int
    start: int  # in the hypothesis
    length: int
    reference_start: int
    reference_length: int

    @property
    def gain(self) -> int:
        """What the search earns for it: the words covered if they are equal, else half of them, rounded down."""
        if self.matcher == EXACT:
            return 2
        return self.length // 2 + self.reference_length // 2


def find_matches(hypothesis: Sentence, reference: Sentence) -> list[list[Match]]:
    """For each word of the reference the candidates that start there, in the order in which the search tries them.

    That order decides ties: matcher, then the position in the hypothesis. Paraphrases come in two groups: those that
    the table has for a phrase of the reference (short phrases first, then in the table's order), and those that it has
    for a phrase of the hypothesis. A pair that it has in both directions is a candidate twice.
    """
    found: list[list[Match]] = [[] for _ in reference.words[:LONGEST]]
    texts, stems, synsets = hypothesis.positions
    for start, (word, matches) in enumerate(zip(reference.words, found, strict=False)):
        equal = texts.get(word.text, ())
        matches += [Match(EXACT, position, 1, start, 1) for position in equal]
        related = stems.get(word.stem, ())
        if len(related) > len(equal):
            matches += [Match(STEM, position, 1, start, 1) for position in related if position not in equal]
        if not word.synsets.isdisjoint(synsets):
            positions = {position for group in word.synsets & synsets.keys() for position in synsets[group]}.difference(
                equal
            )
            matches += [Match(SYNONYM, position, 1, start, 1) for position in sorted(positions)]
    phrases = [
        ((0, length, rank, position), Match(PARAPHRASE, position, other_length, start, length))
        for (start, length), rank, (position, other_length) in _paraphrases(reference, hypothesis)
    ] + [
        ((1, position, length, rank), Match(PARAPHRASE, position, length, start, other_length))
        for (position, length), rank, (start, other_length) in _paraphrases(hypothesis, reference)
    ]
    for _, match in sorted(phrases):
        found[match.reference_start].append(match)
    return found


def _paraphrases(sentence: Sentence, other: Sentence) -> list[tuple[tuple[int, int], int, tuple[int, int]]]:
    """Phrase of the sentence, rank among its paraphrases in the table, position of that paraphrase in the other one."""
    return [
        (phrase, paraphrases[row], position)
        for key, paraphrases in sentence.paraphrases.items()
        for row in paraphrases.keys() & other.phrases.keys()
        for phrase in sentence.phrases[key]
        for position in other.phrases[row]
    ]


def align(hypothesis: Sentence, reference: Sentence) -> list[Match]:
    """The alignment with the greatest gain, then the fewest chunks, then the smallest distance, by a beam search.

    A match whose words have no other candidate is always taken. All others compete, also with leaving the word
    unmatched. The search walks along the reference.
    """
    found = find_matches(hypothesis, reference)
    candidates, reference_candidates = [0] * LONGEST, [0] * LONGEST  # of each word
    for matches in found:
        for _, start, length, reference_start, reference_length in matches:
            for index in range(start, start + length):
                candidates[index] += 1
            for index in range(reference_start, reference_start + reference_length):
                reference_candidates[index] += 1

    # A path: rank, the word of the hypothesis that continues its open chunk (-1 if none is open), the first word of the
    # reference behind its last match, the matched words of the hypothesis as bits, and its matches as a linked list.
    # The open chunk is not counted before it ends.
    paths: list[tuple[int, int, int, int, Any]] = [(0, -1, 0, 0, None)]
    for position, matches in enumerate(found):
        options = []
        certain = False
        for match in matches:
            _, start, length, _, reference_length = match
            end, reference_end = start + length, position + reference_length
            words = ((1 << length) - 1) << start
            options.append((match, start, end, reference_end, words, ONE_GAIN * match.gain))
            certain = max(candidates[start:end]) == 1 == max(reference_candidates[position:reference_end])
        extended = []
        for path in paths:
            rank, following, behind, used, chain = path
            if behind > position:  # inside a phrase
                extended.append(path)
                continue
            closed = rank + ONE_CHUNK if following >= 0 else rank
            distance = 0
            for match, start, end, reference_end, words, gain in options:
                if not used & words:
                    new_rank = (rank if following == start else closed) + gain + distance
                    extended.append((new_rank, end, reference_end, used | words, (match, chain)))
                    # The program charges a match's distance to what it tries later at this word, not to the match.
                    distance += abs(start - position)
            if not certain:
                extended.append((closed + distance, -1, behind, used, chain))
        extended.sort(key=itemgetter(0))
        paths = extended[:BEAM]

    best = min(paths, key=lambda path: path[0] + ONE_CHUNK * (path[1] >= 0))
    chain, chosen = best[4], []
    while chain:
        match, chain = chain
        chosen.append(match)
    return sorted(chosen, key=itemgetter(1))


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
        table = np.array(rows, np.float64).reshape(-1, COLUMNS)  # (pairs, COLUMNS)
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
        """The score of each image."""
        return {"meteor": scores(statistics)}
