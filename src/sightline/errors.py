"""Every mistake a user can cause, as one line: what happened, which value, what to do."""

import difflib
from collections.abc import Iterable
from importlib.util import find_spec
from typing import NamedTuple


class SightlineError(Exception):
    """Base of all errors that are the input's fault and not ours."""


class ConfigError(SightlineError):
    """A recipe, an option or a command line that cannot be carried out."""


class MissingExtraError(ConfigError, ImportError):
    """A command that needs packages which only an extra of the installation brings."""


class DataError(SightlineError):
    """A dataset, captions file or results file that is missing, empty or contradicts itself."""


class ImageError(SightlineError):
    """A picture that cannot be opened, is too large, or is not a picture."""


class CheckpointError(SightlineError):
    """A model folder that is incomplete, damaged or does not fit."""


DISTRIBUTION = "sightline-captions"  # what pip installs; it is imported, and run, as `sightline`


class Extra(NamedTuple):
    """An optional part of the installation: what it is for, and its packages by the name they are imported by."""

    purpose: str
    packages: dict[str, str]


EXTRAS = {
    "train": Extra(
        "training, and captioning with models that were not exported",
        {name: name for name in ("torch", "torchvision", "timm", "accelerate")},
    ),
    "serve": Extra(
        "`sightline serve`",
        {
            "fastapi": "fastapi",
            "starlette": "starlette",
            "uvicorn": "uvicorn",
            "python_multipart": "python-multipart",
            "prometheus_client": "prometheus-client",
        },
    ),
    "bulk": Extra("Parquet tables", {"pyarrow": "pyarrow"}),
    "ray": Extra("`--ray`: bulk jobs on a cluster", {"ray": "ray[data]", "pyarrow": "pyarrow"}),
    "onnx": Extra(
        "`sightline export`, and the page's model in the browser",
        {"torch": "torch", "onnx": "onnx", "onnxscript": "onnxscript"},
    ),
    "hub": Extra("models on the Hugging Face hub", {"huggingface_hub": "huggingface_hub"}),
    "datasets": Extra("`--data hf:owner/name`", {"datasets": "datasets"}),
    "bpe": Extra("models with a BPE tokenizer", {"tokenizers": "tokenizers"}),
    "metrics": Extra("METEOR", {"pycocoevalcap": "pycocoevalcap"}),
}


def install_command(extra: str) -> str:
    """The command that installs an extra."""
    return f'pip install "{DISTRIBUTION}[{extra}]"'


def missing_packages(extra: str) -> list[str]:
    """The packages of an extra that are not installed."""
    return [package for module, package in EXTRAS[extra].packages.items() if find_spec(module) is None]


def require(extra: str, purpose: str) -> None:
    """Raise `MissingExtraError` unless the packages of an extra are installed."""
    if missing := missing_packages(extra):
        raise MissingExtraError(f"{purpose} needs {', '.join(missing)}: {install_command(extra)}")


def missing_extra(error: ImportError, purpose: str = "this") -> MissingExtraError | None:
    """The same error for a failed import of a package that an extra brings; None for any other import."""
    module = (error.name or "").partition(".")[0]
    for extra, (_, packages) in EXTRAS.items():
        if module in packages and find_spec(module) is None:
            return MissingExtraError(f"{purpose} needs {packages[module]}: {install_command(extra)}")
    return None


def nearest(name: str, choices: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` where a known name is close to a wrong one, else nothing."""
    close = difflib.get_close_matches(name, list(choices), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
