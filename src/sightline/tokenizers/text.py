"""Plain text before any vocabulary: one spelling for every tokenizer, and what counts as a word.

Words follow the PTB tokenisation of the COCO metrics, so the model spends no step on what scoring drops: punctuation
is left out, "tri-colored" stays one word, and "man's" is "man" and "'s" (one shared token instead of a rare word for
each owner). Joined again it reads "man's", which the metric splits as before.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_SPELLINGS = str.maketrans({"‘": "'", "’": "'", "\u02bc": "'", "`": "'", "\u2010": "-", "\u2011": "-", "\u00ad": None})
# Listing what ends a word, rather than what makes one, keeps every alphabet and its combining marks.
_CHUNK = re.compile(r"[^\s!-%(-,./:-@\[-`{-~¡§«»¿–—“”„…、。]+")
_CLITIC = re.compile(r"(.*[^'-])(n't|'(?:s|re|ve|ll|d|m))")
_CLITICS = frozenset({"n't", "'s", "'re", "'ve", "'ll", "'d", "'m"})


def normalise(text: str) -> str:
    """Lower case, one form of every character (NFKC), straight apostrophes, single spaces."""
    text = unicodedata.normalize("NFKC", text).translate(_SPELLINGS).lower()
    return " ".join(text.split())


def split_words(text: str) -> list[str]:
    """The words of a text, without punctuation: "A man's t-shirt ." gives a, man, 's, t-shirt."""
    words = []
    for chunk in _CHUNK.findall(normalise(text)):
        endings: list[str] = []
        chunk = chunk.rstrip("'-").lstrip("-")
        while match := _CLITIC.fullmatch(chunk):  # "couldn't've" has two
            chunk = match[1]
            endings.append(match[2])
        if chunk not in _CLITICS:
            chunk = chunk.strip("'-")
        words += [chunk] * bool(chunk) + endings[::-1]
    return words


def is_clitic(word: str) -> bool:
    """Whether a word is written onto the one before it."""
    return word in _CLITICS


def join_words(words: Sequence[str]) -> str:
    """A readable sentence of words: "man", "'s" gives "man's"."""
    return "".join(word if is_clitic(word) else f" {word}" for word in words).lstrip()
