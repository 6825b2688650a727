"""Captions in the form of an image-to-text pipeline of transformers, for code that was written for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sightline.engine.captioner import Captioner, load
from sightline.errors import ConfigError, nearest
from sightline.io.images import ImageSource
from sightline.types import Caption, Failure

TASKS = ("image-to-text",)


class ImageToTextPipeline:
    """Photos in, ``{"generated_text": ...}`` out: one for each photo, also where there is only one photo."""

    def __init__(self, captioner: Captioner) -> None:
        self.captioner = captioner

    def __call__(
        self,
        images: ImageSource | list[ImageSource] | Iterator[ImageSource],
        *,
        batch_size: int = 16,
        max_new_tokens: int | None = None,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Caption a path, bytes, Pillow image or array, or several of them; ``options`` are `DecodingOptions`.

        One photo that cannot be read raises `ImageError`; one of several has an empty text and an ``error``.
        """
        if max_new_tokens is not None:
            options["max_length"] = self.captioner.max_length(max_new_tokens)
        if isinstance(images, list | tuple | Iterator):
            return [_as_output(result) for result in self.captioner.stream(images, batch_size, **options)]
        return [_as_output(self.captioner.caption(images, **options))]


def _as_output(result: Caption | Failure) -> dict[str, Any]:
    if isinstance(result, Failure):
        return {"generated_text": "", "error": result.reason}
    output = {"generated_text": result.text, "confidence": round(result.confidence, 4), "unsure": result.unsure}
    return output | ({"others": [_as_output(other) for other in result.others]} if result.others else {})


def pipeline(
    task: str = TASKS[0], model: Captioner | str | Path | None = None, *, device: str = "cpu"
) -> ImageToTextPipeline:
    """The pipeline of a model folder, a hub name, a captioner, or else of the default model."""
    if task not in TASKS:
        raise ConfigError(f"the task is {task!r}{nearest(task, TASKS)}: Sightline has {', '.join(TASKS)}")
    if isinstance(model, Captioner):
        return ImageToTextPipeline(model)
    return ImageToTextPipeline(load(*([] if model is None else [model]), device=device))
