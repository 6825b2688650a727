"""What keeping keys and values is worth: one word more at a time, against the whole caption again for each word.

    python benchmarks/cached_decoding.py

A transformer of width 256 with 3 blocks over 257 vectors of 384 numbers (DINOv2's grid cells and class token), 16
photos with 5 beams each, 20 words. Both sides compute the same logits, which is checked; the search is not part of it.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor

from sightline.nn.decoders import Decoder, build_decoder
from sightline.types import ImageFeatures


def step_by_step(decoder: Decoder, features: ImageFeatures, tokens: Tensor, reorder: Tensor) -> Tensor:
    """As beam search does it: a step, then every beam becomes another one's successor."""
    state = decoder.start(features).repeat(len(tokens) // len(features))
    for t in range(tokens.shape[1]):
        logits, state, _ = decoder.step(tokens[:, t], state)
        state = state.reorder(reorder)
    return logits


def whole_prefix(decoder: Decoder, features: ImageFeatures, tokens: Tensor, reorder: Tensor) -> Tensor:
    """Every word anew from the first, and from the photo; only the last word's logits are used."""
    for t in range(tokens.shape[1]):
        logits = decoder(features, tokens[:, : t + 1]).logits[:, -1]
        tokens = tokens.index_select(0, reorder)
    return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", type=int, default=16)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--words", type=int, default=20)
    parser.add_argument("--vocabulary", type=int, default=2540)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.manual_seed(0)
    decoder = build_decoder("transformer", 384, options.vocabulary, options.words + 2, width=256, blocks=3).eval()
    features = ImageFeatures(torch.randn(options.photos, 256, 384), torch.randn(options.photos, 384), 16, 16)
    rows = options.photos * options.beam
    tokens = torch.randint(4, options.vocabulary, (rows, options.words))
    reorder = torch.arange(rows)  # every beam its own successor: copied all the same, and both sides stay comparable
    times: dict[str, list[float]] = {"whole prefix": [], "cached": []}
    with torch.inference_mode():
        for round_number in range(options.rounds + 1):
            results = []
            for name, work in zip(times, (whole_prefix, step_by_step)):  # in turn: a busy machine slows both alike
                began = time.perf_counter()
                results.append(work(decoder, features, tokens, reorder))
                if round_number:  # the first is warming up
                    times[name].append(time.perf_counter() - began)
            assert torch.allclose(results[0], results[1], atol=1e-4)
    whole, cached = (statistics.median(times[name]) for name in times)
    print(f"{'':20}{'ms':>8}")
    print(f"{'whole prefix':20}{whole * 1e3:8.0f}")
    print(f"{'cached':20}{cached * 1e3:8.0f}")
    print(f"{'ratio':20}{whole / cached:8.2f}")


if __name__ == "__main__":
    main()
