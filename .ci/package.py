"""Builds the package twice, then installs it as a new user does and times, weighs and tries what came of it.

    python .ci/package.py

1. `python -m build` gives the same sdist and wheel twice, byte for byte.
2. The README's first command runs, word for word, in the unpacked sdist. No torch comes with it; the environment
   stays below MAX_MEGABYTES, and the caption is the one that the README shows.
3. The wheel, in the same environment, captions the same photo.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
# 278 on Linux with Python 3.11: onnxruntime with protobuf 73, numpy 71, this package 38 (its model 28), HEIC 27,
# Pillow 22, pip and setuptools 22, rich and typer 13, pydantic 9. The first three and Pillow make 204.
MAX_MEGABYTES = 285
MAX_SECONDS = 300  # 20 on a quiet machine with a warm cache of packages; this one may be busy
TORCH = ("torch", "torchvision", "timm", "accelerate", "tokenizers", "huggingface_hub")


def build(folder: Path) -> dict[str, Path]:
    """An sdist, and the wheel that is built from it, by their names."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    run(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT), env=environment)
    return {file.name: file for file in sorted(folder.iterdir()) if file.suffix in (".gz", ".whl")}


def run(*command: str, **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **options)
    check(done.returncode == 0, f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def check(condition: bool, problem: str) -> None:
    if not condition:
        sys.exit(f"package: {problem}")


def megabytes(folder: Path) -> float:
    return sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir()) / 1e6


def shell_blocks(page: Path) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        first, second = build(work / "first"), build(work / "second")
        hashes = [
            {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in built.items()}
            for built in (first, second)
        ]
        check(len(first) == 2, f"built {', '.join(first)} instead of an sdist and a wheel")
        check(hashes[0] == hashes[1], f"two builds differ: {hashes}")
        for name, file in first.items():
            print(f"{name}: {file.stat().st_size / 1e6:.1f} MB, sha256 {hashes[0][name][:16]}…, the same twice")
        sdist, wheel = sorted(first.values(), key=lambda file: file.suffix)
        with tarfile.open(sdist) as archive:
            archive.extractall(work, filter="data")
        source = work / sdist.name.removesuffix(".tar.gz")
        install(source)
        run(str(source / ".venv/bin/pip"), "install", "-q", "--force-reinstall", "--no-deps", str(wheel))
        caption_as_documented(source)
        print(f"{wheel.name}: installs and captions")


def install(source: Path) -> None:
    """Run the README's first command in a folder, and look at what it leaves there."""
    command = shell_blocks(source / "README.md")[0].strip()
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    began = time.perf_counter()
    run("bash", "-c", command, cwd=source, env=environment)
    seconds = time.perf_counter() - began
    check((source / "dog.png").stat().st_size > 10_000, "the first command draws no picture")
    names = {folder.name.lower() for folder in source.glob(".venv/lib/python*/site-packages/*")}
    check(not names & set(TORCH), f"the base installation brings {', '.join(names & set(TORCH))}")
    size = megabytes(source / ".venv")
    print(f"the README's first command: {seconds:.0f} s, of which the caption {caption_as_documented(source):.1f} s")
    print(f"the environment: {size:.0f} MB")
    check(size <= MAX_MEGABYTES, f"the environment takes {size:.0f} MB, more than {MAX_MEGABYTES}")
    check(seconds <= MAX_SECONDS, f"the first command takes {seconds:.0f} s, more than {MAX_SECONDS}")
    run(str(source / ".venv/bin/sightline"), "doctor", env=environment)


def caption_as_documented(source: Path) -> float:
    """The example's caption is the one that the README gives after `sightline caption`; returns the seconds it took."""
    lines = "".join(shell_blocks(source / "README.md")).splitlines()
    line = next(line for line in lines if line.startswith("sightline caption examples/dog.jpg"))
    command, _, documented = line.partition("#")
    began = time.perf_counter()
    caption = run(str(source / ".venv/bin/sightline"), *shlex.split(command)[1:], cwd=source).strip()
    seconds = time.perf_counter() - began
    check(caption == documented.strip(), f"the caption is {caption!r}, documented is {documented.strip()!r}")
    return seconds


if __name__ == "__main__":
    main()
