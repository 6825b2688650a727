"""English words that decoding, evaluation and search treat in their own way, and which tokens are one content word."""

from __future__ import annotations

from collections.abc import Container

from sightline.tokenizers.base import SPECIAL, Tokenizer

# fmt: off
_FUNCTION_WORDS = (  # they tell nothing about a photo
    "a an the this that these those some another each other every both all any "
    "i he she it they we you him her them his its their our your who which what where when one's "
    "and or but while as if than so then "
    "in on at of to into onto from by for with without through over under above below near next behind beside between "
    "among along across around up down off out about against toward towards during after before inside outside front "
    "is are was were be been being am has have had having do does did doing there not 's"
)
_MODIFIERS = (  # a caption may repeat them: "a young man and a young woman", "two dogs and two cats"
    "black white gray grey brown tan beige red orange yellow green blue purple pink gold golden silver "
    "one two three four five six seven eight nine ten eleven twelve many several few "
    "big large small little tiny huge tall short long young old"
)
FUNCTION_WORDS, MODIFIERS = frozenset(_FUNCTION_WORDS.split()), frozenset(_MODIFIERS.split())
IRREGULAR_PLURALS = {
    "men": "man", "women": "woman", "children": "child", "people": "person", "feet": "foot", "teeth": "tooth",
    "geese": "goose", "mice": "mouse", "oxen": "ox", "buses": "bus", "tvs": "tv", "leaves": "leaf", "halves": "half",
    "knives": "knife", "shelves": "shelf", "bookshelves": "bookshelf", "scarves": "scarf", "calves": "calf",
    "wolves": "wolf", "loaves": "loaf", "hooves": "hoof", "wives": "wife", "policemen": "policeman",
    "firemen": "fireman", "fishermen": "fisherman", "gentlemen": "gentleman", "groomsmen": "groomsman",
    "snowmen": "snowman", "grandchildren": "grandchild",
}
# fmt: on


def word_groups(tokenizer: Tokenizer) -> list[int]:
    """For each token the first id of the same content word, singular or plural; 0 for tokens that may repeat."""
    groups = [0] * tokenizer.size
    first: dict[str, int] = {}
    for number, word in enumerate(tokenizer.tokens):
        if number >= len(SPECIAL) and word not in FUNCTION_WORDS and word not in MODIFIERS:
            groups[number] = first.setdefault(singular(word, tokenizer.ids), number)
    return groups


def singular(word: str, vocabulary: Container[str]) -> str:
    """A plural's singular if it is irregular or in the vocabulary, and any other word as it is."""
    if word in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[word]
    candidates = [word.removesuffix("s")] if word.endswith("s") and not word.endswith("ss") else []
    if word.endswith(("ses", "xes", "zes", "ches", "shes", "oes")):
        candidates.append(word.removesuffix("es"))
    if word.endswith("ies"):
        candidates.append(f"{word.removesuffix('ies')}y")
    return next((candidate for candidate in candidates if candidate in vocabulary), word)
