"""A model that `sightline export` wrote: onnxruntime runs it, and torch is never imported."""

from __future__ import annotations

from sightline.exported.manifest import MANIFEST, WEIGHTS, Manifest
from sightline.exported.runtime import Exported, load_exported

__all__ = ["MANIFEST", "WEIGHTS", "Exported", "Manifest", "load_exported"]
