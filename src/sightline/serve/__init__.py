"""Captions over HTTP: a small FastAPI app around one `Captioner`, and the page at ``/``.

FastAPI with a batcher of our own rather than LitServe, measured beside each other: ``benchmarks/README.md`` says why.
"""

from sightline.serve.settings import Settings

__all__ = ["Settings"]
