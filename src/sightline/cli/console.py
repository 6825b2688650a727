"""What every command shares: results on stdout, messages on stderr, score names, and options with one wording."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from sightline.errors import ConfigError, nearest
from sightline.io import progress
from sightline.io.files import printable
from sightline.types import METRIC_NAMES, Failure

if TYPE_CHECKING:
    from rich.console import Console

STDIN = "-"  # as a file name
LOWER_IS_BETTER = ("chair_i", "chair_s")

# -- options that several commands share ------------------------------------------------------------------------------

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        "-m",
        help="A model folder or hub name; several make an ensemble.",
        show_default="the default model",
    ),
]
Runtime = Annotated[
    str,
    typer.Option("--runtime", help="Compute with torch, with onnx (an exported model), or auto: onnx where possible."),
]
Datastore = Annotated[
    str | None,
    typer.Option("--datastore", help="Retrieve neighbours from this folder of `sightline retrieval build`."),
]
IncludeUnsure = Annotated[
    bool, typer.Option("--include-unsure", help="Also write unsure captions to sidecars and photos.")
]
MinConfidence = Annotated[
    float,
    typer.Option(
        "--min-confidence", min=0, max=1, help="Leave captions of a lower confidence out of sidecars and photos."
    ),
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Caption this many photos at once.")]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Run on a Ray cluster: HOST:PORT, or auto for this machine's cluster or itself.",
    ),
]
Data = Annotated[str, typer.Option("--data", help="The dataset's folder, a captions table, or hf:OWNER/NAME.")]
DataSources = Annotated[
    list[str], typer.Option("--data", help="A dataset's folder, a captions table, or hf:OWNER/NAME; several are mixed.")
]
Objects = Annotated[
    str | None,
    typer.Option("--objects", help="Object labels for CHAIR.", show_default="objects.json in the dataset's folder"),
]
Format = Annotated[
    str, typer.Option("--format", help="The dataset's format: auto, flickr8k, flickr30k, coco, folder or shards.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one value of the recipe; repeatable."),
]
Metrics = Annotated[
    str | None,
    typer.Option("--metrics", help="Comma-separated: bleu, rouge, cider, meteor, chair.", show_default="all"),
]

# Decoding options: the common ones have flags of their own, --set takes any. DecodingOptions declares them all, but is
# not imported for --help; a test holds these flags to its names, types and help texts.
Beam = Annotated[int | None, typer.Option("--beam", help="Hypotheses kept at each step; 1 is greedy search.")]
Candidates = Annotated[int | None, typer.Option("--candidates", help="Captions of each photo, best first.")]
Sample = Annotated[bool, typer.Option("--sample", help="Sample captions instead of searching for the best.")]
Temperature = Annotated[float | None, typer.Option("--temperature", help="Sampling only: above 1 is more varied.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Sampling only: the same number gives the same captions.")]
SAMPLING_ONLY = ("temperature", "top_k", "top_p", "seed")
SetDecoding = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set any decoding option, e.g. no_repeat_words=true; repeatable."),
]


def decoding_options(settings: list[str] | None, **flags: Any) -> dict[str, Any]:
    """The decoding options given by flags and by ``--set NAME=VALUE``; the model's own values hold for the rest."""
    chosen = {name: value for name, value in flags.items() if value is not None and value is not False}
    if settings:
        _add_settings(chosen, settings)
    unused = [name for name in SAMPLING_ONLY if name in chosen]
    if unused and not chosen.get("sample"):
        flag = f"--{unused[0]}" if flags.get(unused[0]) is not None else f"--set {unused[0]}"
        raise ConfigError(f"{flag} acts on sampling only: add --sample, or leave it out")
    return chosen


def _add_settings(chosen: dict[str, Any], settings: list[str]) -> None:
    from sightline.decoding import user_options

    kinds = {option.name: option.type for option in user_options()}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting}: write NAME=VALUE, as in --set top_p=0.9")
        if name not in kinds:
            known = nearest(name, kinds) or f"; give one of {', '.join(kinds)}"
            raise ConfigError(f"--set {setting}: unknown decoding option {name!r}{known}")
        if name in chosen:
            raise ConfigError(f"{name} is given twice: give it once")
        chosen[name] = _parse(setting, text, kinds[name])


def _parse(setting: str, text: str, kind: type) -> Any:
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        wanted = {int: "a whole number", float: "a number", bool: "true or false"}[kind]
        raise ConfigError(f"--set {setting}: {text!r} is not {wanted}") from None


def metric_options(text: str | None) -> dict[str, Any]:
    """``metrics=[...]`` where ``--metrics`` was given, and nothing where it was not."""
    return {"metrics": [name.strip() for name in text.split(",") if name.strip()]} if text else {}


# -- where output goes ------------------------------------------------------------------------------------------------


class _PlainLines(logging.Handler):
    """Looks stderr up at each line: a progress bar replaces it while it is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(self.format(record))


def set_up(debug: bool = False) -> None:
    """Make streams take any file name, print our log as plain lines, and silence the libraries below us."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    prints = is_first_process()
    progress.use_terminal(prints and sys.stderr.isatty())
    logger = logging.getLogger("sightline")
    logger.handlers, logger.propagate = [_PlainLines()], False
    logger.setLevel(logging.DEBUG if debug else logging.INFO if prints else logging.ERROR)
    if debug:
        return
    logging.getLogger().addHandler(logging.NullHandler())
    threading.excepthook = lambda failed: complain(f"a thread ended: {failed.exc_type.__name__}: {failed.exc_value}")
    warnings.simplefilter("ignore")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # worker processes
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def _open_streams() -> None:
    """Open what the caller closed (``>&-``), or the next file that is opened would be taken for standard output.

    Then standard input is empty, standard error is not shown, and writing to standard output fails.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            os.dup2(opened, number)
            if opened != number:
                os.close(opened)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    raw = getattr(sys.stdout, "buffer", None)
    if isinstance(raw, io.FileIO):  # python -u; `close_output` needs a buffer
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding=sys.stdout.encoding, line_buffering=True)


def close_output() -> OSError | None:
    """Write the rest of standard output; why it is incomplete, if it is, for what was not written is in its buffer."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _give_up(sys.stdout)
        return error
    return None


def _give_up(stream: TextIO) -> None:
    """Write no more of a stream: Python would try again when it ends, and change the exit code."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def is_first_process() -> bool:
    """Whether this is the process that prints; torchrun numbers the others from 1."""
    return os.environ.get("RANK", "0") == "0"


def complain(text: str) -> None:
    """Print one line on stderr. Where that is impossible the work goes on: there is nobody to tell."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _give_up(sys.stderr)


def failure_line(failure: Failure) -> str:
    """Which input failed, and why."""
    name = "standard input" if failure.source == STDIN else printable(failure.source)
    return failure.reason if failure.reason.startswith(name) else f"{name} {failure.reason}"


def console() -> Console:
    """For tables on stdout: as wide as the terminal, and never cut where there is none."""
    from rich.console import Console

    class PlainConsole(Console):
        def on_broken_pipe(self) -> None:
            raise

    return PlainConsole(highlight=False, width=None if sys.stdout.isatty() else 200)


def score_label(key: str) -> str:
    return METRIC_NAMES.get(key, key) + (" (lower is better)" if key in LOWER_IS_BETTER else "")


def ordered(keys: list[str]) -> list[str]:
    """Score names in the order papers give them."""
    known = list(METRIC_NAMES)
    return sorted(keys, key=lambda key: known.index(key) if key in METRIC_NAMES else len(known))


def percent(value: float) -> str:
    return f"{100 * value:.1f}"
