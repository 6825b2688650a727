"""Libraries that only bulk jobs need: imported when used, and one clear line where they are missing."""

from __future__ import annotations

from typing import Any

from sightline.errors import ConfigError


def parquet() -> Any:
    """``pyarrow.parquet``."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise ConfigError("Parquet needs pyarrow: run `pip install pyarrow`, or write .jsonl or .csv instead") from None
    return pyarrow.parquet


def ray() -> Any:
    """``ray``, with Ray Data."""
    try:
        import ray
        import ray.data
    except ImportError:
        raise ConfigError("a cluster needs Ray: run `pip install 'ray[data]' pyarrow`, or leave out --ray") from None
    return ray
