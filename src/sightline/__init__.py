"""Sightline captions photos, and shows for each word which part of the photo the model attended to.

>>> import sightline
>>> captioner = sightline.load()
>>> captioner.caption("dog.jpg").text
>>> sightline.explain.explain(captioner, "dog.jpg").save("dog-explained.html")
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as in `typing`, whose import would be half of the time before Ctrl-C is handled
if TYPE_CHECKING:
    from typing import Any

    from sightline import explain
    from sightline.engine.captioner import Captioner, load
    from sightline.engine.pipeline import pipeline
    from sightline.errors import SightlineError
    from sightline.evaluation.scoring import evaluate
    from sightline.training.trainer import train
    from sightline.types import Caption, Failure, Word

__version__ = "0.1.0"
__all__ = [
    "Caption",
    "Captioner",
    "Failure",
    "SightlineError",
    "Word",
    "evaluate",
    "explain",
    "load",
    "pipeline",
    "train",
]

_HOMES = {  # where each public name is defined; `explain` is a module of its own
    "Caption": "types",
    "Failure": "types",
    "Word": "types",
    "SightlineError": "errors",
    "Captioner": "engine.captioner",
    "load": "engine.captioner",
    "pipeline": "engine.pipeline",
    "evaluate": "evaluation",
    "train": "training.trainer",
}


def __getattr__(name: str) -> Any:
    """Nothing heavy is imported until it is used."""
    if name == "explain":
        return import_module("sightline.explain")
    if name not in _HOMES:
        raise AttributeError(f"module 'sightline' has no attribute {name!r}")
    try:
        return getattr(import_module(f"sightline.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        from sightline.errors import missing_extra

        raise missing_extra(error, f"sightline.{name}") or error from None


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
