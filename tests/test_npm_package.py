"""The npm package: packed, installed without a network, and imported in Node and Chromium."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from browsing import INT8_CONFIDENCE, INT8_OOD_SCORE, WEB, address, served, watch
from serving import made_once

import sightline
from sightline.engine.captioner import Captioner, load
from sightline.io.images import open_image
from sightline.serve.browser import PAGE

DOG = PAGE / "examples" / "dog.jpg"
PATIENCE = 300  # seconds: machines that run tests may have other work
SCRIPT = """
import { readFileSync } from "node:fs";
import { load } from "sightline-captions";

const [width, height] = process.argv.slice(2).map(Number), captioner = await load();
const photo = { data: readFileSync("dog.rgba"), width, height };
const [caption, greedy] = await Promise.all([captioner.caption(photo), captioner.caption(photo, { beam: 1 })]);
const wrong = [{ ...photo, width: width + 1 }, new Blob(["no pixels"])];
const errors = await Promise.all(wrong.map((bad) => captioner.caption(bad).catch((error) => error.message)));
console.log(JSON.stringify({ caption, greedy: greedy.text, errors }));
"""


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with the packed package installed; only to be read."""
    if not (WEB.is_dir() and shutil.which("node") and shutil.which("npm")):
        pytest.skip("packing needs the sources in web/, node and npm")

    def make(folder: Path) -> None:
        folder.mkdir()
        (packed,) = run("node", str(WEB / "pack.mjs"), str(folder), cwd=folder).split()
        (folder / "package.json").write_text('{"private": true, "type": "module"}')
        install = ("npm", "install", "--offline", "--ignore-scripts", "--no-audit", "--no-fund")
        run(*install, packed, cwd=folder)
        Path(packed).unlink()

    return made_once(tmp_path_factory, "npm-app", make)


@pytest.fixture(scope="module")
def python() -> Captioner:
    return load(runtime="onnx")


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def package(app: Path) -> Path:
    return app / "node_modules" / "sightline-captions"


def check(result: dict[str, Any], python: Captioner) -> None:
    expected = python.caption(DOG)
    assert (result["text"], result["sentence"]) == (expected.text, expected.sentence())
    assert result["confidence"] == pytest.approx(expected.confidence, abs=INT8_CONFIDENCE)
    assert result["ood_score"] == pytest.approx(expected.ood_score, abs=INT8_OOD_SCORE)
    assert [word["text"] for word in result["words"]] == [word.text for word in expected.words]


def test_the_package_has_the_version_of_the_python_package(app: Path) -> None:
    assert json.loads((package(app) / "package.json").read_text())["version"] == sightline.__version__


def test_it_holds_all_it_needs_and_nothing_from_other_hosts(app: Path) -> None:
    files = {file.relative_to(package(app)).as_posix() for file in package(app).rglob("*") if file.is_file()}
    described = json.loads((package(app) / "package.json").read_text())
    assert "dependencies" not in described
    assert {"LICENSE", "NOTICE", "README.md", "example.html", "index.d.ts", "index.js", "licences.txt"} <= files
    assert "__RUNTIME__;" not in (package(app) / "index.js").read_text()
    declared = (package(app) / "index.d.ts").read_text() + (package(app) / "types.d.ts").read_text()
    assert "export declare function load(" in declared and "interface CaptionResult" in declared
    imported = set(re.findall(r'from "(\./[^"]+)"', declared))
    assert imported == {"./types.js"}, "every type that is declared is there"
    assert [path.name for path in (app / "node_modules").iterdir() if path.is_dir()] == ["sightline-captions"]


def test_node_captions_as_python_does(app: Path, python: Captioner, tmp_path: Path) -> None:
    photo = open_image(DOG.read_bytes()).convert("RGBA")
    (tmp_path / "dog.rgba").write_bytes(photo.tobytes())
    (tmp_path / "node_modules").symlink_to(app / "node_modules")
    (tmp_path / "caption.mjs").write_text(SCRIPT)
    found = json.loads(run("node", "caption.mjs", *map(str, photo.size), cwd=tmp_path))
    check(found["caption"], python)
    assert found["greedy"] == python.caption(DOG, beam=1).text
    sizes, decoded = found["errors"]
    assert sizes.startswith(f"{photo.width + 1} × {photo.height} pixels of RGBA are")
    assert "pass { data, width, height }" in decoded


def test_its_example_captions_in_the_browser(app: Path, python: Captioner, browser: Any) -> None:
    expected = python.caption(DOG)
    with served(package(app)) as server, browser.context() as context:
        page = context.new_page()
        context.set_default_timeout(1000 * PATIENCE)
        errors = watch(page, address(server))
        page.goto(f"{address(server)}example.html")
        page.get_by_text("Choose a photo.").wait_for()
        page.set_input_files("input", DOG)
        page.get_by_text(expected.sentence()).wait_for()
        page.set_input_files("input", {"name": "x.jpg", "mimeType": "image/jpeg", "buffer": b"no photo"})
        page.get_by_text("this file is not an image").wait_for()
        assert [error for error in errors if "favicon" not in error and "404" not in error] == []
