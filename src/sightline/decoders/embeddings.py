"""Word vectors: learned from scratch, or GloVe's, projected to the decoder's width (source 001, "CLIP + GloVe").

GloVe's numbers are copied into the model, so a trained checkpoint no longer needs the GloVe file.
"""

from __future__ import annotations

import gzip
import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from sightline.errors import ConfigError

log = logging.getLogger(__name__)


class Embedding(nn.Module):
    """``vocabulary`` vectors of ``dimension`` numbers, projected where the decoder's ``width`` is another."""

    def __init__(self, vocabulary: int, width: int, dimension: int | None = None, frozen: bool = False):
        super().__init__()
        self.dimension = dimension or width
        self.vectors = nn.Embedding(vocabulary, self.dimension)
        nn.init.normal_(self.vectors.weight, std=self.dimension**-0.5)
        self.vectors.weight.requires_grad_(not frozen)
        self.projection = nn.Linear(self.dimension, width) if self.dimension != width else nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.projection(self.vectors(tokens))  # (..., width)

    @torch.no_grad()
    def fill(self, words: Sequence[str], vectors: dict[str, Tensor]) -> float:
        """Copy the vectors of known words in place; returns the share of words found."""
        found = [index for index, word in enumerate(words) if word in vectors]
        if found:
            self.vectors.weight[torch.tensor(found)] = torch.stack([vectors[words[index]] for index in found])
        return len(found) / max(1, len(words))


def read_glove(path: str | Path, wanted: set[str] | None = None) -> dict[str, Tensor]:
    """Vectors in GloVe's text format (``word 0.1 0.2 ...``), plain or .gz, of the wanted words."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise ConfigError(f"embedding.file={str(path)!r} does not exist; give GloVe's text file, e.g. glove.6B.100d.txt")
    vectors: dict[str, Tensor] = {}
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            word, _, numbers = line.rstrip("\n").partition(" ")
            if wanted is not None and word not in wanted and vectors:
                continue
            try:
                vector = torch.tensor([float(value) for value in numbers.split()])
            except ValueError:
                raise ConfigError(f"{path}, line {number}: not a word and its numbers; is this a GloVe text file?") from None
            if vectors and len(vector) != len(next(iter(vectors.values()))):
                raise ConfigError(f"{path}, line {number}: {len(vector)} numbers where the lines before have another count")
            vectors[word] = vector
    if not vectors:
        raise ConfigError(f"{path} holds no vectors")
    return vectors


def glove_embedding(words: Sequence[str], width: int, file: str | None, frozen: bool = False) -> Embedding:
    if not file:
        raise ConfigError("embedding.name is 'glove' but embedding.file is not set: --set embedding.file=glove.6B.100d.txt")
    vectors = read_glove(file, set(words))
    embedding = Embedding(len(words), width, len(next(iter(vectors.values()))), frozen)
    log.info("GloVe covers %.1f %% of %d words", 100 * embedding.fill(words, vectors), len(words))
    return embedding
