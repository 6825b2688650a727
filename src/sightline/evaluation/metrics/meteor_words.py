"""What METEOR's option -norm still changes in captions that are lower-case Penn Treebank tokens already.

The rules describe how METEOR 1.5 answers probes; they were not taken from the program. docs/metrics.md has the
measured agreement.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_PLAIN = re.compile(r"[a-z0-9]+|[.,]")  # nearly all tokens: nothing to do
_QUOTES = str.maketrans({"`": "'", "’": "'", "‘": "'", "“": '"', "”": '"'})
_INNER_HYPHEN = re.compile(r"([^\W_])-+([^\W_])")
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"  # Japanese, Chinese, Korean
_PIECE = re.compile(
    rf"[{_IDEOGRAPHS}]"  # each character is a word
    r"|(?<=[^\W\d_])(?:'[^\W\d_]+)+"  # after a letter an apostrophe begins a word: n 't, o 'clock
    r"|(?<=\d)'s\w*"  # 90 's
    r"|\.{2,}"
    rf"|(?:[^\W_{_IDEOGRAPHS}]|-|(?<!\.)\.(?!\.)|(?<=\d),(?=\d))+"  # t.v., 10,000, -lrb-, river.a
    r"|\S"  # any other mark is a word of its own
)


def normalize(tokens: Sequence[str], abbreviations: Mapping[str, bool]) -> list[str]:
    """The words METEOR counts; `abbreviations` keep their period, those marked True only before a number."""
    words: list[str] = []
    for token in tokens:
        if _PLAIN.fullmatch(token):
            words.append(token)
        else:
            text = token.translate(_QUOTES).replace("''", '"').lower()
            words += _PIECE.findall(_INNER_HYPHEN.sub(r"\1 \2", text))
    if any(len(word) > 1 and word[-1] == "." for word in words):
        return _split_periods(words, abbreviations)
    return words


def _split_periods(words: list[str], abbreviations: Mapping[str, bool]) -> list[str]:
    """Read "t.v." as "tv"; make any other final period a word, unless an abbreviation or a lower-case word keeps it."""
    split = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        stem, first = word[:-1], following[:1]
        letters = stem.replace(".", "")
        if word[-1] != "." or not letters:
            split.append(word)
        elif letters != stem and not letters.isdigit():
            split.append(letters)
        elif "a" <= first <= "z" or (stem in abbreviations and (first.isdigit() or not abbreviations[stem])):
            split.append(word)
        else:
            split += [stem, "."]
    return split
