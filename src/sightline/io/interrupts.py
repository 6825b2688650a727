"""Ctrl-C, by one rule for every command: the first one stops the work cleanly, the second ends the process at once.

Python handles a signal between two instructions of the main thread. That thread may be waiting in a library, or be
cleaning up after the first Ctrl-C, which another exception would cut short. So a thread of its own counts the signals
as the operating system delivers them, and the second one needs nothing of the main thread.

The command imports this before anything else, so it imports little itself.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

EXIT_CODE = 130  # as a shell reports a program that Ctrl-C ended
_number = 0  # of interrupts so far, counted by the thread
_raised = False
_exit_code = 0


def count_interrupts() -> None:
    """From now on the first Ctrl-C raises `KeyboardInterrupt`, and the second ends the process and its children."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, as in the background of a shell
        return
    signals, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if hasattr(os, "register_at_fork"):  # signals of a forked child are not ours
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    threading.Thread(target=_count, args=(signals,), name="sightline-interrupts", daemon=True).start()
    signal.signal(signal.SIGINT, _raise_once)
    atexit.register(_leave)  # the first to be registered runs last


def interrupted() -> bool:
    """Whether Ctrl-C was pressed. Then an error may be a library's answer to `KeyboardInterrupt`."""
    return _raised or _number > 0


def raise_if_lost() -> None:
    """Raise `KeyboardInterrupt` again where the first one was lost: in a destructor, or where a library catches all."""
    if _raised:
        raise KeyboardInterrupt


def finish(code: int) -> None:
    """The work is over. A first Ctrl-C while the process ends changes nothing; the second still ends it at once."""
    global _exit_code
    _exit_code = code
    if signal.getsignal(signal.SIGINT) is _raise_once:
        signal.signal(signal.SIGINT, _do_nothing)


@contextmanager
def left_to_parent() -> Iterator[None]:
    """Processes started here never see Ctrl-C, which a terminal sends to all of them: their parent ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def say(text: str) -> None:
    """A line on standard error, whatever state Python's own stream is in."""
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())


def _raise_once(*_: object) -> None:
    global _raised
    _raised = True
    signal.signal(signal.SIGINT, _do_nothing)
    raise KeyboardInterrupt


def _do_nothing(*_: object) -> None:
    pass


def _leave() -> None:
    """End an interrupted process here, where everything is closed.

    What Python does after this takes time. It also ends by the signal instead of with our exit code, if a
    `KeyboardInterrupt` has passed through an ``exec``, although it was handled.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _exit_code == EXIT_CODE:
        _end()


def _count(signals: int) -> None:
    global _number
    while numbers := os.read(signals, 512):
        _number += numbers.count(signal.SIGINT)
        if _number > 1:
            if os.isatty(2):
                say("\x1b[?25h")  # a progress bar had hidden the cursor
            say("stopped at once")
            _end()


def _end() -> None:
    """End this process and its children. Files are written atomically: this is no worse than a kill."""
    try:
        _end_children()
    finally:
        os._exit(EXIT_CODE)


def _end_children() -> None:
    if started := sys.modules.get("multiprocessing"):
        for child in started.active_children():
            child.kill()
    for child in _descendants("self"):
        with suppress(OSError):
            os.kill(int(child), signal.SIGTERM)


def _descendants(process: str) -> list[str]:
    """The process ids of its children and of theirs; empty where the system has no such list, as only Linux has."""
    found: list[str] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):  # noqa: PTH208
            with open(f"/proc/{process}/task/{thread}/children") as listing:  # noqa: PTH123
                found += listing.read().split()
    return found + [below for child in found for below in _descendants(child)]
