"""``sightline explain``: one photo's caption, and where each word came from, as a picture or a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.options import Beam, LengthPenalty, MaxLength, MinLength, NoRepeat, Runtime, given
from sightline.errors import ConfigError
from sightline.io.files import local_path, printable


def explain(
    photo: Annotated[str, typer.Argument(help="One photo.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A picture (.png) or a page (.html).", show_default="PHOTO-explained.html"),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", help="A model folder or hub name; several make an ensemble. Default: the shipped one."
        ),
    ] = None,
    occlusion: Annotated[
        bool, typer.Option("--occlusion", help="Hide patches of the photo instead of asking the model's attention.")
    ] = False,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    min_length: MinLength = None,
    no_repeat_ngram: NoRepeat = None,
    candidates: Annotated[
        int | None, typer.Option("--candidates", help="Captions on the page, best first.", show_default="up to 5")
    ] = None,
    runtime: Runtime = "auto",
) -> None:
    """Show where each word of a photo's caption came from."""
    source, target = _files(photo, output)
    options = given(
        beam=beam, length_penalty=length_penalty, max_length=max_length, min_length=min_length,
        no_repeat_ngram=no_repeat_ngram, candidates=candidates,
    )  # fmt: skip

    from sightline.engine.captioner import load
    from sightline.explain import explain as run
    from sightline.io.images import open_image

    open_image(source)  # a photo that cannot be read is known before the model is loaded
    captioner = load(*(model or ()), runtime=runtime)
    explanation = run(captioner, source, occlusion, **options)
    explanation.save(target)
    typer.echo(explanation.caption.sentence())
    typer.echo(f"written to {printable(target)}")


def _files(photo: str, output: Path | None) -> tuple[Path, Path]:
    """The photo's path and the file to write, which must be a picture or a page and not the photo itself."""
    from sightline.explain.explanation import check_suffix

    try:
        source = local_path(photo)
    except ValueError as error:
        raise ConfigError(f"{printable(photo)} {error}") from None
    target = output or Path(f"{source.stem}-explained.html")
    check_suffix(target)
    if target.resolve() == source.resolve():
        raise ConfigError(f"{printable(target)} is the photo itself: name another file to write")
    return source, target
