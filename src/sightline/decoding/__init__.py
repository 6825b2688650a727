"""From features to captions: beam search, greedy search or sampling, on any decoder with ``start`` and ``step``."""

from sightline.decoding.beam import decode
from sightline.decoding.ensemble import Ensemble
from sightline.decoding.hypotheses import Hypothesis, same_words
from sightline.decoding.options import DecodingOptions, UserOption, user_options
from sightline.decoding.sampling import sample

__all__ = [
    "DecodingOptions",
    "Ensemble",
    "Hypothesis",
    "UserOption",
    "decode",
    "same_words",
    "sample",
    "user_options",
]
