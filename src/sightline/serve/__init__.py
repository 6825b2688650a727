"""Captions over HTTP: a small FastAPI app around one `Captioner`, and the page at ``/``.

FastAPI with a small batcher, not LitServe: ``benchmarks/README.md`` compares the two.
"""

from sightline.serve.settings import Settings

__all__ = ["Settings"]
