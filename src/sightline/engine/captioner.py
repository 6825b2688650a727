"""Photos in, captions out: the one object behind the Python API, the command line, the server and bulk jobs."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from sightline.decoding import DecodingOptions, Ensemble, Hypothesis, StepDecoder, as_steps, decode
from sightline.errors import ConfigError, ImageError, nearest
from sightline.io.files import FileSlice
from sightline.io.images import ImageSource, open_image
from sightline.nn.hub import DEFAULT_MODEL, resolve
from sightline.onnx import MANIFEST, WEIGHTS, Exported, Manifest, load_exported
from sightline.types import Caption, Failure, ImageFeatures, Word

if TYPE_CHECKING:  # imported where a model needs it: with onnxruntime the first caption comes seconds sooner
    import torch

    from sightline.engine.retrieval import Memory, Recall
    from sightline.nn.checkpoint import Checkpoint

log = logging.getLogger(__name__)
RUNTIMES = ("auto", "torch", "onnx")


class Captioner:
    """One trained model, or several with one vocabulary acting together; a memory steers what they say."""

    def __init__(
        self,
        checkpoints: Sequence[Checkpoint | Exported],
        device: str | torch.device = "cpu",
        memory: Memory | None = None,
    ):
        self.device = device
        self.checkpoints = list(checkpoints)
        self.models: list[Any] = [checkpoint.model.to(device).eval() for checkpoint in checkpoints]
        self.tokenizer = checkpoints[0].tokenizer
        if any(other.tokenizer.to_json() != self.tokenizer.to_json() for other in checkpoints[1:]):
            raise ConfigError(
                "the models of an ensemble must have been trained with one vocabulary; these have different ones"
            )
        self.folders = [checkpoint.folder for checkpoint in checkpoints]
        self.confidence = checkpoints[0].confidence if len(checkpoints) == 1 else None  # an ensemble has other chances
        self.options = DecodingOptions(**{"max_length": self.tokenizer.max_length, **checkpoints[0].decoding})
        self.recall: Recall | None = None
        if memory is not None:
            self.recall = memory.for_model(checkpoints[0].signature(), self.tokenizer)
            self.tokenizer = self.recall.tokenizer  # it knows the memory's new words, too
            self.confidence = None  # as for an ensemble

    @property
    def runtimes(self) -> list[str]:
        """What computes each model: "torch", or "onnxruntime, int8"."""
        return [checkpoint.runtime for checkpoint in self.checkpoints]

    def signatures(self) -> list[str]:
        """Which weights each model has; empty where they were never saved. A memory's comes after them."""
        weights = [checkpoint.signature() for checkpoint in self.checkpoints]
        return [*weights, self.recall.memory.signature()] if self.recall else weights

    @overload
    def caption(self, source: list[ImageSource], **options: Any) -> list[Caption]: ...
    @overload
    def caption(self, source: ImageSource, **options: Any) -> Caption: ...
    def caption(self, source: ImageSource | list[ImageSource], **options: Any) -> Caption | list[Caption]:
        """A caption for a path, bytes, Pillow image or array; a list gives a list. The first bad photo raises.

        ``options`` are `DecodingOptions`: beam, length_penalty, min_length, candidates, sample, temperature, ...
        """
        several = isinstance(source, list | tuple)
        sources: list[Any] = list(source) if isinstance(source, list | tuple) else [source]
        captions = []
        for result in self.stream(sources, keep_photos=True, **options):
            if isinstance(result, Failure):
                raise ImageError(result.reason)
            captions.append(result)
        return captions if several else captions[0]

    def stream(
        self, sources: Iterable[ImageSource], batch_size: int = 16, keep_photos: bool = False, **options: Any
    ) -> Iterator[Caption | Failure]:
        """A caption or the reason why not, for each source in order. Nothing is lost to a bad neighbour."""
        chosen = self.decoding(**options)
        waiting: list[tuple[str, Any]] = []
        for source in sources:
            name = str(source) if isinstance(source, str | Path | FileSlice) else ""
            try:
                waiting.append((name, open_image(source)))
            except ImageError as error:
                waiting.append((name, Failure(name, str(error))))
            if len(waiting) == batch_size:
                yield from self._batch(waiting, chosen, keep_photos)
                waiting = []
        if waiting:
            yield from self._batch(waiting, chosen, keep_photos)

    def decoding(self, **options: Any) -> DecodingOptions:
        """The model's own options with these changes."""
        known = self.options.__dataclass_fields__
        if unknown := [name for name in options if name not in known]:
            raise ConfigError(f"unknown option {unknown[0]!r}{nearest(unknown[0], known)}")
        chosen = replace(self.options, **options)
        if chosen.max_length > self.tokenizer.max_length:
            raise ConfigError(
                f"max_length is {chosen.max_length}, this model's captions have at most {self.tokenizer.max_length}"
            )
        return chosen

    def encode(self, photos: Sequence[Any]) -> list[ImageFeatures]:
        """Each model's features of some opened photos."""
        encoders = [model.encoder for model in self.models]
        return [
            encoder.encode(np.stack([encoder.preprocess.pixels(photo) for photo in photos])) for encoder in encoders
        ]

    def decode(self, features: Sequence[ImageFeatures], options: DecodingOptions | None = None) -> list[Caption]:
        """Captions from ready features, one set for each model."""
        decoders = [model.decoder for model in self.models]
        options = options or self.options
        seen = features[0] if len(decoders) == 1 else list(features)
        decoder = as_steps(decoders[0]) if len(decoders) == 1 else Ensemble(decoders)
        found = decode(self.steered(decoder), seen, options)
        grid = (features[0].height, features[0].width)
        captions = []
        for hypotheses in found:
            best, *others = [self._caption(hypothesis, grid) for hypothesis in hypotheses]
            captions.append(replace(best, others=tuple(others)))
        if self.recall and captions:
            recalled = self.recall.recalled(features[0].pooled)
            return [replace(caption, recalled=own) for caption, own in zip(captions, recalled)]
        if self.confidence and captions:
            pooled: Any = features[0].pooled
            values = pooled if isinstance(pooled, np.ndarray) else pooled.float().cpu().numpy()
            return self.confidence.judge(captions, values)
        return captions

    def steered(self, decoder: StepDecoder) -> StepDecoder:
        """With a memory, the decoder that listens to it."""
        return self.recall.steer(decoder) if self.recall else decoder

    def _batch(
        self, waiting: list[tuple[str, Any]], options: DecodingOptions, keep_photos: bool
    ) -> Iterator[Caption | Failure]:
        photos = [photo for _, photo in waiting if not isinstance(photo, Failure)]
        captions = iter(self.decode(self.encode(photos), options) if photos else [])
        for name, photo in waiting:
            if isinstance(photo, Failure):
                yield photo
            else:
                seen = self.models[0].encoder.preprocess.seen(photo) if keep_photos else None
                yield replace(next(captions), source=name, photo=seen)

    def _caption(self, found: Hypothesis, grid: tuple[int, int]) -> Caption:
        words = tuple(
            Word(
                text=text,
                probability=math.exp(sum(found.log_probs[place] for place in places)),
                attention=self._attention(found, places, grid),
                gate=float(found.gate[places].mean()) if found.gate is not None else None,
                alternatives=self._alternatives(found, places[0]),
            )
            for text, places in self.tokenizer.words(found.tokens)
        )
        text, score = self.tokenizer.decode(found.tokens), sum(found.log_probs)
        return Caption(text, words, score, found.finished, tokens=tuple(found.tokens))

    @staticmethod
    def _attention(found: Hypothesis, places: list[int], grid: tuple[int, int]) -> np.ndarray | None:
        if found.attention is None or not grid[0]:
            return None
        return found.attention[places].mean(0).reshape(grid)

    def _alternatives(self, found: Hypothesis, place: int) -> tuple[tuple[str, float], ...]:
        if not found.alternatives:
            return ()
        return tuple((self.tokenizer.tokens[token], chance) for token, chance in found.alternatives[place])


