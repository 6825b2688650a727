"""A model computed by torch, on any of its devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sightline.decoding.hypotheses import DecoderState, StepDecoder
from sightline.engine.backend import Backend
from sightline.io.model_files import checkpoint_hash
from sightline.nn.checkpoint import Checkpoint
from sightline.nn.decoders.base import Decoder
from sightline.types import ImageFeatures

CPU_BATCH = 4  # photos encoded at once on a CPU: 16 do not fit into its caches and take a quarter longer each
UNLIMITED = 1000


class TorchDecoder(StepDecoder):
    """A decoder network as a search calls it: arrays in, arrays out. Its states stay tensors, on its device."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    @torch.inference_mode()
    def start(self, features: Any) -> DecoderState:
        return self.decoder.start(features)

    @torch.inference_mode()
    def step(self, tokens: np.ndarray, state: DecoderState) -> tuple[np.ndarray, DecoderState, dict[str, np.ndarray]]:
        device = next(iter(state.hypotheses.values())).device
        logits, state, extras = self.decoder.step(torch.from_numpy(tokens).to(device), state)
        # ``numpy`` gives a view where a tensor lies in memory as float32 already
        arrays = {name: value.float().cpu().numpy() for name, value in extras.items()}
        return logits.float().cpu().numpy(), state, arrays


class TorchBackend(TorchDecoder, Backend):
    """A checkpoint on a device."""

    runtime = "torch"
    batch_size = UNLIMITED  # ``encode`` makes batches of its own

    def __init__(self, checkpoint: Checkpoint, device: str | torch.device = "cpu") -> None:
        self.model = checkpoint.model.to(device).eval()
        super().__init__(self.model.decoder)
        self.device = str(device)
        self.preprocess, self.dimension = self.model.encoder.preprocess, self.model.encoder.dimension
        self.tokenizer, self.decoding, self.folder = checkpoint.tokenizer, checkpoint.decoding, checkpoint.folder
        self.parameters = self.model.count()[0]

    def signature(self) -> str:
        return checkpoint_hash(self.folder) if self.folder else ""

    @torch.inference_mode()
    def encode(self, pixels: np.ndarray) -> ImageFeatures:
        size = CPU_BATCH if self.device == "cpu" else len(pixels)
        parts = torch.split(torch.from_numpy(pixels).to(self.device), size)
        return ImageFeatures.joined([self.model.encoder(part) for part in parts])

    def with_threads(self, threads: int) -> None:
        return None
