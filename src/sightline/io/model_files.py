"""The files of a model folder, read without torch: size limits, JSON, hashes, tensors."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.errors import CheckpointError
from sightline.io.files import printable

if TYPE_CHECKING:
    import numpy as np

SCALE = ".scale"  # ends the name of an int8 matrix' scales, one for each row
LARGEST_JSON = 64 * 2**20
TYPES = {  # safetensors' names of the element types in our models, and numpy's
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
    "I8": "i1", "U8": "u1", "BOOL": "?",
}  # fmt: skip


def check_model_folder(folder: Path) -> None:
    """`CheckpointError` where a model's files are missing."""
    if not folder.is_dir():
        raise CheckpointError(f"{str(folder)!r} is not a model folder: no such folder; `sightline models` lists models")
    missing = [name for name in ("config.json", "model.safetensors", "tokenizer.json") if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{str(folder)!r} is not a model folder: {', '.join(missing)} missing")


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
        import numpy as np  # hub names are resolved without it

        return np.frombuffer(data, TYPES[self.kind], math.prod(self.shape), self.offset).reshape(self.shape)


def read_arrays(path: Path, sha256: str) -> dict[str, np.ndarray] | None:
    """Every tensor of a safetensors file, none copied; None if it is not the file with this hash."""
    slices = tensor_slices(path)
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        return None
    return {name: found.array(data) for name, found in slices.items() if found.kind in TYPES}


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


def _check_slice(found: TensorSlice, size: int) -> None:
    if any(type(side) is not int or side < 0 for side in found.shape):
        raise ValueError(f"a shape is {list(found.shape)}")
    width = int(TYPES[found.kind][-1].replace("?", "1")) if found.kind in TYPES else None  # others: counted, not read
    if found.offset < 8 or found.length < 0 or found.offset + found.length > size:
        raise ValueError("a tensor lies outside of the file")
    if width and found.length != width * math.prod(found.shape):
        raise ValueError("a tensor has another size than its shape")
