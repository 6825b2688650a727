"""``sightline explain``: one photo's caption, and where each word came from, as a picture or a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.console import Beam, Candidates, Models, Runtime, SetDecoding, decoding_options
from sightline.errors import ConfigError
from sightline.io.files import local_path, printable


def explain(
    photo: Annotated[str, typer.Argument(help="The photo.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write a picture (.png) or a page (.html).", show_default="PHOTO-explained.html"
        ),
    ] = None,
    model: Models = None,
    occlusion: Annotated[
        bool,
        typer.Option(
            "--occlusion", help="Measure by hiding patches of the photo instead of reading the model's attention."
        ),
    ] = False,
    beam: Beam = None,
    candidates: Candidates = None,
    settings: SetDecoding = None,
    runtime: Runtime = "auto",
) -> None:
    """Show where each word of a photo's caption came from. The page has up to five captions to choose from."""
    source, target = _files(photo, output)
    options = decoding_options(settings, beam=beam, candidates=candidates)

    from sightline.engine.captioner import load
    from sightline.explain import explain as run
    from sightline.io.images import open_image

    open_image(source)  # a photo that cannot be read is reported before the model is loaded
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
