"""METEOR 1.5's alignment of a caption with one reference: four matchers, then a beam search over their matches.

Denkowski and Lavie, "Meteor Universal" (2014), section 2.1. Where paper and released program differ this follows the
program, so that scores agree with published ones. Words are compared as such; the program compares 32-bit hashes.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

EXACT, STEM, SYNONYM, PARAPHRASE = range(4)
BEAM = 40
# A path's rank is one integer, lower is better: more words matched, then fewer chunks, then shorter moves.
MATCHED, CHUNK = 1 << 64, 1 << 32


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


class Path(NamedTuple):
    """A partial alignment, up to reference word `following`."""

    rank: int
    end: int  # the caption word after the last match, -1 where the last reference word is not matched
    following: int
    taken: int  # bit mask of caption words
    chain: tuple[Match, Any] | None  # the last match and the chain before it


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
    for start, word in enumerate(reference.words):
        text, stem, synsets, _ = word
        exact = [Match(start, 1, place, 1, EXACT) for place, other in enumerate(caption.words) if other.text == text]
        found.append(exact)
        if identical:
            continue
        others = [(place, other) for place, other in enumerate(caption.words) if other.text != text]
        exact += [Match(start, 1, place, 1, STEM) for place, other in others if other.stem == stem]
        if synsets:
            exact += [
                Match(start, 1, place, 1, SYNONYM) for place, other in others if not synsets.isdisjoint(other.synsets)
            ]
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
    """Choose among matches so that each word takes part at most once, by beam search along the reference."""
    settled = _settled(found)
    taken = sum(_caption_bits(match) for match in settled.values())
    beam = [Path(0, -1, 0, taken, None)]
    for position, matches in enumerate(found):
        grown: list[Path] = []
        for path in beam:
            if path.following > position:  # inside a phrase matched earlier
                grown.append(path)
            elif position in settled:
                match = settled[position]
                grown.append(_take(path, match, abs(position - match.caption_start)))
            else:
                moves = 0
                for match in matches:
                    if not path.taken & _caption_bits(match):
                        # The program charges a move to the paths tried after it, not to the one that makes it.
                        grown.append(_take(path, match, moves))
                        moves += abs(position - match.caption_start)
                grown.append(Path(_close_chunk(path) + moves, -1, position + 1, path.taken, path.chain))
        grown.sort(key=itemgetter(0))  # stable: among equals the path found first stays ahead
        beam = grown[:BEAM]
    chosen: list[Match] = []
    link = min(beam, key=_close_chunk).chain
    while link:
        match, link = link
        chosen.append(match)
    return chosen[::-1]


def _take(path: Path, match: Match, moves: int) -> Path:
    """The path with one match more."""
    rank = path.rank if match.caption_start == path.end else _close_chunk(path)
    return Path(
        rank - _weight(match) * MATCHED + moves,
        match.caption_start + match.caption_length,
        match.start + match.length,
        path.taken | _caption_bits(match),
        (match, path.chain),
    )


def _close_chunk(path: Path) -> int:
    """The path's rank once the chunk it is in, if any, has ended."""
    return path.rank if path.end == -1 else path.rank + CHUNK


def _weight(match: Match) -> int:
    """Words matched on both sides; words not equal count half, and the program rounds each side down."""
    if match.matcher == EXACT:
        return 2
    return match.length // 2 + match.caption_length // 2


def _caption_bits(match: Match) -> int:
    """The caption words a match takes, as a bit mask."""
    return ((1 << match.caption_length) - 1) << match.caption_start


def _settled(found: list[list[Match]]) -> dict[int, Match]:
    """Matches without alternative: no other match touches any of their words. They are kept by every path."""
    reference, caption = Counter[int](), Counter[int]()
    for match in chain.from_iterable(found):
        reference.update(range(match.start, match.start + match.length))
        caption.update(range(match.caption_start, match.caption_start + match.caption_length))
    return {
        match.start: match
        for match in chain.from_iterable(found)
        if all(reference[place] == 1 for place in range(match.start, match.start + match.length))
        and all(caption[place] == 1 for place in range(match.caption_start, match.caption_start + match.caption_length))
    }
