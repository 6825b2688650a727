"""METEOR 1.5's alignment of a caption with one reference: four matchers, then a beam search over their matches.

Denkowski and Lavie, "Meteor Universal" (2014), section 2.1. Where paper and released program differ this follows the
program, so that scores agree with published ones. Words are compared as such; the program compares 32-bit hashes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

EXACT, STEM, SYNONYM, PARAPHRASE = range(4)
BEAM = 40
# A path's rank is one integer, lower is better: more words matched, then fewer chunks, then shorter moves.
MATCHED, CHUNK = 1 << 48, 1 << 32


class Word(NamedTuple):
    """A word and all that the first three matchers look at."""

    text: str
    stem: str
    synsets: frozenset[int] = frozenset()
    function: bool = False


class Match(NamedTuple):
    """`length` reference words from `start` on mean `caption_length` caption words from `caption_start` on."""

    start: int
    length: int
    caption_start: int
    caption_length: int
    matcher: int


class Sentence:
    """A caption's words, and those of its phrases for which paraphrases are known."""

    def __init__(self, words: list[Word]) -> None:
        self.words = words
        self.places: dict[int, list[tuple[int, int]]] = {}  # phrase: (start, length) of each occurrence
        self.phrases: list[tuple[int, int, dict[int, int]]] = []  # start, length, {paraphrase: rank}

    def add_phrase(self, phrase: int, start: int, length: int, paraphrases: dict[int, int]) -> None:
        """Note that `phrase` occurs; call by rising start, and by rising length within one start."""
        self.places.setdefault(phrase, []).append((start, length))
        if paraphrases:
            self.phrases.append((start, length, paraphrases))


def align(caption: Sentence, reference: Sentence) -> list[Match]:
    """The best alignment, ordered by place in the reference."""
    return search(find_matches(caption, reference))


def count_chunks(matches: list[Match]) -> int:
    """In how many pieces, each contiguous and equally ordered on both sides, the matches lie."""
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
        equal = [place for place, word in enumerate(caption.words) if word.text == text]
        found.append([Match(start, 1, place, 1, EXACT) for place in equal])
        if identical:
            continue
        others = [(place, word) for place, word in enumerate(caption.words) if word.text != text]
        found[start] += [Match(start, 1, place, 1, STEM) for place, word in others if word.stem == stem]
        if synsets:
            alike = [place for place, word in others if not synsets.isdisjoint(word.synsets)]
            found[start] += [Match(start, 1, place, 1, SYNONYM) for place in alike]
    if not identical:
        for start, length, place, size in _paraphrases(reference, caption):
            found[start].append(Match(start, length, place, size, PARAPHRASE))
        for place, size, start, length in _paraphrases(caption, reference):
            found[start].append(Match(start, length, place, size, PARAPHRASE))
    return found


def _paraphrases(source: Sentence, target: Sentence) -> Iterator[tuple[int, int, int, int]]:
    """Where a phrase of `source` is rendered by a phrase of `target`: (start, length) in each."""
    for start, length, paraphrases in source.phrases:
        for phrase in sorted(paraphrases.keys() & target.places.keys(), key=paraphrases.__getitem__):
            for place, size in target.places[phrase]:
                yield start, length, place, size


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
            (match.caption_start, match.caption_start + match.caption_length, _bits(match), _weight(match), match)
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


def _weight(match: Match) -> int:
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
    reference = Counter(place for match in everything for place in _reference_places(match))
    caption = Counter(place for match in everything for place in _caption_places(match))
    return {
        match.start
        for match in everything
        if all(reference[place] == 1 for place in _reference_places(match))
        and all(caption[place] == 1 for place in _caption_places(match))
    }


def _reference_places(match: Match) -> range:
    return range(match.start, match.start + match.length)


def _caption_places(match: Match) -> range:
    return range(match.caption_start, match.caption_start + match.caption_length)
