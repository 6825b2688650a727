"""Show and Tell's decoder (Vinyals et al., 2015): the photo's vector is the first input of an LSTM, and the only one.

The batch norm after its projection follows the tutorial "CNN + LSTM Image Captioning: No Transformers, No Vibes, Just
Math".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sightline.decoding.hypotheses import DecoderState
from sightline.nn.decoders.base import Decoder, Embedding, captions_per_photo
from sightline.types import DecoderOutput, ImageFeatures


class LSTM(Decoder):
    uses_grid = False

    def __init__(
        self,
        features: int,
        embedding: Embedding,
        max_length: int,
        width: int = 256,
        hidden: int = 256,
        dropout: float = 0.5,
    ):
        super().__init__()
        self.max_length = max_length
        self.vocabulary = embedding.vectors.num_embeddings
        self.photo = nn.Linear(features, width)
        self.photo_norm = nn.BatchNorm1d(width)
        self.embedding = embedding
        self.cell = nn.LSTM(width, hidden, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, self.vocabulary)

    def _photo(self, features: ImageFeatures) -> Tensor:
        return self.photo_norm(self.photo(features.pooled))  # (B, width)

    def forward(self, features: ImageFeatures, tokens: Tensor) -> DecoderOutput:
        photo = self._photo(features).repeat_interleave(captions_per_photo(len(tokens), len(features)), 0)
        sequence = torch.cat([photo[:, None], self.embedding(tokens)], dim=1)  # [photo | w_0 | ... | w_T]
        hidden, _ = self.cell(self.dropout(sequence))
        return DecoderOutput(self.output(self.dropout(hidden[:, 1:])))  # what follows the photo is the start token

    def start(self, features: ImageFeatures) -> DecoderState:
        _, (hidden, cell) = self.cell(self._photo(features)[:, None])
        return DecoderState({}, {"hidden": hidden[0], "cell": cell[0]})

    def step(self, token: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState, dict[str, Tensor]]:
        before = (state.hypotheses["hidden"][None], state.hypotheses["cell"][None])
        output, (hidden, cell) = self.cell(self.embedding(token)[:, None], before)
        return self.output(output[:, 0]), DecoderState({}, {"hidden": hidden[0], "cell": cell[0]}), {}
