"""Counting the runs of one to four tokens that BLEU and CIDEr compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

LONGEST = 4


def count_ngrams(tokens: Sequence[Hashable], length: int) -> Counter[tuple[Hashable, ...]]:
    """How often each run of `length` tokens occurs."""
    return Counter(zip(*(tokens[start:] for start in range(length))))


def split_blanks(tokens: Sequence[str]) -> list[str]:
    """The tokens as the COCO tools' BLEU and CIDEr see them: "1 1/2", one token with a hard space, counts as two."""
    return " ".join(tokens).split()
