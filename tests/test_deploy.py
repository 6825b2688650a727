"""The Dockerfile and the compose example, as far as a machine without Docker can check them: what they name works."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from sightline import cli

pytest.importorskip("fastapi", reason="the server's extra is not installed: pip install 'sightline-captions[serve]'")

from serving import RunningServer, serving

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "examples" / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.*)$", DOCKERFILE, re.MULTILINE)


def check_arguments(arguments: list[str]) -> None:
    verb, *rest = arguments
    command: Any = typer.main.get_command(cli.app).commands[verb]  # type: ignore[attr-defined]
    command.make_context(verb, rest)


def test_the_image_installs_what_the_project_has_and_runs_as_no_root():
    for copied in instructions("COPY"):
        sources = [word for word in shlex.split(copied)[:-1] if not word.startswith(("--", "/"))]
        assert all((ROOT / source).exists() for source in sources)
        ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").split("\n")
        assert all(f"!{source}" in ignored for source in sources)
    assert any('".[serve]"' in command for command in instructions("RUN"))
    assert [int(user) > 0 for user in instructions("USER")] == [True]


def test_the_health_check_notices_a_server_that_works_and_one_that_does_not():
    (check,) = instructions("HEALTHCHECK")
    program, *arguments = json.loads(check[check.index("[") :])
    assert program == "python" and "127.0.0.1:8000" in arguments[-1]

    def healthy(server: RunningServer) -> bool:
        moved = [argument.replace(":8000", f":{server.port}") for argument in arguments]
        return subprocess.run([sys.executable, *moved], capture_output=True, timeout=60, check=False).returncode == 0

    with serving() as server:
        assert healthy(server)
    assert not healthy(server)


def test_the_containers_get_the_command_the_token_and_the_files_they_name(tmp_path: Path):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    server, prometheus = compose["services"]["sightline"], compose["services"]["prometheus"]
    (entrypoint,) = map(json.loads, instructions("ENTRYPOINT"))
    program, *arguments = [*entrypoint, *server["command"]]
    assert program == "sightline"
    check_arguments(arguments)
    assert (DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    (mounted,) = prometheus["volumes"]
    scrape = yaml.safe_load((DEPLOY / mounted.split(":")[0]).read_text(encoding="utf-8"))["scrape_configs"][0]
    assert scrape["static_configs"] == [{"targets": ["sightline:8000"]}]  # the service's name and port
    assert instructions("EXPOSE") == ["8000"] and scrape.get("metrics_path", "/metrics") == "/metrics"
    secret = f"/run/secrets/{next(iter(compose['secrets']))}"
    assert scrape["authorization"]["credentials_file"] == secret == server["command"][1]

    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    moved = [str(token) if argument == secret else argument for argument in server["command"]]
    with serving(*moved) as running:
        assert running.get("/metrics").status == 401
        assert running.get("/metrics", Authorization=f"Bearer {token.read_text().strip()}").status == 200
