"""A model as ONNX graphs: writing them (`sightline export`) and running them with onnxruntime, without torch."""

from __future__ import annotations

from sightline.onnx.manifest import MANIFEST, WEIGHTS, Manifest
from sightline.onnx.session import Exported, load_exported

__all__ = ["MANIFEST", "WEIGHTS", "Exported", "Manifest", "load_exported"]
