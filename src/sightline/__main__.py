"""The command ``sightline``, also as ``python -m sightline``: a process from its first import to its exit code."""

from __future__ import annotations

import gc
import os
import sys

from sightline.io.interrupts import EXIT_CODE, count_interrupts, finish, interrupted, say


def main() -> None:
    """Run the command line and exit: 0 fine, 1 when some input failed, 2 wrong usage, 130 interrupted.

    ``serve`` and ``watch`` run until Ctrl-C, and then exit with 0.
    """
    count_interrupts()
    gc.set_threshold(50_000)  # torch's and timm's imports make a million objects and no garbage: collecting took 0.7 s
    try:
        code = _run(sys.argv[1:])
    except (KeyboardInterrupt, Exception):  # before or after the command itself
        if not interrupted():
            raise
        say("interrupted")
        code = EXIT_CODE
    finish(code)
    gc.freeze()  # at exit Python would go through them all once more
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    from sightline.cli import app, run

    if "_SIGHTLINE_COMPLETE" in os.environ:  # the shell asks what could follow
        app()
    debug = "--debug" in arguments  # at any position
    return run([argument for argument in arguments if argument != "--debug"], debug)


if __name__ == "__main__":
    main()
