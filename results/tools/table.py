"""Bring README.md, RESULTS.md and the pages in results/ up to date with the JSON files in results/.

    python results/tools/table.py            write the pages
    python results/tools/table.py --check    only report which page is out of date, with exit code 1

A page holds blocks between `<!-- results: NAME -->` and `<!-- end of results: NAME -->`. Everything between is made
anew from the JSON files; everything outside is people's text and is never touched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import sections
from script import RESULTS, ROOT, parser, run
from sightline.errors import DataError
from sightline.io.files import printable, write_atomically


def filled(page: str, blocks: Mapping[str, str], name: str = "the page") -> str:
    """The page with its blocks replaced; a block without its place, or a place without its block, is an error."""
    for block, text in blocks.items():
        begin, end = f"<!-- results: {block} -->", f"<!-- end of results: {block} -->"
        if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
            raise DataError(f"{name} has no place for {block!r}: it needs {begin} and {end} once, in this order")
        page = page[: page.index(begin)] + f"{begin}\n\n{text.strip()}\n\n" + page[page.index(end) :]
    for block in re.findall(r"<!-- results: (.*?) -->", page):
        if block not in blocks:
            raise DataError(f"{name} has a place for {block!r}, which nothing fills: take the two comments out")
    return page


def pages(root: Path = ROOT, results: Path = RESULTS) -> dict[Path, tuple[str, str]]:
    """Each page as it is and as it should be."""
    found = {}
    for name, blocks in sections.blocks(results).items():
        path = root / name
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise DataError(f"{printable(path)} cannot be read: {error.strerror}") from None
        if name.startswith("results/"):  # links are relative to the page
            blocks = {block: made.replace("](results/", "](") for block, made in blocks.items()}
        found[path] = (text, filled(text, blocks, name))
    return found


def write_pages(root: Path = ROOT, results: Path = RESULTS) -> list[Path]:
    """Returns the pages that changed."""
    changed = {path: after for path, (before, after) in pages(root, results).items() if before != after}
    for path, text in changed.items():
        write_atomically(path, text)
    return list(changed)


def main(arguments: Sequence[str]) -> None:
    reader = parser(__doc__)
    reader.add_argument("--check", action="store_true", help="change nothing")
    if reader.parse_args(arguments).check:
        behind = [path.name for path, (before, after) in pages().items() if before != after]
        if behind:
            raise DataError(f"out of date: {', '.join(behind)}; run `python results/tools/table.py`")
        print("every page agrees with the JSON files in results/")
        return
    print(" ".join(path.name for path in write_pages()) or "nothing to change")


if __name__ == "__main__":
    raise SystemExit(run(main))
