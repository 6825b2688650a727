"""A retrieval datastore of captioned photos, and a decoder that is augmented with its nearest neighbours.

For a new photo the nearest photos of the datastore are retrieved. At every step their captions give a distribution of
the next word: what follows the words chosen so far, counted the more, the longer the run of words they share. It is
multiplied with the model's distribution, so that a word needs both. Averaging the two, as kNN-LM does (Khandelwal et
al. 2020, arXiv 1911.00172), copies what the photo does not show. Nothing is trained, and any backend will do: only
pooled vectors and words are needed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sightline.decoding.hypotheses import DecoderState, Features, StepDecoder, log_softmax
from sightline.engine.backend import as_array
from sightline.errors import CheckpointError, ConfigError
from sightline.io.files import atomic_folder, printable, user_path
from sightline.io.model_files import read_json
from sightline.tokenizers import Tokenizer
from sightline.types import ImageFeatures, Neighbour

CONTENTS, VECTORS = "datastore.json", "datastore.safetensors"
LARGEST = 2**30  # bytes of vectors: a million photos or so
MIN_COUNT = 2  # occurrences in the captions before a word that the model does not know may be used
CONTEXT = 3  # words before the next one that are compared
GROWTH = 4.0  # factor of a caption's count for each word of the context that it shares
SHOWN = 3  # neighbours that a caption names
SHARPNESS = 10.0  # of the neighbours' weights: exp(this * cosine)
FLOOR = 1e-3  # probability of a word that no neighbour's caption has

Weight = Annotated[float, Field(ge=0, lt=1)]
Neighbours = Annotated[int, Field(ge=1, le=1000)]


class StoredPhoto(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    captions: tuple[str, ...]


class Contents(BaseModel):
    """What ``datastore.json`` holds; people may read and edit it, but not add or drop photos."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    format: Literal["sightline-datastore-1"] = "sightline-datastore-1"
    model: str  # the weights whose encoder gave the vectors, as in score signatures
    neighbours: Neighbours = 20
    weight: Weight = 0.3  # exponent of the neighbours' distribution; the model's has the rest
    photos: tuple[StoredPhoto, ...]


