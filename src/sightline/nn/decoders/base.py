"""What every decoder has: all words at once for training (``forward``), one by one for captioning (``step``), and
word vectors.

Word vectors are learned from scratch, or GloVe's (Pennington et al., 2014), projected to the decoder's width. GloVe's
numbers are copied into the model, so a trained checkpoint no longer needs the GloVe file.
"""

from __future__ import annotations

import gzip
import logging
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sightline.decoding.hypotheses import DecoderState
from sightline.errors import ConfigError
from sightline.io.files import user_path
from sightline.types import DecoderOutput, ImageFeatures

log = logging.getLogger(__name__)


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
    path = user_path(path)
    if not path.is_file():
        raise ConfigError(f"embedding.file={str(path)!r} does not exist; give GloVe's text, e.g. glove.6B.100d.txt")
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            vectors = _parse_glove(lines, path, wanted)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as GloVe's text format, plain or .gz: {error}") from None
    if not vectors:
        raise ConfigError(f"{path} holds no vectors")
    return vectors


def _parse_glove(lines: Iterable[str], path: Path, wanted: set[str] | None) -> dict[str, Tensor]:
    vectors: dict[str, Tensor] = {}
    dimension = 0
    for number, line in enumerate(lines, 1):
        word, _, rest = line.partition(" ")
        if wanted is not None and word not in wanted and dimension:
            continue
        numbers = rest.split()
        try:
            vector = torch.tensor([float(value) for value in numbers])
        except ValueError:
            if dimension and len(numbers) > dimension:
                continue  # a few entries of the large GloVe files are several words: "at name@domain.com"
            raise ConfigError(f"{path}, line {number}: not a word and its numbers; is this GloVe's text?") from None
        dimension = dimension or len(vector)
        if not dimension or len(vector) != dimension:
            raise ConfigError(f"{path}, line {number}: {len(vector)} numbers where the first line has {dimension}")
        vectors[word] = vector
    return vectors


def glove_embedding(words: Sequence[str], width: int, file: str | None, frozen: bool = False) -> Embedding:
    if not file:
        raise ConfigError("embedding.name is 'glove' and needs a file: --set embedding.file=glove.6B.100d.txt")
    vectors = read_glove(file, set(words))
    embedding = Embedding(len(words), width, len(next(iter(vectors.values()))), frozen)
    log.info("GloVe covers %.1f %% of %d words", 100 * embedding.fill(words, vectors), len(words))
    return embedding
