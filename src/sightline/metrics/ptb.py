"""Penn Treebank tokens as the COCO caption tools give them: lower case, punctuation dropped, without Java."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sightline.metrics.ptb_grammar import RULES, SKIPPED

# Brackets become -lrb- and the like before the tools look for "-LRB-", so they stay; so does "!!".
_DROPPED = {"''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"}
_PLAIN_WORD = re.compile("[A-Za-z]+(?= )")
_SPLIT_WORDS = {"cannot", "gonna", "gotta", "lemme", "gimme", "wanna"}
_LINE_BREAKS = re.compile("[\r\n\u000b\u000c\u2028\u2029]")


def tokenize(text: str) -> list[str]:
    """The words of a caption as the metrics count them."""
    return tokenize_all([text])[0]


def tokenize_all(texts: Sequence[str]) -> list[list[str]]:
    """The words of each caption, read in this order as one text with a caption per line.

    The order can matter, since the COCO tools' tokeniser glances at the next line: "vitamin K." ends in the word "k"
    if "The dog" follows and in the abbreviation "k." if "Dogs" follows.
    """
    lines: list[list[str]] = [[]]
    for token in lex("\n".join(_LINE_BREAKS.sub(" ", text) for text in texts)):
        if token == "\n":
            lines.append([])
        elif token not in _DROPPED:
            lines[-1].append(token)
    return lines[: len(texts)]


def lex(text: str) -> Iterator[str]:
    """All tokens in lower case, punctuation included, and a newline for each line that ends."""
    text += "\n"  # some tokens are recognised by the blank that follows
    position, end = 0, len(text)
    while position < end:
        word = _PLAIN_WORD.match(text, position)
        if word and word[0].lower() not in _SPLIT_WORDS:
            yield word[0].lower()
            position = word.end() + 1
            continue
        if text[position] == "\n":
            yield "\n"
            position += 1
            continue
        skipped = SKIPPED.match(text, position)
        length, token, after = _longest(text, position)
        if skipped and skipped.end() - position >= length:
            position = skipped.end()
        else:
            if token:
                yield token.lower()
            position = after


def _longest(text: str, start: int) -> tuple[int, str, int]:
    """The longest match at `start`: its length with context, the token, and where to read on."""
    best, winner = None, None
    for rule in RULES:
        match = rule.pattern.match(text, start)
        if match and (best is None or match.end() > best.end()):
            best, winner = match, rule
    if best is None or winner is None:
        return 0, "", start + 1  # a character the tokeniser does not know is passed over
    end = best.end(1) - winner.give_back
    token = text[start:end]
    return best.end() - start, winner.edit(token) if winner.edit else token, end
