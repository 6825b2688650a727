"""Tables in Markdown, aligned in the file as on the page."""

from __future__ import annotations

from collections.abc import Sequence

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
