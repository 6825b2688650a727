"""What a model folder's plain files say, read without torch: size limits, JSON, decoding options, hashes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from sightline.decoding.options import DecodingOptions
from sightline.errors import CheckpointError, ConfigError
from sightline.tokenizers import Tokenizer

LARGEST_JSON = 64 * 2**20


def read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise CheckpointError(f"{path} is larger than {LARGEST_JSON >> 20} MB; this is not one of our files")
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; copy the file again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is not a JSON object; copy the file again")
    return value


def check_decoding(options: Any, tokenizer: Tokenizer, where: Path) -> None:
    """Hold a folder's decoding options to the rules, and to the length its tokenizer allows."""
    try:
        chosen = DecodingOptions(**{"max_length": tokenizer.max_length, **options})
    except (TypeError, ConfigError) as error:
        raise CheckpointError(f"{where}: 'decoding' does not fit: {error}") from None
    if chosen.max_length > tokenizer.max_length:
        raise CheckpointError(
            f"{where}: decoding.max_length is {chosen.max_length}, more than the model's {tokenizer.max_length}"
        )


def file_hash(path: Path) -> str:
    """SHA-256, as ``sha256sum`` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checkpoint_hash(folder: str | Path) -> str:
    """A short name for exactly these weights, for score signatures."""
    return file_hash(Path(folder) / "model.safetensors")[:12]
