"""From features to captions: beam search, greedy search or sampling, on any decoder with ``start`` and ``step``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sightline.decoding.beam import beam_search
from sightline.decoding.ensemble import Ensemble
from sightline.decoding.hypotheses import Hypothesis
from sightline.decoding.options import DecodingOptions
from sightline.decoding.sampling import draw, same_chances, sample
from sightline.decoding.steps import Features, StepDecoder, as_steps, photos_in


def decode(decoder: Any, features: Features, options: DecodingOptions | None = None) -> list[list[Hypothesis]]:
    """``options.candidates`` captions of each photo, best first; several decoders act as an ensemble.

    A decoder is a network of ``sightline.nn.decoders``, or anything else with ``start`` and ``step`` (`StepDecoder`).
    A finished caption comes before one that ``max_length`` cut, whatever their scores. Fewer captions come back only
    where fewer exist.
    """
    options = options or DecodingOptions()
    steps = Ensemble(decoder) if isinstance(decoder, Sequence) else as_steps(decoder)
    batch = photos_in(features)
    if batch == 0:
        return []
    if options.sample:
        trail, endings = draw(steps, features, same_chances(batch, options.candidates, options), options)
        endings = endings.ranked(options.candidates)
    else:
        trail, endings = beam_search(steps, features, options)
    return trail.hypotheses(endings)


__all__ = ["DecodingOptions", "Ensemble", "Hypothesis", "StepDecoder", "as_steps", "decode", "sample"]
