"""An encoder and a decoder as one network, and the folder it is saved in.

A model is a folder: config.json, model.safetensors, tokenizer.json, recipe.toml, metrics.json.
Only tensors, JSON and TOML: nothing in it is ever executed, and weights that do not fit exactly are rejected.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from sightline.decoding.options import check_decoding
from sightline.errors import CheckpointError, ConfigError
from sightline.io.files import atomic_path, user_path, write_atomically
from sightline.io.model_files import (
    SCALE,
    WEIGHTS,
    check_model_folder,
    checkpoint_hash,
    read_json,
    read_weights,
    remove_shards,
    shards,
    tensor_slices,
)
from sightline.nn.decoders import Decoder, build_decoder
from sightline.nn.encoders import Encoder, encoder_from_spec
from sightline.nn.encoders.base import Unfilled, load_strictly
from sightline.recipes.config import check_part
from sightline.tokenizers import Tokenizer, tokenizer_from_json
from sightline.types import DecoderOutput, ImageFeatures

FORMAT = "sightline-1"
LOADING = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir")  # timm's
INT8_SIZE = 2**14  # numbers in a matrix that is stored in int8
SIZES = ("features", "vocabulary", "word_dimension", "max_length")  # of a decoder, from its data and encoder

Precision = Literal["float32", "float16", "int8"]  # what the weights are stored in; they are computed in float32


class CaptionModel(nn.Module):
    def __init__(self, encoder: Encoder, decoder: Decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, photos: Tensor | ImageFeatures, tokens: Tensor) -> DecoderOutput:
        """Teacher forcing: pixels (B, 3, S, S) or ready features of B photos, tokens (B*K, T)."""
        return self.decoder(self.features(photos), tokens)

    def features(self, photos: Tensor | ImageFeatures) -> ImageFeatures:
        if isinstance(photos, ImageFeatures):
            return photos
        if self.encoder.trained and torch.is_grad_enabled():
            return self.encoder(photos)
        with torch.no_grad():
            return self.encoder(photos)

    def count(self) -> tuple[int, int]:
        """All parameters, and those that are trained."""
        every = list(self.parameters())
        return sum(p.numel() for p in every), sum(p.numel() for p in every if p.requires_grad)


@dataclass(frozen=True)
class Checkpoint:
    """What a model folder holds."""

    model: CaptionModel
    tokenizer: Tokenizer
    decoding: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    recipe: str = ""
    folder: Path | None = None

    def signature(self) -> str:
        """Which weights these are, for score signatures."""
        return checkpoint_hash(self.folder) if self.folder else ""


def save_checkpoint(folder: str | Path, checkpoint: Checkpoint, precision: Precision = "float32") -> None:
    """Every file is written whole or not at all; the weights come last but for the metrics."""
    folder = Path(folder)
    config = {
        "format": FORMAT,
        "encoder": checkpoint.model.encoder.spec(),
        "decoder": checkpoint.model.decoder.spec,
        "decoding": checkpoint.decoding,
    }
    write_atomically(folder / "config.json", json.dumps(config, indent=2) + "\n")
    write_atomically(folder / "tokenizer.json", json.dumps(checkpoint.tokenizer.to_json(), ensure_ascii=False) + "\n")
    if checkpoint.recipe:
        write_atomically(folder / "recipe.toml", checkpoint.recipe)
    (folder / "confidence.json").unlink(missing_ok=True)  # it was fitted to the weights that are replaced
    save_tensors(folder / WEIGHTS, model_tensors(checkpoint.model, precision))
    remove_shards(folder)
    write_atomically(folder / "metrics.json", json.dumps(checkpoint.metrics, indent=2) + "\n")


def load_checkpoint(folder: str | Path) -> Checkpoint:
    folder = user_path(folder)
    check_model_folder(folder)
    config = read_json(folder / "config.json")
    if config.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder}/config.json: format is {config.get('format')!r}, this version reads {FORMAT!r}"
        )
    tokenizer = tokenizer_from_json(read_json(folder / "tokenizer.json"))
    with Unfilled(), _bounded_by(folder):
        model = _build(config, tokenizer, folder)
    check_decoding(config.get("decoding", {}), tokenizer, folder / "config.json")
    load_model_tensors(model, folder)
    metrics, recipe = folder / "metrics.json", folder / "recipe.toml"
    return Checkpoint(
        model.eval().requires_grad_(False),
        tokenizer,
        config.get("decoding", {}),
        read_json(metrics) if metrics.is_file() else {},
        recipe.read_text(encoding="utf-8", errors="replace") if recipe.is_file() else "",
        folder,
    )


@contextmanager
def _bounded_by(folder: Path) -> Iterator[None]:
    """Networks are built only as far as the folder's weights can fill them.

    So a config that asks for 20,000 layers ends at once. Some encoders are built with a classifier that is then
    dropped, or in parts that are replaced; hence the margins.
    """
    sizes = [math.prod(found.shape) for found in tensor_slices(folder).values()]
    most_tensors, most_numbers = 4 * len(sizes) + 1000, 4 * sum(sizes) + 2**28
    tensors = numbers = 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal tensors, numbers
        tensors, numbers = tensors + 1, numbers + (0 if parameter is None else parameter.numel())
        if tensors > most_tensors or numbers > most_numbers:
            raise ConfigError(f"it asks for far more weights than the {len(sizes):,} tensors of {WEIGHTS}")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _build(config: dict[str, Any], tokenizer: Tokenizer, folder: Path) -> CaptionModel:
    where = f"{folder}/config.json"
    unknown = set(config) - {"format", "encoder", "decoder", "decoding"}
    if unknown:
        raise CheckpointError(
            f"{where}: unknown key {sorted(unknown)[0]!r}; the file was changed or is of another version"
        )
    try:
        encoder, decoder = dict(config["encoder"]), dict(config["decoder"])
        _check_no_other_files(encoder)
        check_part("encoder", {key: value for key, value in encoder.items() if key not in ("preprocess", "shape")})
        check_part("decoder", {key: value for key, value in decoder.items() if key not in SIZES})
        _check_sizes(encoder, decoder)
        if decoder["max_length"] != tokenizer.max_length:
            raise CheckpointError(
                f"{folder}: max_length is {decoder['max_length']} in config.json, "
                f"{tokenizer.max_length} in tokenizer.json"
            )
        if decoder["vocabulary"] != tokenizer.size:
            raise CheckpointError(
                f"{folder}: the model has {decoder['vocabulary']} words, its tokenizer.json {tokenizer.size}; "
                "they do not belong together"
            )
        built = encoder_from_spec(encoder)
        if built.dimension != decoder["features"]:
            features = decoder["features"]
            raise CheckpointError(f"{where}: decoder.features is {features}, the encoder gives {built.dimension}")
        return CaptionModel(built, build_decoder(**decoder))
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError, ConfigError) as error:
        text = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise CheckpointError(f"{where} does not describe a model: {text}") from None


def _check_no_other_files(encoder: dict[str, Any]) -> None:
    """A model folder holds all of its weights: nothing in it may have other files read or fetched."""
    loading = next(_keys_that_load(encoder.get("options"), "options"), None)
    if key := loading or ("weights" if "weights" in encoder else None):
        raise ConfigError(f"encoder.{key} is not allowed here: a model folder has its own weights")


def _keys_that_load(options: Any, path: str) -> Iterator[str]:
    """Options that name a file or a download, also those of one encoder among several."""
    if isinstance(options, dict):
        for key, value in options.items():
            if key in LOADING:
                yield f"{path}.{key}"
            yield from _keys_that_load(value, f"{path}.{key}")
    elif isinstance(options, list):
        for index, value in enumerate(options):
            yield from _keys_that_load(value, f"{path}.{index}")


def _check_sizes(encoder: dict[str, Any], decoder: dict[str, Any]) -> None:
    """What a recipe does not hold and so is not checked with the rest: numbers that follow from data and encoder."""
    for key in SIZES:
        if type(decoder[key]) is not int or decoder[key] < 1:
            raise ConfigError(f"decoder.{key} is {decoder[key]!r}, not a whole number above 0")
    shape = encoder.get("shape", [1, 1, 1])
    if not isinstance(shape, list) or len(shape) != 3 or any(type(size) is not int or size < 1 for size in shape):
        raise ConfigError(f"encoder.shape is {shape!r}, not three whole numbers above 0")


def model_tensors(model: nn.Module, precision: Precision = "float32") -> dict[str, Tensor]:
    """A network's tensors for a file, each once: tied ones under their first name.

    "int8" stores each row of a large matrix as whole numbers up to 127 and one scale, the rest in half precision.
    """
    tied = _tied(model)
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name in tied:
            continue
        tensor = tensor.detach().cpu().contiguous().clone()
        if precision == "int8" and tensor.ndim == 2 and tensor.numel() >= INT8_SIZE and tensor.is_floating_point():
            tensors[name + SCALE] = scale = _int8_scale(tensor)
            tensor = (tensor / scale).round().to(torch.int8)
        elif precision != "float32" and tensor.is_floating_point():
            tensor = tensor.half()
        tensors[name] = tensor
    return tensors


def _int8_scale(matrix: Tensor) -> Tensor:
    """A 127th of each row's greatest number, to 16 bits: 127 times it is exact, so saving again changes nothing."""
    fraction, exponent = torch.frexp(matrix.float().abs().amax(1, keepdim=True) / 127)
    scale = torch.ldexp((fraction * 2**16).round() / 2**16, exponent)
    return torch.where(scale > 0, scale, torch.ones(()))