def load(
    *names: str | Path,
    device: str | torch.device = "cpu",
    runtime: str = "auto",
    memory: Memory | str | Path | None = None,
) -> Captioner:
    """The shipped model, a model folder or a hub name; several folders make an ensemble.

    ``runtime`` is what computes: "auto" takes onnxruntime where it is installed, the folder was exported and the
    device is the CPU, and torch otherwise. ``memory`` is a folder that `sightline remember` wrote.
    """
    if runtime not in RUNTIMES:
        raise ConfigError(f"runtime is {runtime!r}{nearest(runtime, RUNTIMES)}; give {', '.join(RUNTIMES)}")
    checkpoints = [_load(resolve(name), str(device), runtime) for name in names or (DEFAULT_MODEL,)]
    if isinstance(memory, str | Path):
        from sightline.engine.retrieval import Memory

        memory = Memory.read(memory)
    return Captioner(checkpoints, device, memory)


def _load(folder: Path, device: str, runtime: str) -> Checkpoint | Exported:
    if runtime == "onnx":
        return load_exported(folder)
    if runtime == "auto" and (manifest := _exported(folder, device)):
        return load_exported(folder, manifest)
    from sightline.nn.checkpoint import load_checkpoint

    return load_checkpoint(folder)


def _exported(folder: Path, device: str) -> Manifest | None:
    """A folder's graphs, if they are what should run: always where nothing else is, never those of another model."""
    if not (folder / MANIFEST).is_file():
        return None
    if not ((folder / "config.json").is_file() and (folder / WEIGHTS).is_file()):
        return Manifest.read(folder)
    if device != "cpu" or find_spec("onnxruntime") is None:
        return None
    manifest = Manifest.read(folder)
    if changed := manifest.differs(folder):
        log.warning("%s: %s has changed since the export: torch is used; run `sightline export`", folder, changed)
        return None
    return manifest
