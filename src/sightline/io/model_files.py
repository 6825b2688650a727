"""The files of a model folder, read and written without torch: size limits, JSON, hashes, tensors, shards.

The weights are one safetensors file, or its shards: consecutive pieces of that file, each compressed by gzip, so that
``cat model-?-of-3.safetensors.gz | gunzip > model.safetensors`` gives it back. Weights in int8 lose a tenth by it.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.errors import CheckpointError
from sightline.io.files import printable, write_atomically

if TYPE_CHECKING:
    import numpy as np

WEIGHTS = "model.safetensors"
RUN = "run.json"  # what a training run writes first
RUN_PICTURES = CURVES, SAMPLES = ("curves.png", "samples.png")  # what it draws
SHARD = 40_000_000  # bytes of it in one shard: hosts of repositories warn from 50 MB on
SCALE = ".scale"  # ends the name of an int8 matrix' scales, one for each row
LARGEST_JSON = 64 * 2**20
TYPES = {  # safetensors' names of the element types in our models, and numpy's
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
    "I8": "i1", "U8": "u1", "BOOL": "?",
}  # fmt: skip


def check_model_folder(folder: Path) -> None:
    """`CheckpointError` where a model's files are missing."""
    if not folder.is_dir():
        raise CheckpointError(f"there is no model folder {str(folder)!r}: `sightline models` lists models")
    missing = [name for name in ("config.json", WEIGHTS, "tokenizer.json") if not (folder / name).is_file()]
    if shards(folder):
        missing.remove(WEIGHTS)
    if missing and (folder / RUN).is_file():
        raise CheckpointError(f"{str(folder)!r} has no model yet: no epoch of this training run is finished")
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
    return weights_hash(Path(folder))[:12]


# -- weights ----------------------------------------------------------------------------------------------------------


def has_weights(folder: Path) -> bool:
    return (folder / WEIGHTS).is_file() or bool(shards(folder))


def weights_hash(folder: Path) -> str:
    """SHA-256 of the weights' file, which is the same for its shards."""
    return hashlib.sha256(read_weights(folder)).hexdigest() if shards(folder) else file_hash(folder / WEIGHTS)


def weights_size(folder: Path) -> int:
    """Bytes on disk."""
    return sum(path.stat().st_size for path in shards(folder) or [folder / WEIGHTS])


def read_weights(folder: Path) -> bytes:
    """The bytes of the weights' file, whether it lies there whole or in shards."""
    found = shards(folder)
    try:
        if not found:
            return (folder / WEIGHTS).read_bytes()
        with ThreadPoolExecutor(4) as threads:
            return b"".join(threads.map(_read_shard, found))
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(f"{printable(folder)}: the weights cannot be read: {reason}; copy them again") from None


def shards(folder: Path) -> list[Path]:
    """The shards of a folder's weights in order; empty where the file lies there whole, or nothing does."""
    if (folder / WEIGHTS).is_file():
        return []
    names = [re.fullmatch(r"model-(\d+)-of-(\d+)\.safetensors\.gz", path.name) for path in folder.glob("model-*.gz")]
    found = {int(name[1]): int(name[2]) for name in names if name}
    if not found:
        return []
    total = max(found.values())
    if lost := sorted(set(range(1, total + 1)) - {number for number, of in found.items() if of == total}):
        raise CheckpointError(f"{printable(folder)}: {_shard_name(lost[0], total)} is missing; copy it again")
    return [folder / _shard_name(number, total) for number in range(1, total + 1)]


def write_shards(folder: Path) -> None:
    """Replace the weights' file by its shards."""
    data = read_weights(folder)
    pieces = [data[start : start + SHARD] for start in range(0, len(data), SHARD)]
    for number, piece in enumerate(pieces, 1):
        # Weights in int8 hardly ever repeat, so that only the Huffman code of deflate helps; 31 makes it a gzip file.
        packer = zlib.compressobj(9, zlib.DEFLATED, 31, 9, zlib.Z_HUFFMAN_ONLY)
        write_atomically(folder / _shard_name(number, len(pieces)), packer.compress(piece) + packer.flush())
    remove_shards(folder, but_of=len(pieces))
    (folder / WEIGHTS).unlink(missing_ok=True)


def remove_shards(folder: Path, but_of: int = 0) -> None:
    """All shards, but those of so many."""
    for path in folder.glob("model-*-of-*.safetensors.gz"):
        if not path.name.endswith(f"-of-{but_of}.safetensors.gz"):
            path.unlink()


def _shard_name(number: int, total: int) -> str:
    return f"model-{number}-of-{total}.safetensors.gz"


def _read_shard(path: Path) -> bytes:
    """A small file may unfold to any size, so no more is unpacked than a shard may hold."""
    unpacker = zlib.decompressobj(31)
    try:
        data = unpacker.decompress(path.read_bytes(), SHARD)
    except zlib.error as error:
        raise CheckpointError(f"{printable(path)} is damaged ({error}); copy it again") from None
    if not unpacker.eof:
        raise CheckpointError(f"{printable(path)} is not a whole shard of weights; copy it again")
    return data


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


def read_arrays(folder: Path, sha256: str) -> dict[str, np.ndarray] | None:
    """Every tensor of a folder's weights, none copied; None if they are not those with this hash."""
    data = read_weights(folder)
    slices = tensor_slices(folder, data)
    if hashlib.sha256(data).hexdigest() != sha256:
        return None
    return {name: found.array(data) for name, found in slices.items() if found.kind in TYPES}


def tensor_slices(folder: Path, data: bytes | None = None) -> dict[str, TensorSlice]:
    """What a folder's weights hold, from the header alone: a length of 8 bytes, JSON, then the tensors.

    ``data`` are the weights, if they have been read already.
    """
    path = folder / WEIGHTS
    if data is None and shards(folder):
        data = read_weights(folder)
    try:
        with path.open("rb") if data is None else io.BytesIO(data) as file:
            size = path.stat().st_size if data is None else len(data)
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
