"""A torch decoder with numpy at the door. Its states stay torch's own, on the network's device."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sightline.decoding.steps import StepDecoder
from sightline.types import DecoderState


class TorchDecoder(Protocol):
    """``start`` and ``step`` as every network here has them."""

    def start(self, features: Any) -> DecoderState: ...

    def step(self, token: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState, dict[str, Tensor]]: ...


class TorchSteps(StepDecoder):
    def __init__(self, decoder: TorchDecoder) -> None:
        self.decoder = decoder

    @torch.inference_mode()
    def start(self, features: Any) -> DecoderState:
        return self.decoder.start(features)

    @torch.inference_mode()
    def step(self, tokens: np.ndarray, state: DecoderState) -> tuple[np.ndarray, DecoderState, dict[str, np.ndarray]]:
        device = next(iter(state.beam.values())).device
        logits, state, extras = self.decoder.step(torch.from_numpy(tokens).to(device), state)
        return _array(logits), state, {name: _array(value) for name, value in extras.items()}


def _array(value: Tensor) -> np.ndarray:
    return value.float().cpu().numpy()  # a view where it lies in memory as float32 already
