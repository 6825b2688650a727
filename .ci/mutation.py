"""Mutation testing: changes the code in one spot at a time and counts how many changes the tests notice.

    pip install cosmic-ray==8.7.0
    nice python .ci/mutation.py --size 120 --seed 1     # a stopped run goes on where it was
    nice python .ci/mutation.py --again                 # after writing a test: runs the survivors once more

Works in a temporary copy of the last commit. The unchanged code has to pass a module's tests before a mutant of it
counts, and where all mutants of a module survive, its tests have to fail when it cannot be imported. Each mutant runs
in a fork of this process, which has imported torch but nothing of sightline: the tests import the mutated file.
Outcomes:

- killed: pytest reports a failed test (exit code 1);
- timeout: the tests take more than five times their usual processor time, or wait for ten minutes;
- survived: every test passes;
- error: pytest could not run (any other exit code). An error counts neither as killed nor as survived.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
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

# The Penn Treebank tokenizer and METEOR are compared with Java's output on large corpora instead.
LEFT_OUT = re.compile(r"evaluation/metrics/(ptb|meteor)")

# The tests of a module: those of the first entry with which its path starts.
TESTS = {
    "decoding/options": "test_decoding_options test_decoding test_checkpoint_refused test_captioner test_cli_caption",
    "decoding": "test_decoding test_sampling test_captioner test_retrieval test_cli_caption",
    "training/objectives": "test_objectives test_hard_attention test_self_critical test_distillation",
    "evaluation/metrics/chair": "metrics/test_chair test_evaluate test_comparison",
    "evaluation/metrics": "metrics/test_text_metrics metrics/test_bootstrap test_evaluate test_comparison",
    "engine/confidence": "test_calibration test_confidence",
    "engine/retrieval": "test_retrieval",
    "engine/pipeline": "test_pipeline",
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
    rng.shuffle(drawn)  # so that the beginning of a run is a fair sample, too
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


class Results:
    """The finished runs, one JSON line each; the last line of a key counts."""

    def __init__(self, file: Path, commit: str) -> None:
        self.file, self.commit = file, commit
        lines = file.read_text().splitlines() if file.exists() else []
        self.outcomes = {row["key"]: Outcome(row["outcome"], row["seconds"]) for row in map(json.loads, lines)}

    def add(self, key: str, outcome: Outcome) -> None:
        self.outcomes[key] = outcome
        row = {"key": key, "outcome": outcome.name, "seconds": round(outcome.seconds, 1), "commit": self.commit}
        with self.file.open("a") as file:
            file.write(json.dumps(row) + "\n")


def usual_seconds(copy: Path, tests: str, results: Results, log: Path) -> float:
    """Processor time of the tests without a mutant, measured once for each commit. Refuses tests that fail."""
    key = f"{results.commit} {tests}"
    if key not in results.outcomes:
        outcome = run_tests(copy, tests, WAIT, log)
        if outcome.name != "survived":
            sys.exit(f"{log.read_text()[-3000:]}\n{tests}: {outcome.name} without a mutant")
        results.add(key, outcome)
        print(f"{outcome.seconds:.0f} s without a mutant: {tests}", flush=True)
    return results.outcomes[key].seconds


def check_import(copy: Path, module: str, log: Path) -> None:
    """Refuse survivors of a module whose tests do not even notice that it cannot be imported."""
    with changed(copy / "src/sightline" / module, "raise RuntimeError"):
        if run_tests(copy, tests_of(module), WAIT, log).name == "survived":
            sys.exit(f"{tests_of(module)}: passes though {module} cannot be imported")


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
    os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1", "SIGHTLINE_SHARED": os.devnull}
    for name in WARM:
        importlib.import_module(name)
    assert "sightline" not in sys.modules
    gc.freeze()  # a collection in a fork would copy every page of this process

    with tempfile.TemporaryDirectory() as folder:
        copy, log = Path(folder, "sightline"), Path(folder, "pytest.log")
        with tarfile.open(fileobj=io.BytesIO(git("archive", "HEAD"))) as file:
            file.extractall(copy, filter="data")
        os.environ["PYTHONPATH"] = str(copy / "src")  # for tests that start processes
        results = Results(options.log, git("rev-parse", "--short", "HEAD").decode().strip())
        drawn, total = draw(copy / "src/sightline", options.size, options.seed)
        print(f"commit {results.commit}: {len(drawn)} of {total} mutants, seed {options.seed}", flush=True)
        work = {}
        for mutant in drawn:
            source = mutant.apply((copy / "src/sightline" / mutant.module).read_text(encoding="utf-8"))
            work[f"{mutant} {hashlib.sha256(source.encode()).hexdigest()[:8]}"] = (mutant, source)
        with contextlib.suppress(KeyboardInterrupt):
            run_mutants(copy, work, results, options.again, log)
        outcomes = {key: results.outcomes[key].name for key in work if key in results.outcomes}
        proven = {work[key][0].module for key, name in outcomes.items() if name == "killed"}
        for module in sorted({work[key][0].module for key, name in outcomes.items() if name == "survived"} - proven):
            check_import(copy, module, log)

    counts = ", ".join(f"{count} {name}" for name, count in Counter(outcomes.values()).most_common())
    print(f"{len(outcomes)} of {len(work)} mutants run: {counts}")
    for key, (mutant, source) in work.items():
        if outcomes.get(key) in ("survived", "error"):
            print(f"{outcomes[key]}: {mutant}\n    {source.splitlines()[mutant.line - 1].strip()}")


def run_mutants(copy: Path, work: dict[str, tuple[Mutant, str]], results: Results, again: bool, log: Path) -> None:
    for key, (mutant, source) in work.items():
        if key in results.outcomes and not (again and results.outcomes[key].name in ("survived", "error")):
            continue
        tests = tests_of(mutant.module)
        limit = 10 + 5 * usual_seconds(copy, tests, results, log)
        with changed(copy / "src/sightline" / mutant.module, source):
            outcome = run_tests(copy, tests, limit, log)
        results.add(key, outcome)
        print(f"{outcome.name:9}{mutant}", flush=True)
        if outcome.name == "error":
            print(log.read_text()[-1000:], flush=True)


if __name__ == "__main__":
    main()
