"""Porter2, the Snowball "english" stemmer as it stood before 2018, as METEOR 1.5 uses it.

The steps and regions are those of https://snowballstem.org/algorithms/english/stemmer.html (BSD licence: NOTICE).
"""

from __future__ import annotations

from functools import lru_cache

VOWELS = frozenset("aeiouy")
DOUBLES = ("bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt")
LI_ENDINGS = frozenset("cdeghkmnrt")
REGION_PREFIXES = ("gener", "commun", "arsen")

WHOLE_WORDS = {
    "skis": "ski",
    "skies": "sky",
    "dying": "die",
    "lying": "lie",
    "tying": "tie",
    "idly": "idl",
    "gently": "gentl",
    "ugly": "ugli",
    "early": "earli",
    "only": "onli",
    "singly": "singl",
} | {word: word for word in ("sky", "news", "howe", "atlas", "cosmos", "bias", "andes")}
DONE_AFTER_PLURAL = frozenset(["inning", "outing", "canning", "herring", "earring", "proceed", "exceed", "succeed"])

STEP_2 = {
    "tional": "tion",
    "enci": "ence",
    "anci": "ance",
    "abli": "able",
    "entli": "ent",
    "izer": "ize",
    "ization": "ize",
    "ational": "ate",
    "ation": "ate",
    "ator": "ate",
    "alism": "al",
    "aliti": "al",
    "alli": "al",
    "fulness": "ful",
    "ousli": "ous",
    "ousness": "ous",
    "iveness": "ive",
    "iviti": "ive",
    "biliti": "ble",
    "bli": "ble",
    "ogi": "og",
    "fulli": "ful",
    "lessli": "less",
    "li": "",
}
STEP_3 = {
    "tional": "tion",
    "ational": "ate",
    "alize": "al",
    "icate": "ic",
    "iciti": "ic",
    "ical": "ic",
    "ful": "",
    "ness": "",
    "ative": "",
}
STEP_4 = [
    *["al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent"],
    *["ism", "ate", "iti", "ous", "ive", "ize", "ion"],
]


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """The stem of one lower-case word."""
    if word in WHOLE_WORDS:
        return WHOLE_WORDS[word]
    if len(word) < 3:
        return word
    word = _mark_consonant_y(word.removeprefix("'"))
    region_1, region_2 = _regions(word)
    word = _strip_plural(word)
    if word in DONE_AFTER_PLURAL:
        return word
    word = _strip_past(word, region_1)
    if len(word) > 2 and word[-1] in "yY" and word[-2] not in VOWELS:
        word = word[:-1] + "i"
    word = _replace_suffix(word, STEP_2, region_1, region_2)
    word = _replace_suffix(word, STEP_3, region_1, region_2)
    word = _delete_suffix(word, region_2)
    return _strip_final(word, region_1, region_2).replace("Y", "y")


def _mark_consonant_y(word: str) -> str:
    """Write Y for a y that acts as a consonant: at the start, or after a vowel."""
    letters = list(word)
    for index, letter in enumerate(letters):
        if letter == "y" and (index == 0 or letters[index - 1] in VOWELS):
            letters[index] = "Y"
    return "".join(letters)


def _regions(word: str) -> tuple[int, int]:
    """Where R1 and R2 begin: after the first consonant that follows a vowel, and the same again inside R1."""
    prefix = next((prefix for prefix in REGION_PREFIXES if word.startswith(prefix)), None)
    first = len(prefix) if prefix else _after_vowel_consonant(word, 0)
    return first, _after_vowel_consonant(word, first)


def _after_vowel_consonant(word: str, start: int) -> int:
    for index in range(start + 1, len(word)):
        if word[index] not in VOWELS and word[index - 1] in VOWELS:
            return index + 1
    return len(word)


def _longest_suffix(word: str, suffixes: tuple[str, ...] | dict[str, str] | list[str]) -> str:
    return max((suffix for suffix in suffixes if word.endswith(suffix)), key=len, default="")


def _has_vowel(text: str) -> bool:
    return not VOWELS.isdisjoint(text)


def _ends_in_short_syllable(word: str) -> bool:
    if len(word) == 2:
        return word[0] in VOWELS and word[1] not in VOWELS
    return (
        len(word) > 2
        and word[-3] not in VOWELS
        and word[-2] in VOWELS
        and word[-1] not in VOWELS
        and word[-1] not in "wxY"
    )


def _strip_plural(word: str) -> str:
    """Steps 0 and 1a: possessives, then plurals."""
    word = word.removesuffix(_longest_suffix(word, ("'", "'s", "'s'")))
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > 4 else word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")) and _has_vowel(word[:-2]):
        return word[:-1]
    return word


def _strip_past(word: str, region_1: int) -> str:
    """Step 1b: -ed, -ing and what they leave behind."""
    suffix = _longest_suffix(word, ("eed", "eedly", "ed", "edly", "ing", "ingly"))
    root = word.removesuffix(suffix)
    if suffix in ("eed", "eedly"):
        return root + "ee" if len(root) >= region_1 else word
    if not suffix or not _has_vowel(root):
        return word
    if root.endswith(("at", "bl", "iz")):
        return root + "e"
    if root.endswith(DOUBLES):
        return root[:-1]
    if len(root) == region_1 and _ends_in_short_syllable(root):
        return root + "e"
    return root


def _replace_suffix(word: str, endings: dict[str, str], region_1: int, region_2: int) -> str:
    """Steps 2 and 3: shorten the longest ending, where it is in R1 and its own condition holds."""
    suffix = _longest_suffix(word, endings)
    root = word.removesuffix(suffix)
    if not suffix or len(root) < region_1:
        return word
    if suffix == "ogi" and not root.endswith("l"):
        return word
    if suffix == "li" and root[-1:] not in LI_ENDINGS:
        return word
    if suffix == "ative" and len(root) < region_2:
        return word
    return root + endings[suffix]


def _delete_suffix(word: str, region_2: int) -> str:
    """Step 4: drop the longest derivational ending, where it is in R2."""
    suffix = _longest_suffix(word, STEP_4)
    root = word.removesuffix(suffix)
    if len(root) < region_2 or (suffix == "ion" and root[-1:] not in ("s", "t")):
        return word
    return root


def _strip_final(word: str, region_1: int, region_2: int) -> str:
    """Step 5: a final e, or the second of two final l."""
    root = word[:-1]
    if word.endswith("e") and (len(root) >= region_2 or (len(root) >= region_1 and not _ends_in_short_syllable(root))):
        return root
    if word.endswith("ll") and len(root) >= region_2:
        return root
    return word
