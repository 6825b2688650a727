"""The lock of an output: two runs that write one table exclude each other."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import IO

from sightline.errors import ConfigError
from sightline.io.files import make_folder, printable, writing


def lock_output(lock: Path, output: Path) -> IO[str]:
    """Lock an output for this run. The system releases the lock when the process ends, however it ends."""
    while True:
        with writing(output):
            make_folder(lock.parent)
            file = lock.open("a+", encoding="utf-8")
            locked = _try_lock(file)
        if not locked:
            holder = _holder(file)
            raise ConfigError(
                f"{printable(output)} is being written by another run ({holder}): wait for it, or choose another output"
            )
        try:
            moved = not os.path.samestat(os.fstat(file.fileno()), lock.stat())
        except FileNotFoundError:
            moved = True
        if not moved:
            with suppress(OSError):  # on a full disk nobody learns who holds the lock, but it is held
                os.ftruncate(file.fileno(), 0)
                os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())
            return file
        file.close()  # another run finished and removed its folder meanwhile: try again


def _holder(file: IO[str]) -> str:
    with file:
        try:
            file.seek(0)
            return file.readline().strip() or "another process"
        except OSError:  # Windows locks it against reading, too
            return "another process"


def _try_lock(file: IO[str]) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the latter on Windows
        return False
    return True
