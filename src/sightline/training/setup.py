"""From a recipe and a dataset to the parts of a run: tokenizer, model, objective, photos and batches.

A run may start from a trained model: from its vocabulary and weights, with embeddings resized for new words. A new word
is initialised with the weights of ``<unknown>``: in training that token stood for every rare word, so the model already
knows where a rare word fits, and only has to learn which one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.data import Dataset, Example, check_sources, first_of_each_source, read_text
from sightline.data.loader import Batch, BlankPhotos, CachedPhotos, CaptionLoader, PhotoSource, PixelPhotos
from sightline.decoding.options import DecodingOptions, misfit
from sightline.errors import CheckpointError, ConfigError, DataError
from sightline.io.files import counted
from sightline.nn.checkpoint import CaptionModel, Checkpoint, load_checkpoint, load_model_tensors
from sightline.nn.decoders import build_decoder, build_embedding
from sightline.nn.encoders import Encoder, build_encoder
from sightline.nn.hub import resolve
from sightline.recipes.config import PLUS, Distillation, PretrainedEncoder, Recipe
from sightline.tokenizers import Tokenizer, train_tokenizer
from sightline.training.feature_cache import FeatureCache
from sightline.training.objectives import OBJECTIVES, Objective
from sightline.training.objectives.distillation import teacher_captions, teacher_photos

log = logging.getLogger("sightline.training")
PER_WORD = ("decoder.embedding.vectors.weight", "decoder.output.weight", "decoder.output.bias")  # a row for each word
PHOTO = "decoder.photo.weight"  # a transformer's projection of the features
FEW_PHOTOS = 50  # in val: scores on fewer are uncertain


@dataclass
class Parts:
    """All that one run is made of."""

    recipe: Recipe
    tokenizer: Tokenizer
    model: CaptionModel
    objective: Objective
    train: CaptionLoader
    val: CaptionLoader
    val_examples: list[Example]
    references: list[Sequence[str]]  # of the training photos
    sources: list[str]  # of the training photos: the dataset of a mixture
    objects: list[frozenset[str] | None]  # of the training photos, where they are labelled

    def checkpoint(self, metrics: dict) -> Checkpoint:
        return Checkpoint(
            self.model, self.tokenizer, decoding_of(self.recipe, self.tokenizer), metrics, self.recipe.to_toml()
        )


def build_tokenizer(recipe: Recipe, dataset: Dataset) -> Tokenizer:
    """From the training captions; a distilled or continued run keeps its predecessor's vocabulary, or adds to it."""
    if recipe.training.init:
        return start_tokenizer(recipe.training.init, dataset.captions("train"), recipe.training.new_words)
    if isinstance(recipe.objective, Distillation):
        return load_teacher(recipe.objective).tokenizer
    section = recipe.tokenizer
    return train_tokenizer(section.name, dataset.captions("train"), **section.options())


def decoding_of(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, Any]:
    """The model's decoding options; `ConfigError` where its tokenizer does not allow them."""
    decoding = {"max_length": tokenizer.max_length, **recipe.decoding.options()}
    if fault := misfit(DecodingOptions(**decoding), tokenizer):
        raise ConfigError(f"[decoding] does not fit: {fault}")
    return decoding


def load_teacher(objective: Distillation) -> Checkpoint:
    try:
        return load_checkpoint(resolve(objective.teacher))
    except CheckpointError as error:
        raise ConfigError(
            f"the teacher: {error}; train one first, or name a trained model: --set objective.teacher=FOLDER"
        ) from None


def build_model(recipe: Recipe, tokenizer: Tokenizer) -> CaptionModel:
    encoder = build_encoder(recipe.encoder.name, **encoder_options(recipe))
    options = recipe.decoder.options()
    embedding = build_embedding(words=tokenizer.tokens, width=options["width"], **recipe.embedding.model_dump())
    decoder = build_decoder(
        recipe.decoder.name,
        features=encoder.dimension,
        vocabulary=tokenizer.size,
        max_length=tokenizer.max_length,
        embedding=embedding,
        **options,
    )
    model = CaptionModel(encoder, decoder)
    if recipe.training.init:
        start_from(model, recipe.training.init)
    encoder.set_trainable(recipe.encoder.train)
    return model


def encoder_options(recipe: Recipe) -> dict[str, Any]:
    """A run that starts from a model has its encoder's weights from there: nothing is downloaded to be replaced.

    Of several encoders some may be new to that model, so all of them are given their weights first.
    """
    options, joined = recipe.encoder.options(), PLUS in recipe.encoder.name
    replaced = recipe.training.init and not joined and options.get("weights") == "library"
    return options | {"weights": "random"} if replaced else options


