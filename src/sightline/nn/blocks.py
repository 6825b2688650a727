"""Pre-norm transformer blocks shared by the patch encoder and the transformer decoder.

Queries, keys and values have no bias and the output projection has one. So a block of width 128 has as many parameters
as in the image-captioning tutorial of the repository "learn-llm" (train-image-caption.py), whose models the
patch-transformer recipes rebuild: 197,888 for the encoder, 263,808 for the decoder.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Layout:
    """Where the real words of padded captions (R, T) are. Only attention needs the padded form; all else runs on the
    (n, D) real words alone: with five captions to a photo, two in five positions of a batch are padding."""

    def __init__(self, real: Tensor):
        self.shape = real.shape
        self.index = real.flatten().nonzero().squeeze(1)
        self.position = self.index % real.shape[1]

    def pack(self, x: Tensor) -> Tensor:
        """(R, T, D) to (n, D)."""
        return x.flatten(0, 1).index_select(0, self.index)

    def unpack(self, x: Tensor) -> Tensor:
        """(n, D) to (R, T, D), zero where there is no word."""
        rows, length = self.shape
        return x.new_zeros(rows * length, x.shape[1]).index_copy(0, self.index, x).view(rows, length, -1)


class Attention(nn.Module):
    """Multi-head attention with separate key/value preparation, so that they can be computed once and kept.

    Dropout acts on what attention adds, not on its weights: a random number for each word and cell takes a fifth of
    a training step and rules out the fused kernel.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.output = nn.Linear(width, width)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, D) to keys and values, each (B, heads, N, D / heads)."""
        keys, values = self.key_value(memory).chunk(2, dim=-1)
        return self._split(keys), self._split(values)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return self.output(self._mix(self.query(x), keys, values))

    def over_words(self, x: Tensor, layout: Layout) -> Tensor:
        """Causal self-attention of packed words (n, D)."""
        keys, values = (self._split(layout.unpack(part)) for part in self.key_value(x).chunk(2, dim=-1))
        return self.output(layout.pack(self._mix(layout.unpack(self.query(x)), keys, values, causal=True)))

    def over_photo(self, x: Tensor, layout: Layout, keys: Tensor, values: Tensor) -> Tensor:
        """Packed words (n, D) attend to their photo's cells; the K captions of a photo share its keys and values."""
        query = layout.unpack(self.query(x))  # (B*K, T, D)
        mixed = self._mix(query.view(keys.shape[0], -1, query.shape[-1]), keys, values)  # (B, K*T, D)
        return self.output(layout.pack(mixed.view_as(query)))

    def with_weights(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """As ``forward``, and the attention weights (B, heads, T, N)."""
        query = self._split(self.query(x))
        weights = (query @ keys.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1)
        return self.output(self._join(weights @ values)), weights

    def strengths(self, values: Tensor) -> Tensor:
        """The length of the vector that each cell adds to a word at an attention weight of 1: (B, heads, N)."""
        output = self.output.weight.T.view(self.heads, -1, self.output.weight.shape[0])  # (heads, D / heads, D)
        return ((values @ (output @ output.transpose(1, 2))) * values).sum(-1).clamp(min=0).sqrt()

    def _mix(self, query: Tensor, keys: Tensor, values: Tensor, causal: bool = False) -> Tensor:
        return self._join(F.scaled_dot_product_attention(self._split(query), keys, values, is_causal=causal))

    def _split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)  # (B, heads, T, D / heads)

    @staticmethod
    def _join(x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)  # (B, T, D)


class FeedForward(nn.Sequential):
    def __init__(self, width: int, hidden: int, dropout: float):
        super().__init__(nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, width))


class EncoderBlock(nn.Module):
    """Self-attention over patches, then a feed-forward network."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feedforward_norm = nn.LayerNorm(width)
        self.feedforward = FeedForward(width, 4 * width, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.attention_norm(x)
        x = x + self.dropout(self.attention(normed, *self.attention.keys_values(normed)))
        return x + self.dropout(self.feedforward(self.feedforward_norm(x)))


class DecoderBlock(nn.Module):
    """Causal self-attention over words, cross-attention to the photo, then a feed-forward network."""

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float):
        super().__init__()
        self.self_norm = nn.LayerNorm(width)
        self.self_attention = Attention(width, heads)
        self.cross_norm = nn.LayerNorm(width)
        self.cross_attention = Attention(width, heads)
        self.feedforward_norm = nn.LayerNorm(width)
        self.feedforward = FeedForward(width, feedforward, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, layout: Layout, keys: Tensor, values: Tensor) -> Tensor:
        """All words at once. x (n, D), packed; keys, values (B, heads, N, d)."""
        x = x + self.dropout(self.self_attention.over_words(self.self_norm(x), layout))
        x = x + self.dropout(self.cross_attention.over_photo(self.cross_norm(x), layout, keys, values))
        return x + self.dropout(self.feedforward(self.feedforward_norm(x)))

    def step(self, x: Tensor, past: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One word more. x (R, 1, D), past (R, 2, heads, t, d); returns x, the longer past, weights (R, heads, N)."""
        normed = self.self_norm(x)
        past = torch.cat([past, torch.stack(self.self_attention.keys_values(normed), dim=1)], dim=3)
        x = x + self.self_attention(normed, past[:, 0], past[:, 1])
        shared = self.cross_norm(x).reshape(keys.shape[0], -1, x.shape[-1])  # (B, K, D): beams are the queries
        mixed, weights = self.cross_attention.with_weights(shared, keys, values)
        x = x + mixed.view_as(x)
        x = x + self.feedforward(self.feedforward_norm(x))
        return x, past, weights.transpose(1, 2).flatten(0, 1)  # (B, heads, K, N) to (R, heads, N)