@dataclass(frozen=True)
class Datastore:
    """Photos with their captions, and the pooled vectors by which they are retrieved."""

    contents: Contents
    vectors: np.ndarray  # (photos, D), as the encoder gave them

    def __post_init__(self) -> None:
        if not len(self.contents.photos):
            raise ConfigError("a datastore needs at least one captioned photo")
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.contents.photos):
            raise CheckpointError(
                f"the datastore has {len(self.contents.photos)} photos but {len(self.vectors)} vectors: build it again"
            )
        if not np.isfinite(self.vectors).all():
            raise CheckpointError("the datastore's vectors hold values that are not finite: build it again")

    def __len__(self) -> int:
        return len(self.contents.photos)

    @classmethod
    def of(cls, model: str, names: Sequence[str], captions: Sequence[Sequence[str]], vectors: np.ndarray) -> Datastore:
        """A datastore of these photos; ``model`` is the signature of the weights that gave the vectors."""
        photos = tuple(StoredPhoto(name=name, captions=tuple(texts)) for name, texts in zip(names, captions))
        return cls(Contents(model=model, photos=photos), vectors.astype(np.float16).astype(np.float32))

    def with_weight(self, weight: float) -> Datastore:
        """The same photos, interpolated with another weight."""
        if not 0 <= weight < 1:
            raise ConfigError(f"weight is {weight}; give 0 (not at all) or more, and less than 1")
        return replace(self, contents=self.contents.model_copy(update={"weight": float(weight)}))

    def save(self, folder: str | Path) -> None:
        """Both files; a datastore that is in this folder is replaced."""
        from safetensors.numpy import save

        folder = Path(folder)
        if folder.exists() and not (folder / CONTENTS).is_file():
            raise ConfigError(f"{printable(folder)} exists and holds no datastore: choose another folder")
        with atomic_folder(folder) as new:
            (new / VECTORS).write_bytes(save({"vectors": np.ascontiguousarray(self.vectors, np.float16)}))
            plain = self.contents.model_dump(mode="json")
            (new / CONTENTS).write_text(json.dumps(plain, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: str | Path) -> Datastore:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        folder = user_path(folder)
        missing = [name for name in (CONTENTS, VECTORS) if not (folder / name).is_file()]
        if missing:
            raise CheckpointError(
                f"{printable(folder)} is no datastore: {', '.join(missing)} missing; build one with "
                "`sightline retrieval build`"
            )
        try:
            contents = Contents.model_validate(read_json(folder / CONTENTS))
            if (size := (folder / VECTORS).stat().st_size) > LARGEST:
                raise CheckpointError(f"{printable(folder / VECTORS)} has {size >> 20} MB, more than {LARGEST >> 20}")
            vectors = load_file(folder / VECTORS)["vectors"].astype(np.float32)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise CheckpointError(f"{printable(folder / CONTENTS)} is damaged: {where}: {first['msg']}") from None
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            raise CheckpointError(f"{printable(folder / VECTORS)} cannot be read: {error}; build it again") from None
        return cls(contents, vectors)

    def tokenizer(self, model: Tokenizer) -> Tokenizer:
        """The model's vocabulary with the words that these captions repeat."""
        return model.extended([text for photo in self.contents.photos for text in photo.captions], MIN_COUNT)

    def signature(self) -> str:
        """A short name for exactly this datastore, for score signatures."""
        plain = json.dumps(self.contents.model_dump(mode="json"), sort_keys=True).encode()
        return f"datastore-{hashlib.sha256(plain + self.vectors.astype('<f2').tobytes()).hexdigest()[:12]}"

    def check_model(self, signature: str) -> None:
        """`ConfigError` if the vectors come from other weights: photos have other vectors there."""
        stored, given = (name.partition("/")[0] for name in (self.contents.model, signature))
        if stored != given:
            raise ConfigError(
                f"the datastore was built with the weights {stored or 'unsaved'}, the model has "
                f"{given or 'unsaved ones'}: run `sightline retrieval build` with this model"
            )


class Retriever:
    """A datastore with its captions as the tokens of one model."""

    def __init__(self, datastore: Datastore, tokenizer: Tokenizer) -> None:
        self.datastore, self.contents = datastore, datastore.contents
        self.model_size = tokenizer.size  # V; the extended vocabulary has W tokens
        self.tokenizer = tokenizer = datastore.tokenizer(tokenizer)
        vectors = datastore.vectors
        self.mean = vectors.mean(0) if len(datastore) > 1 else np.zeros(vectors.shape[1], np.float32)
        self.unit_vectors = _unit(vectors - self.mean)
        captions = [[tokenizer.encode(text) for text in photo.captions] for photo in self.contents.photos]
        most = max(map(len, captions))
        self.tokens = np.full((len(captions), most, tokenizer.max_length), Tokenizer.pad)  # (N, C, T)
        for rows, encoded in zip(self.tokens, captions):
            for row, ids in zip(rows, encoded):
                row[: len(ids)] = ids

    def find(self, pooled: Any) -> tuple[np.ndarray, np.ndarray]:
        """(B, D) vectors to the rows of each one's nearest photos and their cosines: both (B, k), nearest first."""
        vectors = as_array(pooled).astype(np.float32)
        similarity = _unit(vectors - self.mean) @ self.unit_vectors.T  # (B, N)
        rows = np.argsort(-similarity, axis=1, kind="stable")[:, : self.contents.neighbours]
        return rows, np.take_along_axis(similarity, rows, 1)

    def neighbours(self, pooled: Any) -> list[tuple[Neighbour, ...]]:
        """The first few neighbours of each photo, for people to read."""
        photos = self.contents.photos
        return [
            tuple(
                Neighbour(photos[row].name, float(similarity), photos[row].captions)
                for row, similarity in zip(rows[:SHOWN], similarities[:SHOWN])
            )
            for rows, similarities in zip(*self.find(pooled))
        ]


class RetrievalDecoder(StepDecoder):
    """A kNN-augmented decoder: its next-word distribution is multiplied with that of the neighbours' captions."""

    def __init__(self, decoder: StepDecoder, retriever: Retriever) -> None:
        self.decoder, self.retriever = decoder, retriever

    def start(self, features: Features) -> DecoderState:
        state = self.decoder.start(features)
        first = features if isinstance(features, ImageFeatures) else features[0]
        rows, similarity = self.retriever.find(first.pooled)
        weights = np.exp(SHARPNESS * (similarity - similarity[:, :1]))[:, :, None]  # (B, k, 1)
        tokens = self.retriever.tokens[rows]  # (B, k, C, T)
        batch, longest = len(rows), tokens.shape[-1]
        captions: dict[str, Any] = {
            "retrieval.tokens": tokens.reshape(batch, -1, longest),
            "retrieval.weights": np.broadcast_to(weights, tokens.shape[:3]).reshape(batch, -1),
        }
        history: Any = np.full((batch, CONTEXT), Tokenizer.pad)
        return DecoderState({**state.encoder_cache, **captions}, {**state.hypotheses, "retrieval.history": history})

    def step(self, tokens: np.ndarray, state: DecoderState) -> tuple[np.ndarray, DecoderState, dict[str, np.ndarray]]:
        model_state = DecoderState(_without(state.encoder_cache), _without(state.hypotheses))
        known = self.retriever.model_size  # the model gets its unknown token in place of a new word
        logits, model_state, extras = self.decoder.step(
            np.where(tokens < known, tokens, Tokenizer.unknown), model_state
        )
        before: Any = state.hypotheses["retrieval.history"]
        history = np.concatenate([before[:, 1:], tokens[:, None]], 1)  # (R, CONTEXT)
        captions = {name: value for name, value in state.encoder_cache.items() if name.startswith("retrieval.")}
        size = self.retriever.tokenizer.size
        retrieved = _next_words(history, captions["retrieval.tokens"], captions["retrieval.weights"], size)  # (R, W)
        mixed = _interpolated(_extended(logits, retrieved), retrieved, self.retriever.contents.weight)
        hypotheses: dict[str, Any] = {**model_state.hypotheses, "retrieval.history": history}
        return mixed.astype(np.float32), DecoderState({**model_state.encoder_cache, **captions}, hypotheses), extras


def _next_words(history: np.ndarray, captions: Any, weights: Any, vocabulary: int) -> np.ndarray:
    """(R, W): how often each word follows in the neighbours' captions, most of all after the same context.

    ``history`` (R, CONTEXT) are the last words of each hypothesis, ``captions`` (A, M, T), ``weights`` (A, M).
    """
    rows, photos = len(history), len(captions)
    last = history.reshape(photos, rows // photos, 1, 1, -1)  # (A, K, 1, 1, CONTEXT)
    shared = np.zeros((photos, rows // photos, captions.shape[1], captions.shape[2] - 1), np.int64)  # (A, K, M, T-1)
    matches: Any = True
    for back in range(1, CONTEXT + 1):
        earlier = np.full((*captions.shape[:2], captions.shape[2] - 1), -1)
        earlier[:, :, back - 1 :] = captions[:, :, : captions.shape[2] - back]
        matches = matches & (earlier[:, None] == last[..., -back])
        shared += matches
    following = captions[:, None, :, 1:]
    ignored = (following == Tokenizer.pad) | (following == Tokenizer.unknown)  # no word, or none of the vocabulary
    counts = np.where(ignored, 0, weights[:, None, :, None] * GROWTH**shared)
    index = np.arange(rows).reshape(photos, -1, 1, 1) * vocabulary + following
    found = np.bincount(index.ravel(), counts.ravel(), rows * vocabulary).reshape(rows, vocabulary)
    shares: np.ndarray = found / np.maximum(found.sum(1, keepdims=True), 1e-30)
    return shares


def _extended(logits: np.ndarray, retrieved: np.ndarray) -> np.ndarray:
    """The model's probabilities (R, W) with the new words, which share the probability of its unknown token."""
    probabilities = np.exp(log_softmax(logits))
    new = retrieved[:, probabilities.shape[1] :]
    total = new.sum(1, keepdims=True)
    unknown = np.where(total > 0, probabilities[:, [Tokenizer.unknown]], 0)
    return np.concatenate([probabilities, unknown * new / np.maximum(total, 1e-30)], 1)


def _interpolated(probabilities: np.ndarray, retrieved: np.ndarray, weight: float) -> np.ndarray:
    """Log-probabilities (R, W) of probabilities ** (1 - weight) * retrieved ** weight, normalised."""
    return log_softmax((1 - weight) * np.log(np.maximum(probabilities, 1e-12)) + weight * np.log(retrieved + FLOOR))


def _unit(vectors: np.ndarray) -> np.ndarray:
    unit: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    return unit


def _without(values: dict[str, Any]) -> dict[str, Any]:
    """The model's part of a state."""
    return {name: value for name, value in values.items() if not name.startswith("retrieval.")}
