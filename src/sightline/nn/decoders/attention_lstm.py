"""Show, Attend and Tell (Xu et al., 2015): an LSTM that looks at one place of the photo, or a blend, for every word.

Section 3.1.2 (LSTM, deep output), 4.1 (hard attention), 4.2 (soft attention with the gate). The gate is there in both
modes, as in the authors' own program, so that hard attention can start from what soft attention learnt. Departures from
the paper: the annotation vectors pass a layer norm first (networks differ in scale by orders of magnitude), and the
initial states come from one linear layer with tanh each.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.nn.decoders.base import Decoder, captions_per_photo
from sightline.nn.decoders.embeddings import Embedding
from sightline.types import DecoderOutput, DecoderState, ImageFeatures


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
        look: Literal["expectation", "most-likely"] = "expectation",
    ):
        super().__init__()
        self.mode, self.look, self.max_length = mode, look, max_length
        self.expectation = 0.5  # share of rows trained on the expected place; the hard-attention objective sets it
        self.vocabulary = embedding.vectors.num_embeddings
        self.norm = nn.LayerNorm(features)
        self.first_hidden = nn.Linear(features, hidden)
        self.first_cell = nn.Linear(features, hidden)
        self.embedding = embedding
        # f_att(a, h) = v' tanh(W_a a + W_h h + b)
        self.place = nn.Linear(features, attention)
        self.query = nn.Linear(hidden, attention, bias=False)
        self.energy = nn.Linear(attention, 1, bias=False)
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
        # The norm's scale and shift act after blending and inside ``place``: cached features then need no gradient.
        annotations = F.layer_norm(features.grid, self.norm.normalized_shape, eps=self.norm.eps)  # (B, N, D)
        places = F.linear(annotations, 2 * self.place.weight * self.norm.weight, 2 * self.place(self.norm.bias))
        mean = self._scaled(annotations.mean(1))
        return DecoderState(
            {"annotations": annotations, "places": places},  # projected once, not at every word
            {"hidden": torch.tanh(self.first_hidden(mean)), "cell": torch.tanh(self.first_cell(mean))},
        )

    def _scaled(self, blend: Tensor) -> Tensor:
        """The layer norm's scale and shift for a blend of annotation vectors whose weights sum to 1."""
        return torch.addcmul(self.norm.bias, self.norm.weight, blend)

    def forward(self, features: ImageFeatures, tokens: Tensor) -> DecoderOutput:
        state = self.start(features).repeat(captions_per_photo(len(tokens), len(features)))
        words = self.embedding(tokens)  # (R, T, width)
        word_gates = self.from_word(self.dropout(words))
        expected = self._rows_on_expectation(len(tokens), tokens.device)
        collected: dict[str, list[Tensor]] = {}
        for t in range(tokens.shape[1]):
            state, seen = self._attend_and_advance(word_gates[:, t], state, expected)
            for name, value in seen.items():
                collected.setdefault(name, []).append(value)
        seen = {name: torch.stack(values, 1) for name, values in collected.items()}  # each (R, T, ...)
        logits = self._predict(words, seen.pop("hidden"), seen.pop("context"))  # all words at once
        extras = {} if expected is None else {"on_expectation": expected}
        return DecoderOutput(logits, seen.pop("attention"), seen | extras)

    def step(self, token: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState, dict[str, Tensor]]:
        word = self.embedding(token)
        state, seen = self._attend_and_advance(self.from_word(word), state, None)
        return self._predict(word, seen.pop("hidden"), seen.pop("context")), state, seen

    def _attend_and_advance(
        self, word_gates: Tensor, state: DecoderState, expected: Tensor | None
    ) -> tuple[DecoderState, dict[str, Tensor]]:
        hidden, cell = state.hypotheses["hidden"], state.hypotheses["cell"]
        context, seen = self._look(hidden, state, expected)
        gates = word_gates + self.from_state(torch.cat([context, hidden], dim=1))
        into, forget, new, out = gates.chunk(4, dim=1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(into) * torch.tanh(new)
        hidden = torch.sigmoid(out) * torch.tanh(cell)
        seen |= {"hidden": hidden, "context": context}
        return DecoderState(state.encoder_cache, {"hidden": hidden, "cell": cell}), seen

    def _look(self, hidden: Tensor, state: DecoderState, expected: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The context z_t of each row (R, D), with attention (R, N) and what the mode adds."""
        annotations, places = state.encoder_cache["annotations"], state.encoder_cache["places"]
        photos, count, _ = annotations.shape
        query = 2 * self.query(hidden).view(photos, -1, 1, places.shape[-1])  # (B, K, 1, A)
        # tanh(x) is 2 sigmoid(2x) - 1: on a CPU a third of the time; v' (-1) is the same everywhere, softmax drops it
        energy = 2 * self.energy((places[:, None] + query).sigmoid_()).squeeze(-1)  # (B, K, N)
        weights = energy.softmax(-1)
        seen = {"attention": weights.reshape(-1, count)}
        if self.mode == "hard":
            weights = self._choose(energy.reshape(-1, count), expected, seen).view_as(weights)
        context = self._scaled(weights @ annotations).flatten(0, 1)  # (R, D)
        if self.gate is not None:
            gate = torch.sigmoid(self.gate(hidden))
            context, seen["gate"] = gate * context, gate.squeeze(1)
        return context, seen

    def _choose(self, energy: Tensor, expected: Tensor | None, seen: dict[str, Tensor]) -> Tensor:
        """Hard attention's weights: one place drawn while training; the expectation or most likely place otherwise."""
        log_weights = energy.log_softmax(-1)
        weights = log_weights.exp()
        if expected is None:
            if self.look == "expectation":
                return weights
            return torch.zeros_like(weights).scatter(1, energy.argmax(1, keepdim=True), 1.0)
        place = torch.multinomial(weights.detach(), 1)  # (R, 1)
        seen["place"] = place.squeeze(1)
        seen["place_log_prob"] = log_weights.gather(1, place).squeeze(1)
        seen["place_entropy"] = -(weights * log_weights).sum(1)
        drawn = torch.zeros_like(weights).scatter(1, place, 1.0)
        return torch.where(expected[:, None], weights, drawn)

    def _rows_on_expectation(self, rows: int, device: torch.device) -> Tensor | None:
        if self.mode == "soft" or not self.training:
            return None
        return torch.rand(rows, device=device) < self.expectation

    def _predict(self, word: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        deep = word + self.output_hidden(self.dropout(hidden)) + self.output_context(context)
        return self.output(self.dropout(deep))
