"""A transformer decoder (Vaswani et al., 2017): words attend to earlier words and, by cross-attention, to the photo.

Its attention maps do not show weights: idle heads put theirs on cells whose vectors are almost zero. With
``attention_maps="norms"`` (Kobayashi et al., 2020) a grid cell shows its attention weight times the length of the
vector that this weight multiplies. With ``"evidence"`` it shows how much of that vector speaks for the word: by how
much it raises the logit of the most likely word above those of its rivals (direct logit attribution, Elhage et al.,
2021). What a head says against the word counts as zero.

Its pre-norm blocks serve the patch encoder, too. Queries, keys and values have no bias and the output projection has
one. So a block of width 128 has as many parameters as in the image-captioning tutorial of the repository "learn-llm"
(train-image-caption.py), whose models the patch-transformer recipes rebuild: 197,888 for the encoder, 263,808 for the
decoder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.decoding.hypotheses import DecoderState
from sightline.errors import ConfigError
from sightline.nn.decoders.base import Decoder, Embedding
from sightline.tokenizers import Tokenizer
from sightline.types import DecoderOutput, ImageFeatures

AttentionMaps = Literal["norms", "evidence"]
RIVALS = 7  # words that the most likely one is compared with


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

    def evidence(self, direction: Tensor, values: Tensor) -> Tensor:
        """How far the vector that each cell adds at an attention weight of 1 goes in ``direction`` (R, D).

        Values are those of B photos, R = B * K; returns (R, heads, N), negative where it goes the other way.
        """
        shared = (direction @ self.output.weight).reshape(values.shape[0], -1, direction.shape[-1])  # (B, K, D)
        return (self._split(shared) @ values.transpose(-2, -1)).transpose(1, 2).flatten(0, 1)

    def _mix(self, query: Tensor, keys: Tensor, values: Tensor, causal: bool = False) -> Tensor:
        query = self._split(query)
        # On a CPU torch's fused kernel has a slow gradient in bfloat16: the plain form takes a fifth to a half of the
        # time at the lengths of captions and grids.
        plain = query.dtype == torch.bfloat16 and query.requires_grad and query.device.type == "cpu"
        attend = plain_attention if plain else F.scaled_dot_product_attention
        return self._join(attend(query, keys, values, is_causal=causal))

    def _split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)  # (B, heads, T, D / heads)

    @staticmethod
    def _join(x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)  # (B, T, D)


def plain_attention(query: Tensor, keys: Tensor, values: Tensor, is_causal: bool = False) -> Tensor:
    """softmax(q k' / sqrt(d)) v, as torch's fused kernel computes it."""
    scores = (query * query.shape[-1] ** -0.5) @ keys.transpose(-2, -1)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores.softmax(-1) @ values


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
        attention_maps: AttentionMaps = "norms",
    ):
        super().__init__()
        if tie_output and embedding.dimension != width:
            dimension = embedding.dimension
            raise ConfigError(f"decoder.tie_output needs word vectors of decoder.width={width}, they have {dimension}")
        self.pooled, self.max_length, self.attention_maps = pooled, max_length, attention_maps
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
            if self.attention_maps == "norms":
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
            weights.append(attention)
        x = x[:, 0]
        logits = self.output(self.norm(x))
        evidence = self.attention_maps == "evidence"
        maps = self._evidence(weights, state, x, logits) if evidence else self._norms(weights, state)
        by_head = torch.stack(maps, 1)  # (R, blocks, heads, N (+ 1))
        total = by_head.mean((1, 2)).sum(-1).clamp(min=1e-12)  # zero where nothing speaks for the word
        by_head = by_head / total[:, None, None, None]  # shares that sum to 1
        if self.pooled:
            by_head = by_head[..., :-1]  # the pooled vector is no cell of the grid
        extras = {"attention": by_head.mean((1, 2)), "attention_by_head": by_head}
        return logits, DecoderState(state.encoder_cache, {"past": torch.stack(pasts, 1)}), extras

    def _norms(self, weights: Sequence[Tensor], state: DecoderState) -> list[Tensor]:
        """Of each block (R, heads, N): the length of the vector that each cell adds."""
        norms = []
        for index, attention in enumerate(weights):
            strengths = state.encoder_cache[f"strengths_{index}"]  # (B, heads, N)
            shared = attention.view(strengths.shape[0], -1, *attention.shape[1:]) * strengths[:, None]
            norms.append(shared.view_as(attention))
        return norms

    def _evidence(self, weights: Sequence[Tensor], state: DecoderState, x: Tensor, logits: Tensor) -> list[Tensor]:
        """Of each block (R, heads, N): how much each cell raises the most likely word's logit above its rivals'.

        It is, up to a factor, the gradient at x (R, D), the last block's output, times the vector that the cell adds.
        What later layers make of that vector is left out, and so is what speaks against the word.
        """
        likely = logits.topk(min(1 + RIVALS, self.vocabulary))
        vectors = self.output.weight[likely.indices]  # (R, 1 + RIVALS, D)
        rivals = (likely.values[:, 1:].softmax(-1)[..., None] * vectors[:, 1:]).sum(1)
        direction = (vectors[:, 0] - rivals) * self.norm.weight
        normed = F.layer_norm(x, x.shape[-1:])  # neither a shift of x nor its length changes this
        direction = direction - direction.mean(-1, keepdim=True) - (direction * normed).mean(-1, keepdim=True) * normed
        return [
            (attention * block.cross_attention.evidence(direction, state.encoder_cache[f"values_{index}"])).clamp(min=0)
            for index, (attention, block) in enumerate(zip(weights, self._typed_blocks()))
        ]
