"""Files of this package that a command enters, and how often control passes from one file to another.

    python benchmarks/hops.py
    python benchmarks/hops.py caption-onnx explain

Few files and few hops mean that a reader follows a walk through the code without getting lost. Calls of functions are
counted, not imports, returns or comprehensions.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

import sightline
from sightline.cli import run

PACKAGE = str(Path(sightline.__file__).parent)
PHOTO = str(Path(__file__).parents[1] / "examples" / "dog.jpg")
IS_FUNCTION = 1  # CO_OPTIMIZED: bodies of modules and classes do not have it
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")  # from Python 3.12 on most are not calls


class Tracer:
    """Counts while it is active; threads that are started meanwhile are counted each for itself."""

    def __init__(self) -> None:
        self.files: dict[str, int] = {}  # each with its number of entries
        self.hops = 0
        self._last = threading.local()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code, file = frame.f_code, frame.f_code.co_filename
        if event != "call" or not file.startswith(PACKAGE) or not code.co_flags & IS_FUNCTION:
            return
        if code.co_name in COMPREHENSIONS:
            return
        if file != getattr(self._last, "file", None):
            self.files[file] = self.files.get(file, 0) + 1
            self.hops += 1
            self._last.file = file

    def __enter__(self) -> Tracer:
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def command(*arguments: str) -> Callable[[], None]:
    def walk() -> None:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
            code = run(list(arguments))
        if code:
            raise SystemExit(f"sightline {' '.join(arguments)}: exit code {code}: {errors.getvalue().strip()}")

    return walk


def explain() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command("explain", PHOTO, "--runtime", "onnx", "-o", f"{folder}/explained.html")()


WALKS: dict[str, Callable[[], None]] = {
    "caption-onnx": command("caption", PHOTO, "--runtime", "onnx"),
    "caption-torch": command("caption", PHOTO, "--runtime", "torch"),
    "explain": explain,
}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("walks", nargs="*", choices=[[], *WALKS], help="all if none is named")
    parser.add_argument("--files", action="store_true", help="list the files of each walk with their entries")
    given = parser.parse_args(arguments)
    print(f"{'walk':<16}{'files':>6}{'hops':>6}")
    for name in given.walks or WALKS:
        with Tracer() as tracer:
            WALKS[name]()
        print(f"{name:<16}{len(tracer.files):>6}{tracer.hops:>6}")
        if given.files:
            for file, entries in sorted(tracer.files.items(), key=lambda pair: -pair[1]):
                print(f"  {entries:>5}  {Path(file).relative_to(PACKAGE)}")


if __name__ == "__main__":
    main(sys.argv[1:])
