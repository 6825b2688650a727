"""Show, Attend and Tell (Xu et al., 2015): an LSTM that attends to the photo's grid cells anew for every word.

Section 3.1.2 (LSTM, deep output), 4.1 (hard attention: one cell), 4.2 (soft attention: a weighted mean, with a gate).
The gate exists in both modes, as in the authors' own program, so that hard attention can start from trained soft
attention. The score of a cell a for a hidden state h is the paper's perceptron, v' tanh(W_a a + W_h h + b), or with
``score="bilinear"`` a' W h (Luong et al., 2015). Departures from the paper: the annotation vectors pass a layer norm
first (networks differ in scale by orders of magnitude), and the initial states come from one linear layer with tanh
each.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.decoding.hypotheses import DecoderState
from sightline.nn.decoders.base import Decoder, Embedding, captions_per_photo
from sightline.types import DecoderOutput, ImageFeatures


class AttentionLSTM(Decoder):
    def __init__(
        self,
        features: int,
        embedding: Embedding,
        max_length: int,
        width: int = 512,
        mode: Literal["soft", "hard"] = "soft",
        hidden: int = 512,
        attention: int = 512,
        dropout: float = 0.5,
        gate: bool = True,
        attend: Literal["expectation", "most-likely"] = "expectation",
        score: Literal["additive", "bilinear"] = "additive",
    ):
        super().__init__()
        self.mode, self.attend, self.score, self.max_length = mode, attend, score, max_length
        self.expectation = 0.5  # share of rows trained on the expected context; the hard-attention objective sets it
        self.vocabulary = embedding.vectors.num_embeddings
        self.norm = nn.LayerNorm(features)
        self.first_hidden = nn.Linear(features, hidden)
        self.first_cell = nn.Linear(features, hidden)
        self.embedding = embedding
        if score == "additive":  # f_att(a, h) = v' tanh(W_a a + W_h h + b)
            self.key = nn.Linear(features, attention)
            self.query = nn.Linear(hidden, attention, bias=False)
            self.energy = nn.Linear(attention, 1, bias=False)
        else:  # f_att(a, h) = a' W h
            self.key = nn.Linear(features, hidden, bias=False)
        self.gate = nn.Linear(hidden, 1) if gate else None
        # The four LSTM gates, by input: previous word, context and previous hidden state
        self.from_word = nn.Linear(width, 4 * hidden)
        self.from_state = nn.Linear(features + hidden, 4 * hidden, bias=False)
        # Deep output: L_o (E y + L_h h + L_z z)
        self.output_hidden = nn.Linear(hidden, width, bias=False)
        self.output_context = nn.Linear(features, width, bias=False)
        self.output = nn.Linear(width, self.vocabulary)
        self.dropout = nn.Dropout(dropout)

    def start(self, features: ImageFeatures) -> DecoderState:
        # The norm's scale and shift are applied to the weighted mean and inside ``key``: cached features then need no
        # gradient. A factor of 2 belongs to the sigmoid that stands for tanh in ``_energy``.
        annotations = F.layer_norm(features.grid, self.norm.normalized_shape, eps=self.norm.eps)  # (B, N, D)
        factor = 2 if self.score == "additive" else 1
        keys = F.linear(annotations, factor * self.key.weight * self.norm.weight, factor * self.key(self.norm.bias))
        mean = self._scaled(annotations.mean(1))
        return DecoderState(
            {"annotations": annotations, "keys": keys},  # projected once, not at every word
            {"hidden": torch.tanh(self.first_hidden(mean)), "cell": torch.tanh(self.first_cell(mean))},
        )

    def _scaled(self, mean: Tensor) -> Tensor:
        """The layer norm's scale and shift for a weighted mean of annotation vectors, its weights summing to 1."""
        return torch.addcmul(self.norm.bias, self.norm.weight, mean)

    def forward(self, features: ImageFeatures, tokens: Tensor) -> DecoderOutput:
        state = self.start(features).repeat(captions_per_photo(len(tokens), len(features)))
        words = self.embedding(tokens)  # (R, T, width)
        word_gates = self.from_word(self.dropout(words))
        expected = self._rows_on_expectation(len(tokens), tokens.device)
        collected: dict[str, list[Tensor]] = {}
        for t in range(tokens.shape[1]):
            state, outputs = self._advance(word_gates[:, t], state, expected)
            for name, value in outputs.items():
                collected.setdefault(name, []).append(value)
        outputs = {name: torch.stack(values, 1) for name, values in collected.items()}  # each (R, T, ...)
        logits = self._predict(words, outputs.pop("hidden"), outputs.pop("context"))  # all words at once
        extras = {} if expected is None else {"on_expectation": expected}
        return DecoderOutput(logits, outputs.pop("attention"), outputs | extras)

    def step(self, token: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState, dict[str, Tensor]]:
        word = self.embedding(token)
        state, outputs = self._advance(self.from_word(word), state, None)
        return self._predict(word, outputs.pop("hidden"), outputs.pop("context")), state, outputs

    def _advance(
        self, word_gates: Tensor, state: DecoderState, expected: Tensor | None
    ) -> tuple[DecoderState, dict[str, Tensor]]:
        hidden, cell = state.hypotheses["hidden"], state.hypotheses["cell"]
        context, outputs = self._context(hidden, state, expected)
        gates = word_gates + self.from_state(torch.cat([context, hidden], dim=1))
        into, forget, new, out = gates.chunk(4, dim=1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(into) * torch.tanh(new)
        hidden = torch.sigmoid(out) * torch.tanh(cell)
        outputs |= {"hidden": hidden, "context": context}
        return DecoderState(state.encoder_cache, {"hidden": hidden, "cell": cell}), outputs

    def _context(
        self, hidden: Tensor, state: DecoderState, expected: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The context z_t of each row (R, D), with attention (R, N) and what the mode adds."""
        annotations, keys = state.encoder_cache["annotations"], state.encoder_cache["keys"]
        count = annotations.shape[1]
        energy = self._energy(hidden, keys)
        weights = energy.softmax(-1)
        outputs = {"attention": weights.reshape(-1, count)}
        if self.mode == "hard":
            weights = self._choose(energy.reshape(-1, count), expected, outputs).view_as(weights)
        context = self._scaled(weights @ annotations).flatten(0, 1)  # (R, D)
        if self.gate is not None:
            gate = torch.sigmoid(self.gate(hidden))
            context, outputs["gate"] = gate * context, gate.squeeze(1)
        return context, outputs

    def _energy(self, hidden: Tensor, keys: Tensor) -> Tensor:
        """The score of each cell for each of a photo's K rows: (B, K, N)."""
        rows = hidden.view(keys.shape[0], -1, hidden.shape[-1])  # (B, K, hidden)
        if self.score == "bilinear":
            return rows @ keys.transpose(1, 2)
        query = 2 * self.query(rows)[:, :, None]  # (B, K, 1, A)
        # v' tanh(x) with tanh(x) = 2 sigmoid(2x) - 1, which takes a third of the time on a CPU; the -1 adds the same to
        # every cell, and softmax drops it
        return 2 * self.energy((keys[:, None] + query).sigmoid_()).squeeze(-1)

    def _choose(self, energy: Tensor, expected: Tensor | None, outputs: dict[str, Tensor]) -> Tensor:
        """Hard attention's weights: one cell drawn while training; the expectation or most likely cell otherwise."""
        log_weights = energy.log_softmax(-1)
        weights = log_weights.exp()
        if expected is None:
            if self.attend == "expectation":
                return weights
            return torch.zeros_like(weights).scatter(1, energy.argmax(1, keepdim=True), 1.0)
        location = torch.multinomial(weights.detach(), 1)  # (R, 1)
        outputs["location"] = location.squeeze(1)
        outputs["location_log_prob"] = log_weights.gather(1, location).squeeze(1)
        outputs["location_entropy"] = -(weights * log_weights).sum(1)
        drawn = torch.zeros_like(weights).scatter(1, location, 1.0)
        return torch.where(expected[:, None], weights, drawn)

    def _rows_on_expectation(self, rows: int, device: torch.device) -> Tensor | None:
        if self.mode == "soft" or not self.training:
            return None
        return torch.rand(rows, device=device) < self.expectation

    def _predict(self, word: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        deep = word + self.output_hidden(self.dropout(hidden)) + self.output_context(context)
        return self.output(self.dropout(deep))
