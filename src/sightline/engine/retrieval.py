"""One's own captioned photos as a memory that steers captions, without any training.

For a new photo the photos most like it are recalled. At every step their captions say which words came after the words
chosen so far, and the longer the stretch they share, the more a caption's word counts. The model's own distribution and
this one are multiplied, so that a word needs both: averaging them, as kNN-LM does (Khandelwal et al. 2020, arXiv
1911.00172), copies what the photo does not show. Only vectors of photos and words are needed, whatever the runtime.
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

from sightline.decoding.constraints import log_softmax
from sightline.decoding.steps import Features, StepDecoder
from sightline.errors import CheckpointError, ConfigError
from sightline.io.files import atomic_folder, printable
from sightline.io.model_files import read_json
from sightline.tokenizers import Tokenizer
from sightline.types import DecoderState, ImageFeatures, Recalled

WORDS, VECTORS = "memory.json", "memory.safetensors"
LARGEST = 2**30  # bytes of vectors: a million photos or so
NEW = 2  # times a word stands in the captions before it may be said though the model does not know it
STRETCH = 3  # words shared with a caption that still count
STEEP = 4.0  # how many times as much each of them makes a word count
SHARPNESS = 10.0  # of the neighbours' shares: exp(this * cosine)
FLOOR = 1e-3  # chance of a word that no recalled caption has

Weight = Annotated[float, Field(ge=0, lt=1)]
Neighbours = Annotated[int, Field(ge=1, le=1000)]


class Photo(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    captions: tuple[str, ...]


class Contents(BaseModel):
    """What ``memory.json`` holds; people may read and edit it, but not add or drop photos."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    format: Literal["sightline-memory-1"] = "sightline-memory-1"
    model: str  # the weights whose encoder gave the vectors, as in score signatures
    neighbours: Neighbours = 20
    weight: Weight = 0.3  # exponent of the recalled captions' distribution; the model's has the rest
    photos: tuple[Photo, ...]


