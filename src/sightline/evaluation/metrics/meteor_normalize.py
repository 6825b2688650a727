"""METEOR 1.5's own tokeniser (its `-norm` option, English), applied on top of the PTB tokens of the COCO tools.

It splits what PTB keeps together: `t-shirt` becomes `t shirt`, `n't` becomes `n 't`, `u.s.` becomes `us`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

ALPHA = "A-Za-zŠŽšžŸÀ-ÖØ-öø-žЀ-ӿԀ-ԧꙀ-ꙮ꙾-ꚗᴀ-ᵿ"
ALNUM = "0-9" + ALPHA
SPACE = " \\t\\n\\x0b\\f\\r"
PLAIN = re.compile("[0-9a-z ]*")  # nothing in such a line can change
CONTROL = "".join(map(chr, range(33)))
DOT_RUN = "\ue000"  # stands for each dot of an ellipsis, so that the rule about final dots leaves it alone

RULES: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (f"([^{ALNUM}{SPACE}.'`,\\-‘’])", r" \1 "),
    (r"\.{2,}", lambda run: f" {DOT_RUN * len(run[0])} "),
    (r"([^0-9]),([^0-9])", r"\1 , \2"),
    (r"([0-9]),([^0-9])", r"\1 , \2"),
    (r"([^0-9]),([0-9])", r"\1 , \2"),
    ("[`‘’]", "'"),
    ("[“”]|''", ' " '),
    ("–", "-"),
    ("--", "-"),
    (f"([{ALNUM}.])-([{ALNUM}])", r"\1 \2"),
    (f"([^{ALPHA}])'([^{ALPHA}])", r"\1 ' \2"),
    (f"([^{ALPHA}0-9])'([{ALPHA}])", r"\1 ' \2"),
    (f"([{ALPHA}])'([^{ALPHA}])", r"\1 ' \2"),
    (f"([{ALPHA}])'([{ALPHA}])", r"\1 '\2"),
    ("([0-9])'(s)", r"\1 '\2"),
]
REWRITES = [(re.compile(pattern), replacement) for pattern, replacement in RULES]
WORD = re.compile("[^ \t\n\r\f]+")
WIDE_SPACE = re.compile("[\u2000-\u200a\u202f\u205f\u3000\u00a0]")
LETTER = re.compile(f"[{ALPHA}]")


def normalize(text: str, prefixes: Mapping[str, bool]) -> list[str]:
    """The words METEOR compares. `prefixes` are abbreviations whose dot stays; True: only before a number."""
    if PLAIN.fullmatch(text):
        return text.split()
    text = f" {text.strip(CONTROL)} "
    for pattern, replacement in REWRITES:
        text = pattern.sub(replacement, text)
    words = WORD.findall(text)
    following = [*words[1:], ""]
    text = " ".join(_final_dot(word, after, prefixes) for word, after in zip(words, following))
    text = WIDE_SPACE.sub(" ", text.replace(DOT_RUN, ".")).strip(CONTROL)
    return WORD.findall(text.lower())


def _final_dot(word: str, following: str, prefixes: Mapping[str, bool]) -> str:
    """Keep, drop or split off the dot that ends a word."""
    if len(word) < 2 or not word.endswith("."):
        return word
    stem = word[:-1]
    if "." in stem and LETTER.search(stem):
        return word.replace(".", "")
    number_only = prefixes.get(stem)
    if number_only is False or "a" <= following[:1] <= "z":
        return word
    if number_only and "0" <= following[:1] <= "9":
        return word
    return f"{stem} ."
