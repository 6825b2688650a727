"""A model as ONNX graphs: writing them (`sightline export`), describing them, opening them with onnxruntime."""

from __future__ import annotations

from sightline.io.model_files import WEIGHTS
from sightline.onnx.exported import MANIFEST, Manifest

__all__ = ["MANIFEST", "WEIGHTS", "Manifest"]
