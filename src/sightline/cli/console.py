"""Who says what where: results on stdout; progress, logs and complaints on stderr, one plain line each."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import TYPE_CHECKING

from sightline.io import progress
from sightline.io.files import printable
from sightline.types import Failure

if TYPE_CHECKING:
    from rich.console import Console

STDIN = "-"  # as a name
SCORES = {
    "bleu_1": "BLEU-1",
    "bleu_2": "BLEU-2",
    "bleu_3": "BLEU-3",
    "bleu_4": "BLEU-4",
    "meteor": "METEOR",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr-D",
    "bleu_1_no_bp": "BLEU-1, no brevity penalty",
    "bleu_2_no_bp": "BLEU-2, no brevity penalty",
    "bleu_3_no_bp": "BLEU-3, no brevity penalty",
    "bleu_4_no_bp": "BLEU-4, no brevity penalty",
}


class _PlainLines(logging.Handler):
    """Looks stderr up at each line: a progress bar puts itself in its place while it lives."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(self.format(record))


def set_up(debug: bool = False) -> None:
    """Streams that take any file name, our log as plain lines, and silence from the libraries below us."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    talks = is_first_process()
    progress.use_terminal(talks and sys.stderr.isatty())
    handler = _PlainLines()
    ours = logging.getLogger("sightline")
    ours.handlers, ours.propagate = [handler], False
    ours.setLevel(logging.DEBUG if debug else logging.INFO if talks else logging.ERROR)
    if debug:
        return
    logging.getLogger().addHandler(logging.NullHandler())
    warnings.simplefilter("ignore")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # worker processes
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def is_first_process() -> bool:
    """Whether this is the process that talks; torchrun numbers the others from 1."""
    return os.environ.get("RANK", "0") == "0"


def complain(text: str) -> None:
    """One line on stderr."""
    print(text, file=sys.stderr, flush=True)


def failure_line(failure: Failure) -> str:
    """What could not be done with which input."""
    name = "standard input" if failure.source == STDIN else printable(failure.source)
    return failure.reason if failure.reason.startswith(name) else f"{name} {failure.reason}"


def console() -> Console:
    """For tables on stdout: as wide as the terminal, and never cut where there is none."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def score_label(key: str) -> str:
    return SCORES.get(key, key)


def ordered(keys: list[str]) -> list[str]:
    """Score names in the order papers give them."""
    known = list(SCORES)
    return sorted(keys, key=lambda key: known.index(key) if key in SCORES else len(known))


def percent(value: float) -> str:
    return f"{100 * value:.1f}"
