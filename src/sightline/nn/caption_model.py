"""An encoder and a decoder as one network. Nothing else: decoding, training and files live elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sightline.nn.decoders import Decoder
from sightline.nn.encoders import Encoder
from sightline.types import DecoderOutput, ImageFeatures


class CaptionModel(nn.Module):
    def __init__(self, encoder: Encoder, decoder: Decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, photos: Tensor | ImageFeatures, tokens: Tensor) -> DecoderOutput:
        """Teacher forcing: pixels (B, 3, S, S) or ready features of B photos, tokens (B*K, T)."""
        return self.decoder(self.features(photos), tokens)

    def features(self, photos: Tensor | ImageFeatures) -> ImageFeatures:
        if isinstance(photos, ImageFeatures):
            return photos
        if self.encoder.trained and torch.is_grad_enabled():
            return self.encoder(photos)
        with torch.no_grad():
            return self.encoder(photos)

    def count(self) -> tuple[int, int]:
        """All parameters, and those that are trained."""
        every = list(self.parameters())
        return sum(p.numel() for p in every), sum(p.numel() for p in every if p.requires_grad)
