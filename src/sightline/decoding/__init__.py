"""From features to captions: beam search, greedy search or sampling, on any decoder with ``start`` and ``step``."""

from __future__ import annotations

from collections.abc import Sequence

from sightline.decoding.beam import beam_search
from sightline.decoding.ensemble import Ensemble
from sightline.decoding.options import DecodingOptions
from sightline.decoding.sampling import draw, same_chances, sample
from sightline.decoding.trail import Features, Hypothesis, StepDecoder, batch_of


def decode(
    decoder: StepDecoder | Sequence[StepDecoder], features: Features, options: DecodingOptions | None = None
) -> list[list[Hypothesis]]:
    """``options.candidates`` captions of each photo, best first; several decoders act as an ensemble.

    A finished caption comes before one that ``max_length`` cut, whatever their scores. Fewer captions come back only
    where fewer exist.
    """
    options = options or DecodingOptions()
    if isinstance(decoder, Sequence):
        decoder = Ensemble(decoder)
    batch, device = batch_of(features)
    if batch == 0:
        return []
    if options.sample:
        trail, endings = draw(decoder, features, same_chances(batch, options.candidates, options, device), options)
        endings = endings.ranked(options.candidates)
    else:
        trail, endings = beam_search(decoder, features, options)
    return trail.hypotheses(endings)


__all__ = ["DecodingOptions", "Ensemble", "Hypothesis", "decode", "sample"]
