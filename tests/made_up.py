"""A caption that no model generated."""

from __future__ import annotations

import math

from sightline.types import Caption, Word


def a_dog(**changes) -> Caption:
    words = (Word("a", 0.9), Word("dog", 0.5), Word("barks", 0.2))
    return Caption(**{"text": "a dog barks", "words": words, "score": math.log(0.9 * 0.5 * 0.2 * 0.8)} | changes)