def load_model_tensors(
    model: nn.Module, folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None
) -> None:
    """A folder's weights into a network, strictly; ``change`` may first make them fit."""
    path = folder / WEIGHTS
    tensors = _as_floats(_read_shards(folder) if shards(folder) else read_tensors(path)[0])
    tensors = change(tensors) if change else tensors
    tensors |= {
        name: tensors[first] for name, first in _tied(model).items() if first in tensors and name not in tensors
    }
    load_strictly(model, tensors, path)


def _as_floats(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as they are computed with, whatever they were stored in."""
    scaled = {name for name, tensor in tensors.items() if tensor.dtype == torch.int8 and name + SCALE in tensors}
    scales = {name + SCALE for name in scaled}
    return {
        name: tensor.float() * tensors[name + SCALE] if name in scaled
        else tensor.float() if tensor.is_floating_point()
        else tensor
        for name, tensor in tensors.items()
        if name not in scales
    }  # fmt: skip


def _tied(model: nn.Module) -> dict[str, str]:
    """Names of tensors that are another one's, with that one's name."""
    first: dict[int, str] = {}
    tied = {}
    for name, tensor in model.state_dict().items():
        if tensor.numel() and first.setdefault(tensor.data_ptr(), name) != name:
            tied[name] = first[tensor.data_ptr()]
    return tied


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """One safetensors file, atomically; a full disk leaves the file that was there."""
    with atomic_path(path) as temporary:
        temporary.touch()
        permissions = temporary.stat().st_mode  # as of any new file here; safetensors leaves its own to the owner alone
        try:
            save_file(tensors, temporary, metadata)
            temporary.chmod(permissions)
        except SafetensorError as error:  # safetensors wraps the operating system's error in its own
            if "No space left" in str(error):
                raise OSError(28, "No space left on device") from None
            raise OSError(5, str(error)) from None


def _read_shards(folder: Path) -> dict[str, Tensor]:
    try:
        return load(read_weights(folder))
    except SafetensorError as error:
        raise CheckpointError(f"{folder}: the weights cannot be read: {error}; copy them again") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a safetensors file and its metadata."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; copy the file again") from None
