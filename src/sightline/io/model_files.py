"""The files of a model folder, read without torch: size limits, JSON, hashes, tensors."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import CheckpointError
from sightline.io.files import printable

LARGEST_JSON = 64 * 2**20
TYPES = {  # safetensors' names of what our models are made of
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "I16": np.int16,
    "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip


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


def file_hash(path: Path) -> str:
    """SHA-256, as ``sha256sum`` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checkpoint_hash(folder: str | Path) -> str:
    """A short name for exactly these weights, for score signatures."""
    return file_hash(Path(folder) / "model.safetensors")[:12]


@dataclass(frozen=True)
class TensorSlice:
    """Where in a safetensors file one tensor lies: raw numbers, little-endian, row by row."""

    kind: str  # "F16"
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    length: int

    def array(self, data: bytes) -> np.ndarray:
        """The tensor in the file's bytes, not copied."""
        kind = np.dtype(TYPES[self.kind]).newbyteorder("<")
        return np.frombuffer(data, kind, math.prod(self.shape), self.offset).reshape(self.shape)


def tensor_slices(path: Path) -> dict[str, TensorSlice]:
    """What a safetensors file holds, from its header alone: a length of 8 bytes, JSON, then the tensors."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(size, LARGEST_JSON):
                raise ValueError("the header is longer than the file")
            header = json.loads(file.read(length))
        found = {}
        for name, about in header.items():
            if name != "__metadata__":
                begin, end = about["data_offsets"]
                found[name] = TensorSlice(about["dtype"], tuple(about["shape"]), 8 + length + begin, end - begin)
                _check_slice(found[name], size)
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise CheckpointError(f"{printable(path)} cannot be read: {error}; copy the file again") from None


def _check_slice(place: TensorSlice, size: int) -> None:
    if any(type(side) is not int or side < 0 for side in place.shape):
        raise ValueError(f"a shape is {list(place.shape)}")
    width = np.dtype(TYPES[place.kind]).itemsize if place.kind in TYPES else None  # others can be counted, not read
    if place.offset < 8 or place.length < 0 or place.offset + place.length > size:
        raise ValueError("a tensor lies outside of the file")
    if width and place.length != width * math.prod(place.shape):
        raise ValueError("a tensor has another size than its shape")