def photos_of(recipe: Recipe, dataset: Dataset, split: str) -> list[Example]:
    """What a run sees of a split."""
    examples, training = list(dataset.examples(split)), recipe.training
    if split == "train":
        enough = [example for example in examples if len(example.captions) >= recipe.data.min_captions]
        return first_of_each_source(enough, training.train_photos)
    return first_of_each_source(examples, training.val_photos) if split == "val" else examples


def build_parts(recipe: Recipe, dataset: Dataset, process: int = 0, processes: int = 1) -> Parts:
    if OBJECTIVES[recipe.objective.name].wants_trained and not recipe.training.init:
        log.warning(
            "objective %r learns from what the model itself draws, and this one begins with random weights: "
            "--set training.init=FOLDER begins with a trained one's",
            recipe.objective.name,
        )
    encoder = recipe.encoder
    random = isinstance(encoder, PretrainedEncoder) and encoder.weights == "random" and encoder.train == "frozen"
    if random and not recipe.training.init and recipe.data.text is None:
        log.warning("encoder %r is frozen with random weights: --set encoder.train=all trains it", encoder.name)
    tokenizer = build_tokenizer(recipe, dataset)
    decoding_of(recipe, tokenizer)  # before hours of training, not after them
    model = build_model(recipe, tokenizer)
    data, training = recipe.data, recipe.training
    train, val = photos_of(recipe, dataset, "train"), photos_of(recipe, dataset, "val")
    if not train:
        raise ConfigError(f"data.min_captions={data.min_captions}: no training photo has so many; give a smaller one")
    if not val:
        raise DataError(f"{dataset.name} in {dataset.root} has no val split: add a source that has one with --data")
    if len(val) < FEW_PHOTOS:
        size = counted(len(val), "val photo")
        log.warning(
            "scores on only %s are uncertain, and so is the choice of the best epoch: use more, if you can", size
        )
    weights = photo_weights(train, data.weights)
    teacher = load_teacher(recipe.objective) if isinstance(recipe.objective, Distillation) else None
    train_captions = [example.captions for example in train]
    views = data.views if data.augment else 1
    teacher_data = teacher_photos(teacher, train, views, data.cache_precision) if teacher else None
    if teacher and teacher_data and isinstance(recipe.objective, Distillation) and recipe.objective.captions:
        extra = teacher_captions(teacher, teacher_data, recipe.objective.captions)
        train_captions = [(*human, *more) for human, more in zip(train_captions, extra)]
    if data.text is not None:
        if training.metric != "loss":
            raise ConfigError("data.text trains on captions without photos: set training.metric=loss")
        train_captions += [(text,) for path in data.text for text in read_text(path)]
    common: dict[str, Any] = {"pad": tokenizer.pad, "process": process, "processes": processes, "workers": data.workers}
    objective = _objective(recipe, tokenizer, model, teacher)
    return Parts(
        recipe,
        tokenizer,
        model,
        objective,
        CaptionLoader(
            [[tokenizer.encode(text) for text in captions] for captions in train_captions],
            photo_source(
                model, train, recipe, augment=data.augment, views=teacher_data.cache.views if teacher_data else 1
            ),
            batch_size=training.batch_size,
            choice=data.captions,
            per_photo=data.captions_per_photo,
            by_length=data.by_length,
            seed=training.seed,
            teacher=teacher_data,
            weights=weights,
            **common,
        ),
        CaptionLoader(
            [[tokenizer.encode(text) for text in example.captions] for example in val],
            photo_source(model, val, recipe, augment=False),
            batch_size=max(training.batch_size, processes),
            choice="all",
            **common,
        ),
        val,
        [example.captions for example in train],
        [example.source for example in train],
        [example.objects for example in train],
    )


def photo_weights(examples: Sequence[Example], weights: dict[str, float]) -> list[float] | None:
    """How often an epoch has each photo, by its source; None where all have it once."""
    if not weights:
        return None
    check_sources("data.weights", weights, [example.source for example in examples])
    return [weights.get(example.source, 1.0) for example in examples]


def _objective(recipe: Recipe, tokenizer: Tokenizer, model: CaptionModel, teacher: Checkpoint | None) -> Objective:
    options = recipe.objective.options()
    if teacher is not None:
        options |= {"teacher": teacher.model, "student_dimension": model.encoder.dimension}
    return OBJECTIVES[recipe.objective.name](pad=tokenizer.pad, **options)


