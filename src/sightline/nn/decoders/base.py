"""The contract of every decoder: all words at once for training (``forward``), one by one for captioning (``step``)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sightline.types import DecoderOutput, DecoderState, ImageFeatures


class Decoder(nn.Module):
    uses_grid: bool = True  # False: only the pooled vector is needed, and only that is cached
    vocabulary: int
    max_length: int  # tokens of a caption, start and end included
    spec: dict[str, Any]  # rebuilds the same network without its weights

    def forward(self, features: ImageFeatures, tokens: Tensor) -> DecoderOutput:
        """Features of B photos and (B*K, T) tokens, the K captions of a photo being neighbours."""
        raise NotImplementedError

    def start(self, features: ImageFeatures) -> DecoderState:
        """What is computed once per photo, and one fresh hypothesis for each."""
        raise NotImplementedError

    def step(self, token: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState, dict[str, Tensor]]:
        """One word more for each hypothesis: logits (R, V), the new state, and attention (R, N) or gate (R,) if any."""
        raise NotImplementedError


def captions_per_photo(rows: int, photos: int) -> int:
    assert rows % photos == 0, f"{rows} rows are not a whole number of captions for {photos} photos"
    return rows // photos
