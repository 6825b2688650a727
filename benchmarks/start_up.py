"""How long the first answer takes: ``sightline --help``, ``sightline caption`` and, in Python, the first caption.

    python benchmarks/start_up.py [MODEL_FOLDER] [PHOTO] [--rounds 5]

Each in a process of its own, so that every import counts; the kinds take turns, medians are shown. Without a folder the
shipped model is loaded; without a photo a grey one is captioned. A folder with graphs is measured with onnxruntime and
with torch. Processor time (of all threads) is what a machine with other work to do changes least; peak memory is the
whole process's, as the operating system counts it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

from PIL import Image

from sightline.nn.hub import DEFAULT_MODEL, resolve
from sightline.onnx import MANIFEST

HELP = """
import sys
from sightline.cli import run
code = run(["--help"])
assert "torch" not in sys.modules, "the help imports torch"
sys.exit(code)
"""

FIRST_CAPTION = """
import sys
import sightline
photo, runtime, *model = sys.argv[1:]
sightline.load(*model, runtime=runtime).caption(photo)
assert ("torch" in sys.modules) == (runtime == "torch"), "torch was imported"
"""
UNIT = 2**20 if sys.platform == "darwin" else 2**10  # of peak memory: bytes there, kilobytes elsewhere


def run(*command: str) -> tuple[float, float, float]:
    """Of a Python process from start to end: seconds, processor seconds, megabytes at most."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)[:200]} failed")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / UNIT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a model folder")
    parser.add_argument("photo", nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile(suffix=".png") as grey:
        Image.new("RGB", (500, 375), "grey").save(grey, "PNG")
        grey.flush()
        report(options.photo or grey.name, [options.model] if options.model else [], options.rounds)


def report(photo: str, model: list[str], rounds: int) -> None:
    exported = ((resolve(model[0]) if model else DEFAULT_MODEL) / MANIFEST).is_file()
    kinds = {"sightline --help": ["-c", HELP]}
    for runtime in ("onnx", "torch") if exported else ("torch",):
        named = ["--model", *model] if model else []
        kinds[f"sightline caption PHOTO, {runtime}"] = [
            "-m",
            "sightline",
            "caption",
            photo,
            "--runtime",
            runtime,
            *named,
        ]
        kinds[f"Python, first caption, {runtime}"] = ["-c", FIRST_CAPTION, photo, runtime, *model]
    taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in kinds}
    for turn in range(rounds + 1):
        for name, command in kinds.items():
            found = run(*command)
            if turn:  # the first fills the disk's cache
                taken[name].append(found)
    print(f"{'':34}{'seconds':>10}{'processor':>12}{'MB at most':>12}")
    for name, runs in taken.items():
        wall, processor, memory = (statistics.median(column) for column in zip(*runs))
        print(f"{name:34}{wall:10.2f}{processor:12.2f}{memory:12.0f}")


if __name__ == "__main__":
    main()
