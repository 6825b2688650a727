"""Mutation testing: changes the code in one spot at a time and counts how many changes the tests notice.

    pip install cosmic-ray==8.7.0
    nice python .ci/mutation.py --size 120 --seed 1     # a stopped run goes on where it was
    nice python .ci/mutation.py --again                 # after writing a test: runs the survivors once more

Works in a temporary copy of the last commit. The unchanged code has to pass every test, and a module that cannot be
imported has to fail them, before a mutant counts. Each mutant runs in a fork of this process, which has imported torch
but nothing of sightline, so that the tests import the mutated file. Outcomes:

- killed: pytest reports a failed test (exit code 1);
- timeout: the tests take more than five times their usual processor time, or wait for ten minutes;
- survived: every test passes;
- error: pytest could not run (any other exit code). An error counts neither as killed nor as survived.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import importlib
import io
import itertools
import json
import math
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).parents[1]
PACKAGES = ("decoding", "training/objectives", "evaluation/metrics", "engine")

# The Penn Treebank tokenizer and METEOR are compared with Java's output on large corpora, and are being rewritten.
LEFT_OUT = re.compile(r"evaluation/metrics/(ptb|meteor)")

# The tests of a module: those of the first entry with which its path starts.
TESTS = {
    "decoding": "test_decoding test_captioner test_retrieval test_cli_caption",
    "training/objectives": "test_objectives test_distillation",
    "evaluation/metrics/chair": "metrics/test_chair test_evaluate",
    "evaluation/metrics": "metrics/test_text_metrics metrics/test_bootstrap test_evaluate",
    "engine/confidence": "test_calibration test_confidence",
    "engine/retrieval": "test_retrieval",
    "engine/backend": "test_captioner test_exported test_shipped_graphs",
    "engine/torch_backend": "test_captioner test_decoding test_explain",
    "engine": "test_captioner test_cli_caption test_retrieval test_evaluate test_exported",
}

# An operator is replaced by its neighbour, a comparison by its inverse and its boundary case. The other replacements of
# cosmic-ray (`a + b` by `a << b`) mostly raise TypeError: they would raise the score and show little.
SKIPPED = re.compile(
    r"Binary\w+_(?!Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Mul|Mod_FloorDiv|Pow_Mul|BitOr_BitAnd|BitAnd_BitOr)\w+_\w+$"
    r"|Comparison\w+_(?!Eq_NotEq|NotEq_Eq|LtE?_Gt$|GtE?_Lt$|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Is_IsNot|IsNot_Is)\w+_\w+$"
    r"|Unary\w+_(?!Delete_)\w+_\w+$"
)

WARM = ("numpy", "torch", "onnx", "onnxruntime", "pydantic", "typer", "fastapi")
MEMORY = 12 << 30  # bytes of address space that the tests may take beyond what this process has
WAIT = 600  # seconds
TIMES = itertools.count(10**9)


class Mutant(NamedTuple):
    module: str  # below src/sightline
    operator: str
    occurrence: int  # of this operator in this module
    line: int

    def __str__(self) -> str:
        return f"src/sightline/{self.module}:{self.line} {self.operator.removeprefix('core/')} #{self.occurrence}"

    def apply(self, source: str) -> str:
        return mutate_code(source, get_operator(self.operator)(), self.occurrence)


def annotations(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where type annotations start and end: nothing evaluates them, so a change there has no effect."""
    for node in ast.walk(ast.parse(source)):
        for note in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if note is not None:
                yield (note.lineno, note.col_offset), (note.end_lineno, note.end_col_offset)


def mutants(package: Path, module: str) -> list[Mutant]:
    source = (package / module).read_text(encoding="utf-8")
    nodes, notes, found = list(ast_nodes(get_ast(source))), list(annotations(source)), []
    for name in sorted(operator_names()):
        operator = get_operator(name)
        if SKIPPED.search(name) or operator.arguments():  # one with arguments needs names of variables
            continue
        starts = [start for node in nodes for start, _ in operator().mutation_positions(node)]
        for occurrence, start in enumerate(starts):
            if not any(first <= start <= last for first, last in notes):
                found.append(Mutant(module, name, occurrence, start[0]))
    return found


def draw(package: Path, size: int, seed: int) -> tuple[list[Mutant], int]:
    """``size`` mutants, each module in proportion to its number of mutants; and how many there are in all."""
    rng = random.Random(seed)
    files = sorted(file for folder in PACKAGES for file in (package / folder).glob("*.py"))
    modules = [name for name in (file.relative_to(package).as_posix() for file in files) if not LEFT_OUT.match(name)]
    every = []
    for module in modules:
        found = mutants(package, module)
        every += rng.sample(found, len(found))
    size, start = min(size, len(every)), rng.random()
    drawn = [every[int((index + start) * len(every) / size)] for index in range(size)]
    return drawn, len(every)


def tests_of(module: str) -> str:
    return next(tests for start, tests in TESTS.items() if module.startswith(start))


class Outcome(NamedTuple):
    name: str
    seconds: float  # of processor time