@dataclass(frozen=True)
class Memory:
    """Photos with their captions, and the vectors by which they are found again."""

    contents: Contents
    vectors: np.ndarray  # (photos, D), as the encoder gave them

    def __post_init__(self) -> None:
        if not len(self.contents.photos):
            raise ConfigError("a memory needs at least one captioned photo")
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.contents.photos):
            raise CheckpointError(
                f"the memory has {len(self.contents.photos)} photos but vectors of {len(self.vectors)}: make it again"
            )
        if not np.isfinite(self.vectors).all():
            raise CheckpointError("the memory's vectors hold values that are not finite: make it again")

    def __len__(self) -> int:
        return len(self.contents.photos)

    def weighing(self, weight: float) -> Memory:
        """The same memory, listened to this much."""
        if not 0 <= weight < 1:
            raise ConfigError(f"weight is {weight}; give 0 (not at all) or more, and less than 1")
        return replace(self, contents=self.contents.model_copy(update={"weight": float(weight)}))

    def save(self, folder: str | Path) -> None:
        """Both files, in place of whatever memory lay there."""
        from safetensors.numpy import save

        folder = Path(folder)
        if folder.exists() and not (folder / WORDS).is_file():
            raise ConfigError(f"{printable(folder)} exists and holds no memory: choose another folder")
        with atomic_folder(folder) as new:
            (new / VECTORS).write_bytes(save({"vectors": np.ascontiguousarray(self.vectors, np.float16)}))
            plain = self.contents.model_dump(mode="json")
            (new / WORDS).write_text(json.dumps(plain, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: str | Path) -> Memory:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        folder = Path(folder).expanduser()
        missing = [name for name in (WORDS, VECTORS) if not (folder / name).is_file()]
        if missing:
            raise CheckpointError(
                f"{printable(folder)} is no memory: {', '.join(missing)} missing; `sightline remember` makes one"
            )
        try:
            contents = Contents.model_validate(read_json(folder / WORDS))
            if (size := (folder / VECTORS).stat().st_size) > LARGEST:
                raise CheckpointError(f"{printable(folder / VECTORS)} has {size >> 20} MB, more than {LARGEST >> 20}")
            vectors = load_file(folder / VECTORS)["vectors"].astype(np.float32)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            raise CheckpointError(f"{printable(folder / WORDS)} is damaged: {place}: {first['msg']}") from None
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            raise CheckpointError(f"{printable(folder / VECTORS)} cannot be read: {error}; make it again") from None
        return cls(contents, vectors)

    def tokenizer(self, model: Tokenizer) -> Tokenizer:
        """The model's vocabulary with the words that these captions repeat."""
        return model.extended([text for photo in self.contents.photos for text in photo.captions], NEW)

    def signature(self) -> str:
        """A short name for exactly this memory, for score signatures."""
        plain = json.dumps(self.contents.model_dump(mode="json"), sort_keys=True).encode()
        return f"memory-{hashlib.sha256(plain + self.vectors.astype('<f2').tobytes()).hexdigest()[:12]}"

    def for_model(self, signature: str, tokenizer: Tokenizer) -> Recall:
        """Ready to steer a model; refused if other weights gave the vectors, for they put photos elsewhere."""
        mine, theirs = (name.partition("/")[0] for name in (self.contents.model, signature))
        if mine != theirs:
            raise ConfigError(
                f"the memory was made with the weights {mine or 'unsaved'}, the model has {theirs or 'unsaved ones'}: "
                "run `sightline remember` with this model"
            )
        return Recall(self, tokenizer)


class Recall:
    """A memory in the words of one model: recalls photos, and says which words their captions had."""

    def __init__(self, memory: Memory, tokenizer: Tokenizer) -> None:
        self.memory, self.settings = memory, memory.contents
        self.known = tokenizer.size
        self.tokenizer = tokenizer = memory.tokenizer(tokenizer)
        self.middle = memory.vectors.mean(0) if len(memory) > 1 else np.zeros(memory.vectors.shape[1], np.float32)
        self.units = _unit(memory.vectors - self.middle)
        captions = [[tokenizer.encode(text) for text in photo.captions] for photo in memory.contents.photos]
        most = max(map(len, captions))
        self.tokens = np.full((len(captions), most, tokenizer.max_length), Tokenizer.pad)  # (N, C, T)
        for tokens, own in zip(self.tokens, captions):
            for row, ids in zip(tokens, own):
                row[: len(ids)] = ids

    def steer(self, decoder: StepDecoder) -> StepDecoder:
        return Reminded(decoder, self)

    def find(self, pooled: Any) -> tuple[np.ndarray, np.ndarray]:
        """(B, D) vectors to the rows of the photos most like each, and how like (cosine): both (B, k), best first."""
        values = pooled if isinstance(pooled, np.ndarray) else pooled.float().cpu().numpy()
        alike = _unit(values.astype(np.float32) - self.middle) @ self.units.T  # (B, N)
        rows = np.argsort(-alike, axis=1, kind="stable")[:, : self.settings.neighbours]
        return rows, np.take_along_axis(alike, rows, 1)

    def recalled(self, pooled: Any, most: int = 3) -> list[tuple[Recalled, ...]]:
        """For people: the first few photos that steer each caption."""
        photos = self.settings.photos
        return [
            tuple(
                Recalled(photos[row].name, float(how), photos[row].captions)
                for row, how in zip(own[:most], alike[:most])
            )
            for own, alike in zip(*self.find(pooled))
        ]


class Reminded(StepDecoder):
    """A decoder that weighs its next words with those of the recalled captions."""

    def __init__(self, decoder: StepDecoder, recall: Recall) -> None:
        self.decoder, self.recall = decoder, recall

    def start(self, features: Features) -> DecoderState:
        state = self.decoder.start(features)
        first = features if isinstance(features, ImageFeatures) else features[0]
        rows, alike = self.recall.find(first.pooled)
        shares = np.exp(SHARPNESS * (alike - alike[:, :1]))[:, :, None]  # (B, k, 1)
        tokens = self.recall.tokens[rows]  # (B, k, C, T)
        batch, longest = len(rows), tokens.shape[-1]
        captions = {
            "recall.tokens": tokens.reshape(batch, -1, longest),
            "recall.shares": np.broadcast_to(shares, tokens.shape[:3]).reshape(batch, -1),
        }
        history: Any = np.full((batch, STRETCH), Tokenizer.pad)
        return DecoderState({**state.photo, **captions}, {**state.beam, "recall.history": history})

    def step(self, tokens: np.ndarray, state: DecoderState) -> tuple[np.ndarray, DecoderState, dict[str, np.ndarray]]:
        own = DecoderState(_without(state.photo), _without(state.beam))
        known = self.recall.known  # V, of W words; a new one the model hears as its unknown
        logits, own, extras = self.decoder.step(np.where(tokens < known, tokens, Tokenizer.unknown), own)
        before: Any = state.beam["recall.history"]
        history = np.concatenate([before[:, 1:], tokens[:, None]], 1)  # (R, STRETCH)
        words = self.recall.tokenizer.size
        said = _next_words(history, state.photo["recall.tokens"], state.photo["recall.shares"], words)  # (R, W)
        mixed = _mixed(_widened(logits, said), said, self.recall.settings.weight)
        captions = {name: value for name, value in state.photo.items() if name.startswith("recall.")}
        kept: dict[str, Any] = {**own.beam, "recall.history": history}
        return mixed.astype(np.float32), DecoderState({**own.photo, **captions}, kept), extras


def _next_words(history: np.ndarray, captions: Any, shares: Any, vocabulary: int) -> np.ndarray:
    """(R, V): how often each word follows in the recalled captions, most of all after the same words as here.

    ``history`` (R, STRETCH) are the last words of each hypothesis, ``captions`` (A, M, T), ``shares`` (A, M).
    """
    rows, photos = len(history), len(captions)
    last = history.reshape(photos, rows // photos, 1, 1, -1)  # (A, K, 1, 1, STRETCH)
    shared = np.zeros((photos, rows // photos, captions.shape[1], captions.shape[2] - 1), np.int64)  # (A, K, M, T-1)
    alike: Any = True
    for back in range(1, STRETCH + 1):
        place = np.full((*captions.shape[:2], captions.shape[2] - 1), -1)
        place[:, :, back - 1 :] = captions[:, :, : captions.shape[2] - back]
        alike = alike & (place[:, None] == last[..., -back])
        shared += alike
    following = captions[:, None, :, 1:]
    silent = (following == Tokenizer.pad) | (following == Tokenizer.unknown)  # no word, or none the model can say
    counts = np.where(silent, 0, shares[:, None, :, None] * STEEP**shared)
    places = np.arange(rows).reshape(photos, -1, 1, 1) * vocabulary + following
    found = np.bincount(places.ravel(), counts.ravel(), rows * vocabulary).reshape(rows, vocabulary)
    return found / np.maximum(found.sum(1, keepdims=True), 1e-30)


def _widened(logits: np.ndarray, said: np.ndarray) -> np.ndarray:
    """The model's probabilities (R, W) with the new words: they part its unknown among them, as the captions say."""
    own = np.exp(log_softmax(logits))
    new = said[:, own.shape[1] :]
    total = new.sum(1, keepdims=True)
    unknown = np.where(total > 0, own[:, [Tokenizer.unknown]], 0)
    return np.concatenate([own, unknown * new / np.maximum(total, 1e-30)], 1)


def _mixed(own: np.ndarray, said: np.ndarray, weight: float) -> np.ndarray:
    """Log-probabilities (R, W) of own ** (1 - weight) * said ** weight."""
    return log_softmax((1 - weight) * np.log(np.maximum(own, 1e-12)) + weight * np.log(said + FLOOR))


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)


def _without(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not name.startswith("recall.")}


def make_memory(model: str, names: Sequence[str], captions: Sequence[Sequence[str]], vectors: np.ndarray) -> Memory:
    """A memory of these photos; ``model`` names the weights that gave the vectors."""
    photos = tuple(Photo(name=name, captions=tuple(texts)) for name, texts in zip(names, captions))
    return Memory(Contents(model=model, photos=photos), vectors.astype(np.float16).astype(np.float32))
