"""How many captions a second soft attention trains on, against the usual loop over words.

    python benchmarks/attention_training.py

Show, Attend and Tell over cached 14x14x512 features in batches of 64 captions of one length: forward, backward and an
Adam step. The other side does what the well-known tutorials do: at every word it projects all annotation vectors anew
and computes the output layer. Once with the tutorials' network, which is smaller than ours (no layer norm, no deep
output layer, one dropout), once with exactly ours: the same weights give the same logits, which is checked. Our side
uses our trainer's fused Adam, the loops torch's default.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sightline.data.loader import Batch
from sightline.nn.decoders import AttentionLSTM, Decoder, Embedding
from sightline.training.objectives import CrossEntropy
from sightline.training.optimization import build_optimizer
from sightline.types import DecoderOutput, ImageFeatures

SIZE = 512  # of annotation vectors, word vectors, hidden state and attention


class TutorialLoop(nn.Module):
    """The tutorials' network: attention, an LSTM cell and the output layer, all called at every word."""

    def __init__(self, vocabulary: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, SIZE)
        self.key, self.query, self.energy = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 1)
        self.first_hidden, self.first_cell = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.gate = nn.Linear(SIZE, SIZE)
        self.cell = nn.LSTMCell(2 * SIZE, SIZE)
        self.dropout = nn.Dropout(0.5)
        self.output = nn.Linear(SIZE, vocabulary)

    def forward(self, features: ImageFeatures, tokens: Tensor) -> DecoderOutput:
        grid, words = features.grid, self.embedding(tokens)
        mean = grid.mean(1)
        hidden, cell = self.first_hidden(mean), self.first_cell(mean)
        logits = grid.new_zeros(*tokens.shape, self.output.out_features)
        attention = grid.new_zeros(*tokens.shape, grid.shape[1])
        for t in range(tokens.shape[1]):
            energy = self.energy(torch.tanh(self.key(grid) + self.query(hidden)[:, None])).squeeze(2)
            weights = energy.softmax(1)
            context = torch.sigmoid(self.gate(hidden)) * (grid * weights[:, :, None]).sum(1)
            hidden, cell = self.cell(torch.cat([words[:, t], context], 1), (hidden, cell))
            logits[:, t] = self.output(self.dropout(hidden))
            attention[:, t] = weights
        return DecoderOutput(logits, attention)


class OurLoop(AttentionLSTM):
    """Our network, equation by equation at every word."""

    def forward(self, features: ImageFeatures, tokens: Tensor) -> DecoderOutput:
        annotations = self.norm(features.grid)
        mean = annotations.mean(1)
        hidden, cell = torch.tanh(self.first_hidden(mean)), torch.tanh(self.first_cell(mean))
        logits, attention = [], []
        assert self.gate is not None
        for token in tokens.unbind(1):
            word = self.embedding(token)
            energy = self.energy(torch.tanh(self.key(annotations) + self.query(hidden)[:, None])).squeeze(2)
            weights = energy.softmax(1)
            context = torch.sigmoid(self.gate(hidden)) * (annotations * weights[:, :, None]).sum(1)
            gates = self.from_word(self.dropout(word)) + self.from_state(torch.cat([context, hidden], 1))
            into, forget, new, out = gates.chunk(4, dim=1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(into) * torch.tanh(new)
            hidden = torch.sigmoid(out) * torch.tanh(cell)
            deep = word + self.output_hidden(self.dropout(hidden)) + self.output_context(context)
            logits.append(self.output(self.dropout(deep)))
            attention.append(weights)
        return DecoderOutput(torch.stack(logits, 1), torch.stack(attention, 1))


def training(decoder: nn.Module, batch: Batch, fused: bool) -> Callable[[], None]:
    """One update of the weights, each time it is called."""
    objective = CrossEntropy(pad=0, doubly_stochastic=1.0)
    rates = {"learning_rate": 4e-4, "encoder_rate": 0.0, "weight_decay": 0.0}
    adam = build_optimizer(decoder, "adam", **rates) if fused else torch.optim.Adam(decoder.parameters(), lr=4e-4)

    def update() -> None:
        loss, _ = objective(decoder, batch)
        adam.zero_grad()
        loss.backward()
        adam.step()

    return update


@torch.no_grad()
def check_equal(ours: Decoder, loop: Decoder, batch: Batch) -> None:
    loop.load_state_dict(ours.state_dict())
    results = [decoder.eval()(batch.photos, batch.tokens[:, :-1]) for decoder in (ours, loop)]
    assert torch.allclose(results[0].logits, results[1].logits, atol=1e-4)
    assert torch.allclose(results[0].attention, results[1].attention, atol=1e-5)
    ours.train(), loop.train()


def seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--captions", type=int, default=64, help="in a batch")
    parser.add_argument("--words", type=int, default=12, help="of a caption")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.manual_seed(0)
    length = options.words + 2  # with start and end
    grid = torch.randn(options.captions, 14 * 14, SIZE)
    tokens = torch.randint(4, options.vocabulary, (options.captions, length))
    words = tokens[:, 1:].numel()
    batch = Batch(ImageFeatures(grid, grid.mean(1), 14, 14), tokens, (), words, options.captions)
    ours, loop = (kind(SIZE, Embedding(options.vocabulary, SIZE), length) for kind in (AttentionLSTM, OurLoop))
    check_equal(ours, loop, batch)
    updates = {
        "tutorials' loop": training(TutorialLoop(options.vocabulary), batch, fused=False),
        "our network as a loop": training(loop, batch, fused=False),
        "Sightline": training(ours, batch, fused=True),
    }
    times: dict[str, list[float]] = {name: [] for name in updates}
    for round_number in range(options.rounds + 1):
        for name, update in updates.items():  # in turn, so that a busy machine slows all alike
            took = seconds(update)
            if round_number:  # the first is warming up
                times[name].append(took)
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"{'':24}{'captions / s':>14}{'Sightline is':>16}")
    for name, median in medians.items():
        print(f"{name:24}{options.captions / median:14.1f}{median / medians['Sightline']:14.2f} x")


if __name__ == "__main__":
    main()
