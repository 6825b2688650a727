"""What the tools share: how each starts (log lines on stderr, a user's mistake as one line with an exit code), and
tables in Markdown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from sightline.cli.console import complain, set_up
from sightline.errors import ConfigError, SightlineError

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
Item = TypeVar("Item")


def parser(description: str | None) -> argparse.ArgumentParser:
    """One that prints a module's docstring as it is written."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def run(main: Callable[[Sequence[str]], None], arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 something could not be read or written, 2 wrong usage."""
    set_up()
    try:
        main(sys.argv[1:] if arguments is None else arguments)
    except SightlineError as error:
        complain(f"error: {error}")
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    return 0


def named(models: Sequence[str]) -> dict[str, Path]:
    """``NAME=FOLDER`` arguments: what each model is called in the pictures and tables, and its folder."""
    found = {}
    for model in models:
        name, equals, folder = model.partition("=")
        if not (name and equals and folder) or name in found:
            raise ConfigError(f"{model!r} names no model: write NAME=FOLDER, each name once")
        found[name] = Path(folder)
    return found


def check_outside(path: Path) -> Path:
    """Refuse a folder in the repository for what shows the dataset's photos: they are not ours to give away."""
    if path.resolve().is_relative_to(ROOT):
        raise ConfigError(f"{path} is in the repository, and the dataset's photos must not: choose another folder")
    return path


def evenly(items: Sequence[Item], count: int) -> list[Item]:
    """So many of a list, evenly spaced, so that nobody picked them."""
    return list(items[:: max(1, len(items) // max(1, count))][:count])


NOTHING = "Not run yet."


def table(head: Sequence[str], lines: Sequence[Sequence[str]], left: int = 0) -> str:
    """The first ``left`` columns hold words, the others numbers, which stand at the right."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *lines])


def escape(text: str) -> str:
    """Plain text, whatever signs it holds."""
    for sign in "\\`*_[]<>|":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())


def number(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}f}"
