"""From features to captions: beam search, greedy search or sampling, on any decoder with ``start`` and ``step``."""

from __future__ import annotations

from sightline.decoding.beam import beam_search
from sightline.decoding.ensemble import Ensemble
from sightline.decoding.hypotheses import Hypothesis
from sightline.decoding.options import DecodingOptions, UserOption, user_options
from sightline.decoding.sampling import sample, sample_search, seeded_uniform
from sightline.types import Features, ImageFeatures, StepDecoder


def decode(decoder: StepDecoder, features: Features, options: DecodingOptions | None = None) -> list[list[Hypothesis]]:
    """``options.candidates`` captions of each photo, best first.

    A finished caption comes before one that ``max_length`` cut, whatever their scores. Fewer captions come back only
    where fewer exist.
    """
    options = options or DecodingOptions()
    batch = len(features if isinstance(features, ImageFeatures) else features[0])
    if batch == 0:
        return []
    if options.sample:
        uniform = seeded_uniform(batch, options.candidates, options)
        backpointers, endings = sample_search(decoder, features, uniform, options)
        endings = endings.ranked(options.candidates)
    else:
        backpointers, endings = beam_search(decoder, features, batch, options)
    return backpointers.hypotheses(endings)


__all__ = ["DecodingOptions", "Ensemble", "Hypothesis", "UserOption", "decode", "sample", "user_options"]
