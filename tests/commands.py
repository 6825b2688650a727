"""The command in a process of its own, what came of it, and a recipe that trains in a second."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import sightline

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(sightline.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
PATCHES = """
name = "patches"
image_size = 32
patch_size = 8
width = 16
blocks = 1
heads = 2
"""

# Where the tests themselves run in the background, their children inherit that interrupts are ignored.
MINDS_INTERRUPTS = "import signal as s; s.signal(s.SIGINT, s.default_int_handler)\n"
MAIN = "from sightline.__main__ import main; main()"


def tiny_recipe(encoder: str = PATCHES) -> str:
    return f"""
title = "Tiny"
[tokenizer]
name = "word"
min_count = 1
max_length = 12
[encoder]
{encoder.strip()}
[decoder]
name = "transformer"
width = 16
heads = 2
blocks = 1
dropout = 0.0
[training]
epochs = 1
batch_size = 4
"""


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def complaints(self) -> list[str]:
        return self.err.splitlines()


Command = Callable[..., Outcome]


def process(*arguments: object, **options) -> Outcome:
    """The real command in a process of its own."""
    line = [sys.executable, "-m", "sightline", *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, timeout=300, **{"env": ENVIRONMENT, **options})
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())
