"""A transformer decoder (Vaswani et al., 2017): words attend to earlier words and, by cross-attention, to the photo.

Its attention maps show norms, not weights (Kobayashi et al., 2020): the attention weight of a grid cell times the
length of the vector that it multiplies. Idle heads put their weight on cells whose vectors are almost zero; a map of
weights alone would show those cells.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from sightline.decoding.hypotheses import DecoderState
from sightline.errors import ConfigError
from sightline.nn.blocks import DecoderBlock, EncoderBlock, Layout
from sightline.nn.decoders.base import Decoder, Embedding
from sightline.tokenizers import Tokenizer
from sightline.types import DecoderOutput, ImageFeatures


class Transformer(Decoder):
    def __init__(
        self,
        features: int,
        embedding: Embedding,
        max_length: int,
        width: int = 256,
        heads: int = 8,
        blocks: int = 3,
        feedforward: int | None = None,
        dropout: float = 0.1,
        pooled: bool = True,
        tie_output: bool = False,
        photo_blocks: int = 0,
    ):
        super().__init__()
        if width % heads:
            raise ConfigError(f"decoder.heads={heads} does not divide decoder.width={width}")
        if tie_output and embedding.dimension != width:
            dimension = embedding.dimension
            raise ConfigError(f"decoder.tie_output needs word vectors of decoder.width={width}, they have {dimension}")
        self.pooled, self.max_length = pooled, max_length
        self.vocabulary = embedding.vectors.num_embeddings
        self.photo = nn.Linear(features, width) if features != width else nn.Identity()
        self.photo_blocks = nn.ModuleList(EncoderBlock(width, heads, dropout) for _ in range(photo_blocks))
        self.embedding = embedding
        self.positions = nn.Parameter(torch.randn(max_length, width) * 0.02)
        self.blocks = nn.ModuleList(
            DecoderBlock(width, heads, feedforward or 4 * width, dropout) for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, self.vocabulary)
        if tie_output:
            self.output.weight = embedding.vectors.weight
        self.dropout = nn.Dropout(dropout)

    def _typed_blocks(self) -> Iterable[DecoderBlock]:
        return cast(Iterable[DecoderBlock], self.blocks)

    def _memory(self, features: ImageFeatures) -> Tensor:
        memory = torch.cat([features.grid, features.pooled[:, None]], 1) if self.pooled else features.grid
        memory = self.photo(memory)  # (B, N (+ 1), width)
        for block in self.photo_blocks:  # self-attention over the cells of a frozen encoder
            memory = block(memory)
        return memory

    def forward(self, features: ImageFeatures, tokens: Tensor) -> DecoderOutput:
        memory, layout = self._memory(features), Layout(tokens != Tokenizer.pad)
        words = self.embedding(tokens.flatten()[layout.index])  # (n, width): padding costs nothing
        x = self.dropout(words + self.positions[layout.position])
        for block in self._typed_blocks():
            x = block(x, layout, *block.cross_attention.keys_values(memory))
        return DecoderOutput(layout.unpack(self.output(self.norm(x))))

    def start(self, features: ImageFeatures) -> DecoderState:
        memory = self._memory(features)
        photo = {}
        for index, block in enumerate(self._typed_blocks()):
            keys, values = block.cross_attention.keys_values(memory)
            # In one piece, or every step would copy them anew: a third of the whole search.
            photo[f"keys_{index}"], photo[f"values_{index}"] = keys.contiguous(), values.contiguous()
            photo[f"strengths_{index}"] = block.cross_attention.strengths(values)
        heads, size = photo["keys_0"].shape[1], photo["keys_0"].shape[3]
        past = memory.new_zeros(len(memory), len(self.blocks), 2, heads, 0, size)
        return DecoderState(photo, {"past": past})

    def step(self, token: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState, dict[str, Tensor]]:
        past = state.hypotheses["past"]  # (R, blocks, 2, heads, t, d)
        x = self.embedding(token)[:, None] + self.positions[past.shape[4]]
        pasts, weights = [], []
        for index, block in enumerate(self._typed_blocks()):
            keys, values = state.encoder_cache[f"keys_{index}"], state.encoder_cache[f"values_{index}"]
            x, longer, attention = block.step(x, past[:, index], keys, values)
            pasts.append(longer)
            norms = (
                attention.view(keys.shape[0], -1, *attention.shape[1:])
                * state.encoder_cache[f"strengths_{index}"][:, None]
            )
            weights.append(norms.view_as(attention))
        by_head = torch.stack(weights, 1)  # (R, blocks, heads, N (+ 1))
        by_head = by_head / by_head.mean((1, 2)).sum(-1)[:, None, None, None]  # shares that sum to 1
        if self.pooled:
            by_head = by_head[..., :-1]  # the pooled vector is no cell of the grid
        extras = {"attention": by_head.mean((1, 2)), "attention_by_head": by_head}
        state = DecoderState(state.encoder_cache, {"past": torch.stack(pasts, 1)})
        return self.output(self.norm(x[:, 0])), state, extras