def run_tests(copy: Path, tests: str, limit: float, log: Path) -> Outcome:
    """Run pytest in a fork. ``limit`` is in seconds of processor time, so that a busy machine makes no timeout."""
    child = os.fork()
    if child == 0:
        code = 70  # what stays if pytest itself breaks
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit), math.ceil(limit) + 5))
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(copy)
            sys.path.insert(0, str(copy / "src"))
            files = [f"tests/{name}.py" for name in tests.split()]
            code = int(pytest.main(["-x", "-q", "-o", "addopts=", "-p", "no:cacheprovider", *files]))
        finally:
            sys.stdout.flush()
            os._exit(code)
    end = time.monotonic() + WAIT
    done = 0
    while not done:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if not done and time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            status, usage = os.wait4(child, 0)[1:]
            return Outcome("timeout", usage.ru_utime + usage.ru_stime)
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):  # servers and workers that a failed test left behind
        os.killpg(child, signal.SIGKILL)
    seconds = usage.ru_utime + usage.ru_stime
    if os.WIFSIGNALED(status):
        return Outcome("timeout" if os.WTERMSIG(status) == signal.SIGXCPU else "error", seconds)
    return Outcome({0: "survived", 1: "killed"}.get(os.WEXITSTATUS(status), "error"), seconds)


def check_tests(copy: Path, modules: list[str], log: Path) -> dict[str, float]:
    """Seconds that each set of tests takes without a mutant. Refuses tests that fail, or do not import their module."""
    seconds = {}
    for tests in dict.fromkeys(map(tests_of, modules)):
        outcome = run_tests(copy, tests, WAIT, log)
        if outcome.name != "survived":
            sys.exit(f"{log.read_text()[-3000:]}\n{tests}: {outcome.name} without a mutant")
        seconds[tests] = outcome.seconds
        print(f"{outcome.seconds:4.0f} s  {tests}", flush=True)
    for module in modules:
        with changed(copy / "src/sightline" / module, "raise RuntimeError"):
            if run_tests(copy, tests_of(module), WAIT, log).name == "survived":
                sys.exit(f"{tests_of(module)}: passes though {module} cannot be imported")
    return seconds


@contextlib.contextmanager
def changed(file: Path, source: str) -> Iterator[None]:
    """The file with other content, and a time of its own, so that Python takes no other mutant's bytecode for its."""
    before, modified = file.read_text(encoding="utf-8"), file.stat().st_mtime
    file.write_text(source, encoding="utf-8")
    os.utime(file, (next(TIMES),) * 2)
    yield
    file.write_text(before, encoding="utf-8")
    os.utime(file, (modified,) * 2)


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=120, help="mutants in the sample")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="run the survivors and errors of the last run again")
    parser.add_argument("--log", type=Path, default=ROOT / "runs/mutation.jsonl", help="one line per finished mutant")
    options = parser.parse_args()
    options.log.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in options.log.read_text().splitlines()] if options.log.exists() else []
    done = {row["key"]: row["outcome"] for row in rows}  # the last line of a mutant counts
    os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1", "SIGHTLINE_SHARED": os.devnull}
    for name in WARM:
        importlib.import_module(name)
    assert "sightline" not in sys.modules

    with tempfile.TemporaryDirectory() as folder:
        copy, log = Path(folder, "sightline"), Path(folder, "pytest.log")
        with tarfile.open(fileobj=io.BytesIO(git("archive", "HEAD"))) as file:
            file.extractall(copy, filter="data")
        os.environ["PYTHONPATH"] = str(copy / "src")  # for tests that start processes
        commit = git("rev-parse", "--short", "HEAD").decode().strip()
        drawn, total = draw(copy / "src/sightline", options.size, options.seed)
        print(f"commit {commit}: {len(drawn)} of {total} mutants, seed {options.seed}", flush=True)

        work = {}
        for mutant in drawn:
            source = mutant.apply((copy / "src/sightline" / mutant.module).read_text(encoding="utf-8"))
            work[f"{mutant} {hashlib.sha256(source.encode()).hexdigest()[:8]}"] = (mutant, source)
        waiting = [key for key in work if done.get(key) in ({None, "survived", "error"} if options.again else {None})]
        seconds = check_tests(copy, sorted({work[key][0].module for key in waiting}), log)
        for key in waiting:
            mutant, source = work[key]
            tests = tests_of(mutant.module)
            with changed(copy / "src/sightline" / mutant.module, source):
                outcome = run_tests(copy, tests, 10 + 5 * seconds[tests], log)
            done[key] = outcome.name
            print(f"{outcome.name:9}{mutant}", flush=True)
            if outcome.name == "error":
                print(log.read_text()[-1000:], flush=True)
            with options.log.open("a") as file:
                file.write(json.dumps({"key": key, "outcome": outcome.name, "commit": commit}) + "\n")

    print(*(f"{name} {count}" for name, count in Counter(done[key] for key in work).most_common()), sep=", ")
    for key, (mutant, source) in work.items():
        if done[key] in ("survived", "error"):
            print(f"{done[key]}: {mutant}\n    {source.splitlines()[mutant.line - 1].strip()}")


if __name__ == "__main__":
    main()
