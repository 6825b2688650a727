"""Decoders of a few tokens whose probabilities can be enumerated, and short ways to decode with them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sightline import decoding
from sightline.decoding import DecodingOptions, Ensemble, Hypothesis
from sightline.decoding.hypotheses import DecoderState
from sightline.engine.torch_backend import TorchDecoder
from sightline.types import ImageFeatures

PAD, START, END, UNKNOWN = range(4)


class ToyDecoder(nn.Module):
    """A GRU that starts from the pooled vector and attends to the grid; ``sharpness`` spreads its probabilities."""

    def __init__(self, vocabulary: int = 9, width: int = 8, seed: int = 0, sharpness: float = 3.0):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(vocabulary, width)
        self.cell = nn.GRUCell(width, width)
        self.output = nn.Linear(width, vocabulary)
        self.sharpness = sharpness

    def start(self, features: ImageFeatures) -> DecoderState:
        return DecoderState({"grid": features.grid}, {"hidden": features.pooled})

    def step(self, token: Tensor, state: DecoderState):
        hidden = self.cell(self.embedding(token), state.hypotheses["hidden"])
        beams = len(token) // len(state.encoder_cache["grid"])
        grid = state.encoder_cache["grid"].repeat_interleave(beams, 0)
        attention = (grid @ hidden[:, :, None]).squeeze(2).softmax(1)
        logits = self.sharpness * self.output(hidden + (attention[:, :, None] * grid).sum(1))
        return (
            logits,
            DecoderState(state.encoder_cache, {"hidden": hidden}),
            {"attention": attention, "gate": hidden[:, 0]},
        )


class Chain:
    """Next-token probabilities that depend on the last token only; photos are all alike."""

    def __init__(self, table: Tensor):
        self.table = table

    def start(self, features: ImageFeatures) -> DecoderState:
        return DecoderState({}, {"none": torch.zeros(len(features), 1)})

    def step(self, token: Tensor, state: DecoderState):
        return self.table[token], state, {}


def photos(count: int, width: int = 8, seed: int = 1) -> ImageFeatures:
    generator = torch.Generator().manual_seed(seed)
    return ImageFeatures(
        torch.randn(count, 6, width, generator=generator), torch.randn(count, width, generator=generator), 2, 3
    )


def decode(network, features, options: DecodingOptions | None = None, words=None) -> list[list[Hypothesis]]:
    """The library's search with a torch network; a list of networks is an ensemble."""
    members = [TorchDecoder(member) for member in network] if isinstance(network, list | tuple) else []
    return decoding.decode(Ensemble(members) if members else TorchDecoder(network), features, options, words)


def sample(network, features: ImageFeatures, count: int, *options) -> Tensor:
    return decoding.sample(TorchDecoder(network), features, count, *options)


def texts(captions) -> list[list[list[int]]]:
    return [[hypothesis.tokens for hypothesis in photo] for photo in captions]


def sequence_log_probs(decoder, features: ImageFeatures, tokens: list[int]) -> list[float]:
    """The model's log-probability of each token, one photo, step by step."""
    state, previous, log_probs = decoder.start(features), START, []
    for token in tokens:
        logits, state, _ = decoder.step(torch.tensor([previous]), state)
        log_probs.append(logits.log_softmax(1)[0, token].item())
        previous = token
    return log_probs
