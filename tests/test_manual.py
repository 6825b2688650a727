"""The manual page and shell completion: each installed by one command, then used by the real `man` and shell."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from commands import ENVIRONMENT

from sightline import cli


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A folder whose bin/ has the command, as an environment's has."""
    command = tmp_path / "prefix" / "bin" / "sightline"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!{sys.executable}\nfrom sightline.__main__ import main\nmain()\n")
    command.chmod(0o755)
    return tmp_path / "prefix"


def run(prefix: Path, *command: str) -> subprocess.CompletedProcess[str]:
    home = prefix.parent / "home"
    home.mkdir(exist_ok=True)
    path = f"{prefix / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = ENVIRONMENT | {"HOME": str(home), "PATH": path, "MANPATH": "", "LC_ALL": "C.UTF-8"}
    del environment["MANPATH"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


def commands(command: Any) -> Iterator[Any]:
    for inner in getattr(command, "commands", {}).values():
        yield inner
        yield from commands(inner)


def test_the_page_has_every_command_and_option_and_groff_finds_no_fault(prefix: Path):
    page = run(prefix, "sightline", "--show-man").stdout
    plain = page.replace("\\-", "-")
    root = typer.main.get_command(cli.app)
    every = [*commands(root)]
    assert len(every) > 15
    for command in every:
        assert f" {command.name}\n" in plain
        for parameter in command.params:
            assert all(option in plain for option in parameter.opts if option.startswith("-")), parameter.opts
    assert page.isascii()
    if shutil.which("groff"):
        file = prefix / "page"
        file.write_text(page)
        shown = run(prefix, "groff", "-man", "-Tutf8", "-ww", str(file))
        assert shown.stderr == "" and "sightline caption [OPTIONS]" in shown.stdout


def test_man_finds_the_installed_page(prefix: Path):
    installed = run(prefix, "sightline", "--install-man")
    page = prefix / "share" / "man" / "man1" / "sightline.1"
    assert installed.stdout == f"manual page installed in {page}\n" and page.is_file()
    if shutil.which("manpath") and shutil.which("man"):
        assert run(prefix, "man", "-w", "sightline").stdout == f"{page}\n"


def test_a_prefix_that_cannot_be_written_gives_way_to_the_user_s_folder(prefix: Path):
    (prefix / "share").write_text("not a folder")
    page = prefix.parent / "home" / ".local" / "share" / "man" / "man1" / "sightline.1"
    assert run(prefix, "sightline", "--install-man").stdout == f"manual page installed in {page}\n"
    page.unlink()
    page.mkdir()
    failed = run(prefix, "sightline", "--install-man")
    assert failed.returncode == 1 and failed.stderr.count("\n") == 1
    assert "or print the page with `sightline --show-man`" in failed.stderr


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
def test_completion_is_installed_by_one_command_and_bash_uses_it(prefix: Path):
    installed = run(prefix, "bash", "-c", "sightline --install-completion; true")
    assert "completion installed" in installed.stdout, installed
    words = [("sightline cap", "caption"), ("sightline caption --cand", "--candidates"), ("sightline recipes ", "show")]
    for line, expected in words:
        *given, last = line.split(" ")
        array = " ".join(shlex.quote(word) for word in [*given, last])
        script = (
            f". ~/.bashrc; COMP_WORDS=({array}); COMP_CWORD={len(given)}; "
            '_sightline_completion sightline; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        completed = run(prefix, "bash", "-c", script)
        assert expected in completed.stdout.split(), (line, completed)
