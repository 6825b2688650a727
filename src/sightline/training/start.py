"""Starting from a trained model: its words, its weights, and room for the new words of one's own captions.

A word that the model has not met begins as its ``<unknown>``: in training that token stood for every rare word, so the
model knows where one belongs, and only has to learn which.
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
BY_WORD = ("decoder.embedding.vectors.weight", "decoder.output.weight", "decoder.output.bias")  # a row for each word


def start_tokenizer(name: str, captions: Iterable[str], new_words: int | None) -> Tokenizer:
    """The model's vocabulary, with the words that these captions have ``new_words`` times or more after it."""
    before = load_checkpoint(resolve(name)).tokenizer
    if new_words is None:
        return before
    tokenizer = before.extended(captions, new_words)
    if new := tokenizer.tokens[before.size :]:
        shown = ", ".join(new[:8]) + (", …" if len(new) > 8 else "")
        log.info("%s beside the model's %d: %s", counted(len(new), "new word"), before.size, shown)
    return tokenizer


def start_from(model: CaptionModel, name: str) -> None:
    """Put a trained model's weights into this one, which may have more words."""
    folder = resolve(name)
    seen, ours = load_checkpoint(folder).model.encoder.preprocess, model.encoder.preprocess
    if seen != ours:
        log.warning("training.init=%s saw photos another way: %s, now %s", name, seen, ours)
    try:
        load_model_tensors(model, folder / "model.safetensors", lambda given: grown(given, model.decoder.vocabulary))
    except CheckpointError as error:
        raise ConfigError(
            f"training.init={name!r} is not the recipe's kind of model ({error}); its own recipe is: "
            f"`sightline train {folder / 'recipe.toml'} --set training.init={name}`"
        ) from None


def grown(tensors: dict[str, Tensor], vocabulary: int) -> dict[str, Tensor]:
    """The same tensors with rows for a larger vocabulary: each new word takes the unknown one's, and a share of it."""
    wider = dict(tensors)
    for name in BY_WORD:
        if name in tensors and (new := vocabulary - len(tensors[name])) > 0:
            rows = tensors[name][Tokenizer.unknown].expand(new, *tensors[name].shape[1:])
            if tensors[name].dim() == 1:  # together with the unknown as likely as it was alone
                rows = rows - math.log(new + 1)
            wider[name] = torch.cat([tensors[name], rows])
    return wider