def photo_source(
    model: CaptionModel, examples: Sequence[Example], recipe: Recipe, augment: bool, views: int = 1
) -> PhotoSource:
    """Cached features of a frozen encoder, pixels, or nothing where the language alone is learned.

    With ``views``, pixels are augmented as the teacher's cached views were, and not anew each time.
    """
    if recipe.data.text is not None:
        return BlankPhotos(model.encoder.dimension)
    cache = feature_cache(model, examples, recipe, augment)
    if cache is None:
        return PixelPhotos(examples, model.encoder.preprocess, augment, views)
    return CachedPhotos(cache.fill(workers=recipe.data.workers))


def feature_cache(
    model: CaptionModel, examples: Sequence[Example], recipe: Recipe, augment: bool
) -> FeatureCache | None:
    """The cache a run reads, filled or not; None where it trains on pixels."""
    if model.encoder.trained or not recipe.data.cache:
        return None
    views = recipe.data.views if augment else 1
    if augment and views == 1:
        raise ConfigError("data.augment with cached features needs data.views of 2 or more, or data.cache=false")
    return FeatureCache(
        model.encoder, examples, grid=model.decoder.uses_grid, views=views, precision=recipe.data.cache_precision
    )


class Step(nn.Module):
    """Model and objective as one module, so that whatever spreads a run over processes sees every trained weight."""

    def __init__(self, model: CaptionModel, objective: Objective):
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.objective(self.model, batch)


def start_tokenizer(name: str, captions: Iterable[str], new_words: int | None) -> Tokenizer:
    """The model's vocabulary, followed by the words that occur ``new_words`` times or more in these captions."""
    before = load_checkpoint(resolve(name)).tokenizer
    if new_words is None:
        return before
    tokenizer = before.extended(captions, new_words)
    if new := tokenizer.tokens[before.size :]:
        shown = ", ".join(new[:8]) + (", …" if len(new) > 8 else "")
        log.info("%s added to the model's %d: %s", counted(len(new), "new word"), before.size, shown)
    return tokenizer


def start_from(model: CaptionModel, name: str) -> None:
    """Initialise from a trained model's weights; this model may have a larger vocabulary."""
    folder = resolve(name)
    encoder = load_checkpoint(folder).model.encoder
    before, now = encoder.preprocess, model.encoder.preprocess
    if before != now:
        log.warning("training.init=%s was trained with other preprocessing: %s, now %s", name, before, now)

    def fit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if model.encoder.name.startswith(encoder.name + PLUS):
            tensors = with_encoders(tensors, encoder, model)
        return resized(tensors, model.decoder.vocabulary)

    try:
        load_model_tensors(model, folder, fit)
    except CheckpointError as error:
        raise ConfigError(
            f"training.init={name!r} is not the recipe's kind of model ({error}); its own recipe is: "
            f"`sightline train {folder / 'recipe.toml'} --set training.init={name}`"
        ) from None


def with_encoders(tensors: dict[str, Tensor], encoder: Encoder, model: CaptionModel) -> dict[str, Tensor]:
    """The same model with further encoders beside its own, as in ``clip-vit-b16+dinov2-vits14``.

    The decoder's weights for the new features are zero, so the run begins with that model's captions.
    """
    parts = len(encoder.name.split(PLUS))
    own = {
        (f"encoder.parts.0.{name}" if parts == 1 else f"encoder.{name}"): tensors[f"encoder.{name}"]
        for name in encoder.state_dict()
    }
    new = {name: value for name, value in model.state_dict().items() if name.startswith("encoder.") and name not in own}
    decoder = {name: value for name, value in tensors.items() if not name.startswith("encoder.")}
    if PHOTO in decoder:  # (width, features)
        decoder[PHOTO] = F.pad(decoder[PHOTO], (0, model.encoder.dimension - encoder.dimension))
    return own | new | decoder


def resized(tensors: dict[str, Tensor], vocabulary: int) -> dict[str, Tensor]:
    """The same tensors with embeddings and output rows for a larger vocabulary, new ones copied from ``<unknown>``."""
    larger = dict(tensors)
    for name in PER_WORD:
        if name in tensors and (new := vocabulary - len(tensors[name])) > 0:
            rows = tensors[name][Tokenizer.unknown].expand(new, *tensors[name].shape[1:])
            if tensors[name].dim() == 1:  # the bias: new words and <unknown> share the probability it had alone
                rows = rows - math.log(new + 1)
            larger[name] = torch.cat([tensors[name], rows])
    return larger
