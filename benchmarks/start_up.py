"""How long the first answer takes: ``sightline --help``, ``sightline caption`` and, in Python, the first caption.

    python benchmarks/start_up.py [MODEL_FOLDER] [PHOTO]

Each in a process of its own, so that every import counts. Without a folder the shipped model is loaded; without a photo
a grey one is captioned. Peak memory is the whole process's, as the operating system counts it. A folder that
`sightline export` wrote to is measured with onnxruntime as well; processor time is what a busy machine does not change.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time

from PIL import Image

from sightline.captioner import DEFAULT_MODEL, resolve
from sightline.exported import MANIFEST

HELP = """
import sys
from sightline.cli import run
code = run(["--help"])
assert "torch" not in sys.modules, "the help imports torch"
sys.exit(code)
"""

FIRST_CAPTION = """
import json, resource, sys, time
clock = [time.perf_counter()]
photo, runtime, *model = sys.argv[1:]
if runtime == "torch":
    import torch
clock.append(time.perf_counter())
import sightline
captioner = sightline.load(*model, runtime=runtime)
clock.append(time.perf_counter())
captioner.caption(photo)
clock.append(time.perf_counter())
assert ("torch" in sys.modules) == (runtime == "torch"), "torch was imported"
used = resource.getrusage(resource.RUSAGE_SELF)
unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, kilobytes elsewhere
seconds = [after - before for before, after in zip(clock, clock[1:])]
print(json.dumps([*seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / unit]))
"""


def run(*command: str) -> tuple[float, str]:
    """Seconds from start to end of a Python process, and what it printed last."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True)
    return time.perf_counter() - began, done.stdout.splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a model folder")
    parser.add_argument("photo", nargs="?")
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile(suffix=".png") as grey:
        Image.new("RGB", (500, 375), "grey").save(grey, "PNG")
        grey.flush()
        report(options.photo or grey.name, [options.model] if options.model else [])


def report(photo: str, model: list[str]) -> None:
    help_seconds = statistics.median(run("-c", HELP)[0] for _ in range(5))
    print(f"{'sightline --help (no torch)':34}{help_seconds:8.2f} s")
    exported = (resolve(model[0]) if model else DEFAULT_MODEL) / MANIFEST
    for runtime in ("torch", *(["onnx"] if exported.is_file() else [])):
        command = ["-m", "sightline", "caption", photo, "--runtime", runtime, *(["--model", *model] if model else [])]
        caption_seconds = statistics.median(run(*command)[0] for _ in range(3))
        runs = [json.loads(run("-c", FIRST_CAPTION, photo, runtime, *model)[1]) for _ in range(3)]
        torch, load, caption, processor, memory = (statistics.median(column) for column in zip(*runs))
        for name, seconds in (
            (f"sightline caption PHOTO, {runtime}", caption_seconds),
            (f"Python: first caption, {runtime}", torch + load + caption),
            *([("  import torch", torch)] if runtime == "torch" else []),
            ("  other imports, load the model", load),
            ("  caption one photo", caption),
            ("  processor time, whole process", processor),
        ):
            print(f"{name:34}{seconds:8.2f} s")
        print(f"{'  peak memory':34}{memory:8.0f} MB")


if __name__ == "__main__":
    main()
