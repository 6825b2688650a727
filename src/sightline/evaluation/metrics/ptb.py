"""Penn Treebank tokens of captions, equal to those of the COCO caption tools, without Java.

The tools run a Java program over a file with one caption a line and drop the punctuation tokens from its answer. This
module was written from a description of what that program answers, not from its code. It cuts a caption with one
regular expression that skips what the tools drop. Rules that captions never use (web and e-mail addresses, smileys,
tags, telephone numbers, file names) are left out: such texts are cut into words and marks. docs/metrics.md says on
how many captions the tokens are equal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

# Words that keep their period. The sources are our reading of the captions of COCO, Flickr8k and Flickr30k, and the
# English lists of pySBD and spaCy (both under the MIT licence), as far as the COCO tools treat the words likewise.
_TITLES = (
    "adj adm adv asst attys ave brig capt cf cie cmdr col comdr cpl dept det dr drs ens ft gen gov hon insp jos lt maj "
    "messrs mfg mlle mme mr mrs ms msgr mt natl pfc ph prof pvt rep reps rev sen sens sfc sgt st ste supt vs"
)
# Words that keep their period and may end a sentence: "etc.a" is "etc. a", whereas "st.a" is one word.
_ENDINGS = (
    "al ala apr ariz assn aug bldg blvd bros calif co colo conn corp cos ct dak dec esq est etc ext feb fla fri ga "
    "inc ind intl jan jr jul jun kan kans ky ltd mar md mich minn mo mon mont neb nev nov oct okla penn ph.d rd rt sep "
    "sept sq sr tel tenn thu thurs tue tues univ va vt wed wis wisc wyo"
)
_CAPITALIZED_ENDINGS = "ark del ill la mass miss ore pa tex wash"  # only with a capital: "Wash." but not "wash."
_NUMBERED = "art ca fig figs no nos op pp prop"  # only before a number: "no. 5" but not "no. way"
# Before one of these words with a capital, a single letter does not keep its period: "a dog s. The" is "a dog s the".
_STARTERS = (
    "a about according after an as at but earlier he her here if in it last many more now once one other our she since "
    "so some such that the their then there these they this we what when while yet you"
)
_SPLIT_WORDS = {
    "cannot": ["can", "not"],
    "gonna": ["gon", "na"],
    "wanna": ["wan", "na"],
    "gotta": ["got", "ta"],
    "gimme": ["gim", "me"],
    "lemme": ["lem", "me"],
}
# Brackets are kept: the COCO tools mean to drop them but look for their names in capitals.
_BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
_FRACTIONS = {"½": "1/2", "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3"}
_RENAMED = _BRACKETS | _FRACTIONS | {"¢": "cents", "£": "#", "€": "$"}


def _any(words: str) -> str:
    """A pattern for one of the words, whatever their case."""
    return "(?i:" + "|".join(map(re.escape, words.split())) + ")"


def _any_capitalized(words: str) -> str:
    """A pattern for one of the words with a capital first letter, whatever the case of the others."""
    return "(?:" + "|".join(f"{word[0].upper()}(?i:{word[1:]})" for word in words.split()) + ")"


# Characters beyond ASCII that reach the patterns are letters or stand apart (_clean), save curly apostrophes and
# Unicode hyphens (2010, 2011). A repetition gives nothing back ("++") or is bounded or short, and what it has read
# becomes part of the token: so the time grows in proportion to the length, whatever the text.
_BEYOND = r"\x80-\u200f\u2012-\u2017\u201a-\uffff"
_L = f"[A-Za-z{_BEYOND}]"  # a letter
_W = f"[0-9A-Za-z{_BEYOND}]"  # a letter or digit
_APOSTROPHE = "['’]"
_CLITIC = rf"{_APOSTROPHE}(?i:[sdm]|ll|re|ve)(?!{_L})"
_COMPOUND = f"{_W}++(?:-{_L}++)*+"
_ELISION = rf"[A-HJ-XZdlno](?!{_CLITIC})['’`](?=[0-9]*+{_L}){_W}{{2,}}+"
_HYPHENATED = rf"(?:{_ELISION}|{_W}++(?:[.,]{_W}*+){{0,20}}+)(?:[-‐‑_](?:[DLOdlo]['’`]{_W}{{2,}}+|{_W}++))++"

# At each position the first alternative that fits is the token. They are in such an order that it is also the longest.
# The single group holds the token. What lies outside is read over; so is every mark that no alternative holds.
_TOKEN = re.compile(
    rf"""[ ]?(?:(
      [A-Za-z]++(?=,?(?:\s|\Z))                               # most words
    | [0-9]++[- ][0-9]++/[0-9]++                              # 1 1/2
    | {_L}+(?<![nN])(?=[nN]['’`][tT]) | [nN]['’`][tT]{_L}*+   # does n't
    | {_COMPOUND}(?:/{_COMPOUND}){{1,2}}+                     # and/or, 1/2-inch, 9/2/32
    | (?:{_HYPHENATED}|{_ELISION}|[A-Z]++(?:&[A-Z]++)++)(?:\.(?=[,;:]))?  # t-shirt, 1.5-inch, o'clock, AT&T
    | [A-Z]++\$                                               # US$
    | {_any("c'mon e'er ev'ry li'l nat'l s'mores").replace("'", _APOSTROPHE)}
    | {_any("dunkin ol somethin")}(?!{_CLITIC}){_APOSTROPHE}
    | {_L}{{2,}}+(?<=[aeiouyAEIOUY])(?!{_CLITIC})['’`](?=[aeiouA-Z]){_L}++  # ma'am
    | (?:[DLJdlj]|[Yy](?={_APOSTROPHE}[A-Za-z]))(?!{_CLITIC}){_APOSTROPHE}  # y' all
    | (?:[A-Za-z]\.){{2,}}+(?!{_L})                           # u.s.
    | [A-Za-z]\.(?!{_L}|\s+{_any_capitalized(_STARTERS)}\s)   # s.
    | (?={_L}{{2,6}}+\.)(?:
          {_any(_TITLES)}\.(?!{_L})                           # mr.
        | (?:{_any(_ENDINGS)}|{_any_capitalized(_CAPITALIZED_ENDINGS)})\.(?!{_L}(?:{_W}|[.!?]{_L}))  # etc.
        | {_any(_NUMBERED)}\.(?=\s?[0-9])                     # no. 5
      )
    | [0-9]++(?:[.,:][0-9]++)++                               # 10,000, 11:05
    | (?:{_L}{_W}*+(?:[.!?]{_L}{_W}*+)*+|{_W}++)(?:\.(?=[,;:]))?  # other words; t.v, river.a
    | (?:[-+][.,:]?|[.,:])[0-9]++(?:[.,:][0-9]++)*+           # -5, .99
    | {_CLITIC} | {_APOSTROPHE}(?i:em|til|cause)
    | {_APOSTROPHE}[nN](?:{_APOSTROPHE}|(?=\s|\Z))            # rock 'n' roll
    | {_APOSTROPHE}[0-9]{{2}}(?:[sS]|(?=\s|\Z))               # '90s, '09
    | '[tT](?=(?i:is|was))                                    # 't is
    | [!?]{{2,}}+ | -{{5,}}+ | \*++ | _++ | \#(?:[A-Za-z]++|\#*+) | @[A-Za-z_][0-9A-Za-z_]*+
    | [^\s'’`".,:;!?-]                                        # any other mark, alone
    ) | '' | -{{2,4}} | \.{{3,5}} | \.(?:[ ]\.){{2,4}} )""",
    re.VERBOSE,
)
# Beyond ASCII: quotes, dashes and dots are dropped, the other characters here need a rule of their own.
_MARKS = dict.fromkeys("\n“”«»‹›…–—―\x85\x96\x97\ufe0f\ufffd", " ")
_MARKS |= {"’": "’", "‘": "`", "‐": "‐", "‑": "‑", "\xad": "", "\x80": " € "}
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'", "nbsp": "\t"}
_ENTITY = re.compile(f"&({'|'.join(_ENTITIES)});", re.IGNORECASE)
_ODD = re.compile("[^ -~]")
_CURLY = re.compile(rf"(?<=[nN])’(?=[tT])|(?={_CLITIC})’")  # in contractions, which get the ASCII form
_OPEN_END = re.compile(rf"(?<!{_W})(?:[A-Za-z]|{_any(_NUMBERED)})\.\s*\Z")  # the next caption may decide on the period


def tokenize(text: str) -> list[str]:
    """The tokens of one caption alone: lower case, without the punctuation that the COCO tools drop."""
    return _cut(_clean(text))


def tokenize_all(texts: Sequence[str]) -> list[list[str]]:
    """The tokens of each caption as the COCO tools give them, which read all captions as one text.

    So what follows a caption that ends in a single letter and a period, or in "no.", is the next caption.
    """
    known: dict[str, list[str]] = {}
    tokens = []
    for index, text in enumerate(texts):
        if (words := known.get(text)) is None:
            line = _clean(text)
            if line[-1:] in ". \t" and _OPEN_END.search(line[-20:]):
                words = _cut(line, _following(texts, index))
            else:
                words = known[text] = _cut(line)
        tokens.append(list(words))
    return tokens


def _cut(line: str, following: str = "") -> list[str]:
    """The tokens of a cleaned caption. `following` is the text after it, which is only looked at."""
    if following:
        found = [match[1] for match in _TOKEN.finditer(line + following) if match.end() <= len(line)]
    else:
        found = _TOKEN.findall(line)
    words = [_RENAMED.get(word) or word.lower() for word in found if word]
    if not _SPLIT_WORDS.keys().isdisjoint(words):
        words = _split_words(words)
    if "/" in line:
        words = [word.replace(" ", "\xa0") for word in words]
    return words


def _split_words(words: list[str]) -> list[str]:
    """Cut words like "cannot" in two, though not before a clitic: "gonna 's"."""
    split = []
    for word, after in zip(words, [*words[1:], ""], strict=True):
        parts = _SPLIT_WORDS.get(word)
        split += [word] if parts is None or after.startswith("'") else parts
    return split


def _following(texts: Sequence[str], index: int) -> str:
    """The start of the text after a caption: line ends, and the next caption's first word if there is one."""
    following = ""
    for later in range(index + 1, len(texts)):
        line = _clean(texts[later][:40])
        following += "\n" + line
        if line.strip():
            return following + "\n" * (later + 1 < len(texts) or len(texts[later]) > 40)
    return following


def _clean(text: str) -> str:
    """Entities read, line breaks and other odd blanks as blanks, marks beyond ASCII apart or as their ASCII forms."""
    if "&" in text:
        text = _ENTITY.sub(lambda entity: _ENTITIES[entity[1].lower()], text)
    if text.isascii() and text.isprintable():
        return text
    text = _ODD.sub(lambda odd: _replace(odd[0]), text)
    return _CURLY.sub("'", text)


def _replace(character: str) -> str:
    """What stands for a character that is not printable ASCII."""
    if character in _MARKS:
        return _MARKS[character]
    category = unicodedata.category(character)
    if character > "\uffff" or category[0] in "CZ" or category == "Me":
        return "\t"
    if category[0] in "LM" or category in ("Nd", "Nl"):
        return character
    return f" {character} "
