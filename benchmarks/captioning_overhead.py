"""What captioning costs beyond the encoder: features and beam search, against its bare forward pass.

    SIGHTLINE_WEIGHTS=weights/ python benchmarks/captioning_overhead.py

64 photos in batches of 16, from preprocessed pixels to finished captions with attention, beam 3, a transformer of
width 256 with 3 blocks and 2,540 words. The decoder is random, so its end token is made likelier with every word: that
ends captions at a natural length, which is printed. Weights are used where the folder has them: they change no timing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

from sightline.decoding import DecodingOptions, decode
from sightline.decoding.hypotheses import DecoderState
from sightline.engine.torch_backend import TorchDecoder
from sightline.nn.checkpoint import CaptionModel
from sightline.nn.decoders import build_decoder
from sightline.nn.encoders import build_encoder
from sightline.tokenizers import Tokenizer
from sightline.types import ImageFeatures

WEIGHTS = {"dinov2-vits14": "dinov2_vits14.safetensors", "resnet50": "resnet50.safetensors"}


class EndingDecoder:
    """A decoder's ``start`` and ``step``, with the end likelier at every word."""

    def __init__(self, model: CaptionModel, rise: float):
        self.decoder, self.rise, self.words = model.decoder, rise, 0

    def start(self, features: ImageFeatures) -> DecoderState:
        self.words = 0
        return self.decoder.start(features)

    def step(self, token: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState, dict[str, Tensor]]:
        logits, state, extras = self.decoder.step(token, state)
        logits[:, Tokenizer.end] += self.rise * (self.words - 10)
        self.words += 1
        return logits, state, extras


@torch.inference_mode()
def encode(model: CaptionModel, photos: Tensor, batch: int) -> None:
    for part in photos.split(batch):
        model.encoder(part)


@torch.inference_mode()
def caption(model: CaptionModel, photos: Tensor, batch: int, beam: int) -> list[int]:
    """The captions' lengths in words."""
    decoder = TorchDecoder(EndingDecoder(model, rise=2.0))
    lengths = []
    for part in photos.split(batch):
        found = decode(decoder, model.features(part), DecodingOptions(beam=beam))
        lengths += [len(hypotheses[0].tokens) for hypotheses in found]
    return lengths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoders", nargs="+", default=list(WEIGHTS))
    parser.add_argument("--photos", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--beam", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    print(f"{'':16}{'encoder, s':>12}{'captions, s':>13}{'ratio':>8}{'words':>8}", flush=True)
    for name in options.encoders:
        file = Path(os.environ.get("SIGHTLINE_WEIGHTS", "")) / WEIGHTS.get(name, "none")
        encoder = build_encoder(name, weights=str(file) if file.is_file() else "random")
        decoder = build_decoder("transformer", encoder.dimension, 2540, 22, width=256, blocks=3)
        model = CaptionModel(encoder, decoder).eval()
        size = encoder.preprocess.size
        photos = torch.randn(options.photos, 3, size, size)
        bare, whole, ratios = [], [], []
        lengths = caption(model, photos[: options.batch], options.batch, options.beam)  # warming up
        for _ in range(options.rounds):  # in turn, so that a busy machine slows both alike
            began = time.perf_counter()
            encode(model, photos, options.batch)
            encoded = time.perf_counter()
            lengths = caption(model, photos, options.batch, options.beam)
            bare.append(encoded - began)
            whole.append(time.perf_counter() - encoded)
            ratios.append(whole[-1] / bare[-1])
        seconds, ratio = [statistics.median(values) for values in (bare, whole)], statistics.median(ratios)
        print(f"{name:16}{seconds[0]:12.2f}{seconds[1]:13.2f}{ratio:8.3f}{statistics.mean(lengths):8.1f}", flush=True)


if __name__ == "__main__":
    main()
