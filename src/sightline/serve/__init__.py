"""Captions over HTTP: a small FastAPI app around one `Captioner`, and the page at ``/``.

FastAPI with a batcher of our own rather than LitServe: measured beside each other (``benchmarks/README.md``), LitServe
has no limit on what waits, goes on computing for clients that hung up, and needs a second process that holds the model.
"""

from sightline.serve.settings import Settings

__all__ = ["Settings"]
