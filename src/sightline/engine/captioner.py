"""Photos in, captions out: the one pipeline behind the Python API, the command line, the server and bulk jobs.

Four stages: ``prepare`` opens and preprocesses a photo, ``encode`` gives the features of a batch, ``decode`` searches
for captions, ``finish`` makes `Caption`s of what was found.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from PIL.Image import Image

from sightline.decoding import DecodingOptions, Ensemble, Hypothesis, decode, same_words
from sightline.decoding.hypotheses import StepDecoder
from sightline.decoding.options import misfit
from sightline.engine.backend import Backend, as_array
from sightline.engine.confidence import Confidence, mark_photos
from sightline.errors import ConfigError, ImageError, missing_extra, nearest
from sightline.io.files import FileSlice, printable, user_path
from sightline.io.images import MAX_PIXELS, ImageSource, open_image
from sightline.io.model_files import check_model_folder, has_weights
from sightline.io.preprocess import Box, Preprocess
from sightline.nn.hub import DEFAULT_MODEL, resolve
from sightline.onnx.exported import MANIFEST, Manifest, all_threads
from sightline.types import Caption, Failure, ImageFeatures, Word

if TYPE_CHECKING:  # imported where it is needed: with onnxruntime the first caption comes seconds sooner
    import torch

    from sightline.engine.retrieval import Datastore

log = logging.getLogger(__name__)
RUNTIMES = ("auto", "torch", "onnx")
PICTURE_SIDE = 640  # pixels of the longer side of `Caption.photo`


@dataclass(frozen=True)
class PreparedImage:
    """A photo, opened and preprocessed: all that the later stages need of it, small enough to queue and to pickle."""

    source: str  # its path, or empty
    pixels: tuple[np.ndarray, ...] = field(repr=False)  # one (S, S, 3) of bytes for each model
    size: tuple[int, int]  # width and height of the upright photo
    frame: Box  # the part that the first model encodes: left, top, right, bottom as shares of width and height
    picture: Image | None = field(default=None, repr=False)  # that part, to be drawn on


def prepare_image(
    source: ImageSource,
    preprocesses: Sequence[Preprocess],
    *,
    picture_side: int = 0,
    max_pixels: int = MAX_PIXELS,
    name: str = "",
) -> PreparedImage:
    """Open a photo and preprocess it for each model; `ImageError` says what is wrong with it.

    Needs no model, so that worker processes can run it. Pixels stay bytes until they are encoded: floats would take
    four times as long to cross between processes. ``picture_side`` keeps a picture with sides of at most so many
    pixels, to be drawn on. ``name`` is what error messages call a photo that is given as bytes.
    """
    image = open_image(source, max_pixels=max_pixels, called=name)
    first = preprocesses[0]
    return PreparedImage(
        str(source) if isinstance(source, str | Path | FileSlice) else "",
        tuple(np.asarray(preprocess.visible(image)) for preprocess in preprocesses),
        image.size,
        first.frame(*image.size),
        first.crop(image, picture_side) if picture_side else None,
    )


class Captioner:
    """One trained model, or an ensemble of several with one vocabulary; a datastore adds retrieval to them."""

    def __init__(self, backends: Sequence[Backend], datastore: Datastore | None = None) -> None:
        self.backends = list(backends)
        self.preprocesses = tuple(backend.preprocess for backend in backends)
        first = self.backends[0]
        self.tokenizer = first.tokenizer
        if any(other.tokenizer.to_json() != self.tokenizer.to_json() for other in backends[1:]):
            raise ConfigError(
                "the models of an ensemble must have been trained with one vocabulary; these have different ones"
            )
        self.defaults = DecodingOptions(**{"max_length": self.tokenizer.max_length, **first.decoding})
        self.decoder: StepDecoder = first if len(backends) == 1 else Ensemble(self.backends)
        self.calibrations = [
            Confidence.read(backend.folder, backend.dimension) if backend.folder else None for backend in backends
        ]
        self.retriever = None
        if datastore is not None:
            from sightline.engine.retrieval import RetrievalDecoder, Retriever

            datastore.check_model(first.signature())
            self.retriever = Retriever(datastore, self.tokenizer)
            self.tokenizer = self.retriever.tokenizer  # has the datastore's new words, too
            self.decoder = RetrievalDecoder(self.decoder, self.retriever)
        self._loaded_from: tuple[Any, ...] | None = None

    @property
    def confidence(self) -> Confidence | None:
        """One model's; an ensemble gives other probabilities than its models were calibrated with."""
        return self.calibrations[0] if len(self.backends) == 1 else None

    def __repr__(self) -> str:
        """Its models, and what computes them: "Captioner(default: onnxruntime, int8)"."""
        names = (folder.name if folder else "unsaved" for folder in self.folders)
        return f"Captioner({'; '.join(f'{name}: {runtime}' for name, runtime in zip(names, self.runtimes))})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its folders, not by its weights."""
        if self._loaded_from is None:
            raise ConfigError("only a captioner that sightline.load gave can be pickled: save the model, then load it")
        return _load, self._loaded_from

    @property
    def device(self) -> str:
        return self.backends[0].device

    @property
    def runtimes(self) -> list[str]:
        """What computes each model: "torch", or "onnxruntime, int8"."""
        return [backend.runtime for backend in self.backends]

    @property
    def folders(self) -> list[Path | None]:
        return [backend.folder for backend in self.backends]

    def signatures(self) -> list[str]:
        """Which weights each model has; empty where they were never saved. A datastore's comes after them."""
        weights = [backend.signature() for backend in self.backends]
        return [*weights, self.retriever.datastore.signature()] if self.retriever else weights

    # -- options ------------------------------------------------------------------------------------------------------

    def options(self, **changes: Any) -> DecodingOptions:
        """The model's decoding options with these changes: the only rules about options beside `DecodingOptions`.

        Where several captions are asked for and no beam is, the beam is wide enough for them.
        """
        known = DecodingOptions.__dataclass_fields__
        if unknown := [name for name in changes if name not in known]:
            raise ConfigError(f"unknown option {unknown[0]!r}{nearest(unknown[0], known)}")
        candidates = changes.get("candidates")
        if type(candidates) is int and "beam" not in changes and not changes.get("sample", self.defaults.sample):
            changes["beam"] = max(self.defaults.beam, candidates)
        chosen = replace(self.defaults, **changes)
        if fault := misfit(chosen, self.tokenizer):
            raise ConfigError(fault)
        return chosen

    def max_length(self, tokens: int) -> int:
        """The option ``max_length`` for captions of at most so many tokens, as other libraries count: without start."""
        return min(max(tokens + 1, 3), self.tokenizer.max_length)

    # -- the whole pipeline -------------------------------------------------------------------------------------------

    @overload
    def caption(self, source: list[ImageSource], **options: Any) -> list[Caption | Failure]: ...
    @overload
    def caption(self, source: ImageSource, **options: Any) -> Caption: ...
    def caption(self, source: ImageSource | list[ImageSource], **options: Any) -> Caption | list[Caption | Failure]:
        """A caption for a path, bytes, Pillow image or array; a list gives a list.

        A photo that cannot be read raises `ImageError`; in a list it has a `Failure` in place of its caption.
        ``options`` are `DecodingOptions`: beam, length_penalty, min_length, candidates, sample, temperature, ...
        """
        if isinstance(source, list | tuple):
            return list(self.stream(source, keep_photos=True, **options))
        (result,) = self.stream([source], keep_photos=True, **options)
        if isinstance(result, Failure):
            raise ImageError(result.reason)
        return result

    def stream(
        self, sources: Iterable[ImageSource], batch_size: int = 16, keep_photos: bool = False, **options: Any
    ) -> Iterator[Caption | Failure]:
        """A caption or the reason why not, for each source in order, as they are computed: for any number of photos."""
        chosen = self.options(**options)
        batch: list[PreparedImage | Failure] = []
        for source in sources:
            try:
                batch.append(self.prepare(source, picture_side=PICTURE_SIDE if keep_photos else 0))
            except ImageError as error:
                name = str(source) if isinstance(source, str | Path | FileSlice) else ""
                batch.append(Failure(name, str(error)))
            if len(batch) == batch_size:
                yield from self._finished(batch, chosen)
                batch = []
        if batch:
            yield from self._finished(batch, chosen)

    def _finished(
        self, batch: Sequence[PreparedImage | Failure], options: DecodingOptions
    ) -> Iterator[Caption | Failure]:
        images = [image for image in batch if isinstance(image, PreparedImage)]
        captions: Iterator[Caption] = iter(())
        if images:
            features = self.encode(images)
            captions = iter(self.finish(self.decode(features, options), features, images))
        for image in batch:
            yield image if isinstance(image, Failure) else next(captions)

    # -- its stages ---------------------------------------------------------------------------------------------------

    def prepare(self, source: ImageSource, **limits: Any) -> PreparedImage:
        """Open and preprocess a photo; `ImageError` says what is wrong with it. ``limits`` as `prepare_image` has them.

        Other processes call `prepare_image` with ``preprocesses``, for which they need no model.
        """
        return prepare_image(source, self.preprocesses, **limits)

    def encode(self, images: Sequence[PreparedImage]) -> list[ImageFeatures]:
        """Each model's features of a batch of prepared photos."""
        return [
            backend.encode(backend.preprocess.normalise(np.stack([image.pixels[index] for image in images])))
            for index, backend in enumerate(self.backends)
        ]

    def decode(
        self, features: Sequence[ImageFeatures], options: DecodingOptions | None = None
    ) -> list[list[Hypothesis]]:
        """The captions found for each photo, best first, from one set of features for each model."""
        given = features[0] if len(self.backends) == 1 else features
        options = options or self.defaults
        return decode(self.decoder, given, options, self._same_words if options.no_repeat_words else None)

    @cached_property
    def _same_words(self) -> np.ndarray:
        return same_words(self.tokenizer)

    def finish(
        self,
        found: Sequence[Sequence[Hypothesis]],
        features: Sequence[ImageFeatures],
        images: Sequence[PreparedImage] = (),
    ) -> list[Caption]:
        """Captions of what ``decode`` found, with confidence or neighbours, and each photo's name and picture."""
        captions = []
        for hypotheses in found:
            best, *others = [self._caption(hypothesis, features[0]) for hypothesis in hypotheses]
            captions.append(replace(best, others=tuple(others)))
        if self.retriever and captions:
            neighbours = self.retriever.neighbours(features[0].pooled)
            captions = [replace(caption, neighbours=near) for caption, near in zip(captions, neighbours)]
        if captions:
            captions = self._judged(captions, [as_array(own.pooled) for own in features])
        if images:
            captions = [
                replace(caption, source=image.source, photo=image.picture) for caption, image in zip(captions, images)
            ]
        return captions

    def _judged(self, captions: list[Caption], pooled: Sequence[np.ndarray]) -> list[Caption]:
        """With calibrated confidence. Retrieval and ensembles give other probabilities; the photos are the same."""
        if self.confidence and not self.retriever:
            return self.confidence.judge(captions, pooled[0])
        scores = [known.photos.ood_score(vectors) for known, vectors in zip(self.calibrations, pooled) if known]
        return mark_photos(captions, np.max(scores, axis=0)) if scores else captions

    def _caption(self, found: Hypothesis, features: ImageFeatures) -> Caption:
        words = []
        for text, positions in self.tokenizer.words(found.tokens):
            attention = None
            if found.attention is not None and features.height:
                attention = found.attention[positions].mean(0).reshape(features.height, features.width)
            words.append(
                Word(
                    text=text,
                    probability=math.exp(sum(found.log_probs[position] for position in positions)),
                    attention=attention,
                    gate=float(found.gate[positions].mean()) if found.gate is not None else None,
                    alternatives=tuple(
                        (self.tokenizer.tokens[token], probability)
                        for token, probability in (found.alternatives[positions[0]] if found.alternatives else ())
                    ),
                )
            )
        text = " ".join(word.text for word in words)
        return Caption(text, tuple(words), sum(found.log_probs), found.finished, tokens=tuple(found.tokens))

    # -- several threads ----------------------------------------------------------------------------------------------

    def for_threads(self, most: int) -> tuple[Captioner, int]:
        """A captioner for several threads to call at once, and for how many of them.

        Each call is computed by its share of the cores. Weights are shared. With torch it is this captioner and one
        thread, for torch divides every batch among all cores by itself.
        """
        threads = min(most, all_threads())
        if threads == 1:
            return self, 1
        backends = [backend.with_threads(all_threads() // threads) for backend in self.backends]
        if any(backend is None for backend in backends):
            return self, 1
        datastore = self.retriever.datastore if self.retriever else None
        divided = Captioner([backend for backend in backends if backend is not None], datastore)
        divided._loaded_from = self._loaded_from
        return divided, threads

    @property
    def batch_size(self) -> int:
        """Photos that ``encode`` computes at once; larger batches gain nothing."""
        return min(backend.batch_size for backend in self.backends)


def load(
    *names: str | Path,
    device: str | torch.device = "cpu",
    runtime: str = "auto",
    datastore: Datastore | str | Path | None = None,
) -> Captioner:
    """The default model, a model folder or a hub name; several folders make an ensemble.

    ``runtime`` is what computes: "auto" takes onnxruntime where it is installed, the folder was exported and the
    device is the CPU, and torch otherwise. ``datastore`` is a folder that `sightline retrieval build` wrote.
    """
    if runtime not in RUNTIMES:
        raise ConfigError(f"runtime is {runtime!r}{nearest(runtime, RUNTIMES)}; give {', '.join(RUNTIMES)}")
    captioner = _load([resolve(name) for name in names or (DEFAULT_MODEL,)], str(device), runtime, datastore)
    reason = "several models" if len(captioner.backends) > 1 else "with a datastore" if captioner.retriever else ""
    if reason:  # here and not in `_load`: other processes of a job need not repeat it
        marked = "only photos unlike the training photos are" if any(captioner.calibrations) else "no photo is"
        log.info("%s: confidence is uncalibrated, and %s marked unsure", reason, marked)
    return captioner


def _load(folders: list[Path], device: str, runtime: str, datastore: Datastore | str | Path | None) -> Captioner:
    backends = [_open_backend(folder, device, runtime) for folder in folders]
    opened: Any = datastore
    if isinstance(datastore, str | Path):
        from sightline.engine.retrieval import Datastore

        datastore = user_path(datastore).absolute()
        opened = Datastore.read(datastore)
    captioner = Captioner(backends, opened)
    captioner._loaded_from = [folder.absolute() for folder in folders], device, runtime, datastore
    return captioner


def _open_backend(folder: Path, device: str, runtime: str) -> Backend:
    manifest = _usable_export(folder, device) if runtime == "auto" else None
    if runtime == "onnx" or manifest:
        from sightline.engine.backend import OnnxBackend

        if device != "cpu":
            advice = "this folder has no weights for torch: use device='cpu'"
            advice = advice if is_only_exported(folder) else "use runtime='torch'"
            raise ConfigError(f"device is {device!r} but an exported model runs on the CPU; {advice}")
        return OnnxBackend(folder, manifest)
    check_model_folder(folder)  # before torch is asked for: it would not help
    try:
        from sightline.engine.torch_backend import TorchBackend
        from sightline.nn.checkpoint import load_checkpoint
    except ModuleNotFoundError as error:
        why = "runtime 'torch'" if runtime == "torch" else f"{printable(folder)}, which has no usable ONNX export,"
        raise missing_extra(error, why) or error from None

    return TorchBackend(load_checkpoint(folder), device)


def is_only_exported(folder: Path) -> bool:
    """Whether a folder holds an exported model and no checkpoint: onnxruntime runs it, on the CPU."""
    return (folder / MANIFEST).is_file() and not ((folder / "config.json").is_file() and has_weights(folder))


def _usable_export(folder: Path, device: str) -> Manifest | None:
    """A folder's export, if it should run: always where there is nothing else, never one of other weights."""
    if is_only_exported(folder):
        return Manifest.read(folder)
    if not (folder / MANIFEST).is_file():
        return None
    if device != "cpu" or find_spec("onnxruntime") is None:
        return None
    manifest = Manifest.read(folder)
    if changed := manifest.differs(folder):
        log.warning("%s: %s has changed since the export: torch is used; run `sightline export`", folder, changed)
        return None
    return manifest
