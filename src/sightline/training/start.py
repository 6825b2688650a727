"""Starting from a trained model: its vocabulary and weights, with embeddings resized for new words.

A new word is initialised with the weights of ``<unknown>``: in training that token stood for every rare word, so the
model already knows where a rare word fits, and only has to learn which one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from sightline.errors import CheckpointError, ConfigError
from sightline.io.files import counted
from sightline.nn.caption_model import CaptionModel
from sightline.nn.checkpoint import load_checkpoint, load_model_tensors
from sightline.nn.hub import resolve
from sightline.tokenizers import Tokenizer

log = logging.getLogger("sightline.training")
PER_WORD = ("decoder.embedding.vectors.weight", "decoder.output.weight", "decoder.output.bias")  # a row for each word


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
    before, now = load_checkpoint(folder).model.encoder.preprocess, model.encoder.preprocess
    if before != now:
        log.warning("training.init=%s was trained with other preprocessing: %s, now %s", name, before, now)
    try:
        load_model_tensors(model, folder / "model.safetensors", lambda given: resized(given, model.decoder.vocabulary))
    except CheckpointError as error:
        raise ConfigError(
            f"training.init={name!r} is not the recipe's kind of model ({error}); its own recipe is: "
            f"`sightline train {folder / 'recipe.toml'} --set training.init={name}`"
        ) from None


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
