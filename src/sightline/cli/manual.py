"""The manual page, made from the help texts of the command line itself."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sightline import __version__
from sightline.errors import DataError
from sightline.io.files import atomic_path

CLOSING = """
.SH EXIT STATUS
0: done. 1: some input failed. 2: wrong usage. 130: interrupted; serve and watch, which Ctrl-C
ends, then exit with 0.
.SH ENVIRONMENT
.TP
SIGHTLINE_TOKEN
The bearer token that `sightline serve` asks its clients for.
"""


def manual_page(context: Any) -> str:
    """The page in roff, for the context of the command itself: Typer's, so that help looks as ``--help`` has it."""
    summary, *_ = _paragraphs(context.command.help)
    lines = [
        f'.TH SIGHTLINE 1 "" "sightline {__version__}"',
        ".SH NAME",
        f"sightline \\- {_text(summary[:1].lower() + summary[1:].rstrip('.'))}",
        ".SH SYNOPSIS",
        _usage(context),
        ".SH OPTIONS",
        *_options(context),
        ".SH COMMANDS",
        *_commands(context),
    ]
    return "\n".join(lines) + CLOSING


def _commands(context: Any) -> Iterator[str]:
    for name in context.command.list_commands(context):
        command = context.command.get_command(context, name)
        if command.hidden:
            continue
        inner = type(context)(command, info_name=name, parent=context)
        yield f".SS {_text(inner.command_path)}"
        if hasattr(command, "list_commands"):
            yield _text(" ".join(_paragraphs(command.help)))
            yield from _options(inner)
            yield from _commands(inner)
            continue
        yield from (_usage(inner), ".PP")
        for paragraph in _paragraphs(command.help):
            yield from (_text(paragraph), ".PP")
        yield from _options(inner)


def _usage(context: Any) -> str:
    """What ``--help`` prints after "Usage:"."""
    return _text(f"{context.command_path} {' '.join(context.command.collect_usage_pieces(context))}")


def _options(context: Any) -> Iterator[str]:
    """Arguments and options, each with its help, as ``--help`` lists them."""
    for parameter in context.command.get_params(context):
        if record := parameter.get_help_record(context):
            yield from (".TP", f"\\fB{_text(record[0])}\\fR", _text(record[1]))


def _paragraphs(help: str | None) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", help or "")]


def _text(text: str) -> str:
    """Plain text as roff: no character of it is a command."""
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    escaped = re.sub(r"[^\x00-\x7f]", lambda character: f"\\[u{ord(character[0]):04X}]", escaped)
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


def install_manual(context: Any) -> Path:
    """Write the page to where `man` looks for it: beside the folder with this command, or else the user's own."""
    page = manual_page(context)
    started = sys.argv[0] if Path(sys.argv[0]).name == "sightline" else shutil.which("sightline")
    prefixes = [*([Path(started).absolute().parents[1]] if started else []), Path.home() / ".local"]
    for prefix in prefixes:
        target = prefix / "share" / "man" / "man1" / "sightline.1"
        try:
            with atomic_path(target) as temporary:
                temporary.write_text(page, encoding="utf-8")
            return target
        except DataError as error:
            problem = error
    raise DataError(f"{problem}; or print the page with `sightline --show-man`")
