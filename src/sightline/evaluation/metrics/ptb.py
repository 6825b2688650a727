"""Penn Treebank tokens as the COCO caption tools give them: lower case, punctuation dropped, without Java."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache

from sightline.evaluation.metrics.ptb_rules import (
    DIGIT,
    LETTER,
    NUMBERED,
    STARTING_OTHERWISE,
    STARTING_WITH_DIGIT,
    STARTING_WITH_LETTER,
)

# Brackets become -lrb- and the like before the tools look for "-LRB-", so they stay; so does "!!".
_DROPPED = {"''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"}
_LINE_BREAKS = re.compile("[\r\n\u000b\u000c\u2028\u2029]")
# Between spaces, what consists of these characters has the same tokens in every caption, unless it ends in the full
# stop of a lone letter or of an abbreviation such as "no.", which depends on the word after.
_ALONE = re.compile("[A-Za-z.,!?'\"&/-]*")
_OPEN_END = re.compile(rf"(?:[a-z]|{NUMBERED})\.")
_SOFT_HYPHEN = "\xad"  # no part of a word
_Matchers = list[tuple[Callable[[str, int], re.Match[str] | None], Callable[[str], str]]]


def tokenize(text: str) -> list[str]:
    """The words of a caption as the metrics count them."""
    return tokenize_all([text])[0]


def tokenize_all(texts: Sequence[str]) -> list[list[str]]:
    """The words of each caption, read in this order as one text with a caption per line.

    The order can matter, since the COCO tools' tokeniser glances at the next line: "vitamin K." ends in the word "k"
    if "The dog" follows and in the abbreviation "k." if "Dogs" follows.
    """
    lines = [_LINE_BREAKS.sub(" ", text).replace(_SOFT_HYPHEN, "") for text in texts]
    tokenized = []
    for number, line in enumerate(lines):
        following = "".join("\n" + after for after in lines[number + 1 : number + 4])
        tokenized.append([token for token in lex(line, following) if token not in _DROPPED])
    return tokenized


def lex(line: str, following: str = "") -> Iterator[str]:
    """Every token of a line, punctuation included, given the text after it."""
    text = line + following
    place = 0
    while place < len(line):
        end = line.find(" ", place)
        end = len(line) if end < 0 else end
        part = line[place:end]
        known = _tokens_alone(part)
        if known is not None:
            yield from known
            place = end + 1
            continue
        while place < end:  # a token such as a telephone number can end in a later part
            token, place = _next_token(text, place)
            if token:
                yield token


@lru_cache(maxsize=1 << 16)
def _tokens_alone(part: str) -> tuple[str, ...] | None:
    """The tokens of what stands between two spaces, or None if they depend on what stands around it."""
    if _ALONE.fullmatch(part) is None:
        return None
    tokens: list[str] = []
    place = 0
    while place < len(part):
        token, place = _next_token(part + "\n", place)
        tokens.append(token)
    last = "".join(tokens[-2:] if tokens[-1:] == ["."] else tokens[-1:])
    return None if _OPEN_END.fullmatch(last) else tuple(tokens)


def _next_token(text: str, place: int) -> tuple[str, int]:
    """The token at a place of a text and the place after it; a character of no rule gives no token, only separates."""
    matches = [(found, spelling) for matching, spelling in _rules_at(text[place]) if (found := matching(text, place))]
    if not matches:
        return "", place + 1
    found, spelling = max(matches, key=lambda match: match[0].end())  # the first of the longest
    group = found.lastindex or 0
    return spelling(found[group]).lower(), found.end(group)


@lru_cache(maxsize=1 << 10)
def _rules_at(character: str) -> _Matchers:
    """The rules of tokens that can start with a character."""
    if re.match(f"[{LETTER}]", character):
        return _compiled("letter")
    return _compiled("digit" if re.match(f"[{DIGIT}]", character) else "other")


@cache
def _compiled(start: str) -> _Matchers:
    """The rules ready to match: compiled at the first use, since the classes of letters take a while."""
    rules = {"letter": STARTING_WITH_LETTER, "digit": STARTING_WITH_DIGIT, "other": STARTING_OTHERWISE}[start]
    return [(re.compile(rule.pattern).match, rule.spelling) for rule in rules]
