"""The page's files: built from these sources, small, without other hosts; and the model that the server exports."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

import pytest
from browsing import WEB, sources_digest
from serving import run_async

from sightline.cli import run
from sightline.engine.captioner import load
from sightline.errors import ConfigError, SightlineError
from sightline.io.model_files import file_hash
from sightline.nn.hub import DEFAULT_MODEL
from sightline.serve.browser import MODEL_FILES, PAGE, copy_model, copy_page, find_browser_model, has_small_graphs

pytest.importorskip("fastapi", reason="the server's extra is not installed: pip install 'sightline-captions[serve]'")

from fastapi import FastAPI

from sightline.serve import browser
from sightline.serve.site import ENGINE, FAILED, LINKS, Site

PATIENCE = 120  # seconds: machines that run tests may have other work

# -- the service worker ------------------------------------------------------------------------------------------------


def test_the_service_worker_answers_for_the_files_of_its_own_folder_alone() -> None:
    """Neither the API nor the model, nor other pages of the same host: what it has is listed, and relative."""
    script = (PAGE / "sw.js").read_text(encoding="utf-8")
    files = json.loads(re.search(r"FILES = (\[.*?\])", script)[1])
    assert "index.html" in files and len(files) == len(set(files))
    for name in files:
        assert (
            (PAGE / name).is_file() and not name.startswith(("/", ".", "v1/", "api/", "model/")) and "://" not in name
        )
    assert script.count("respondWith") == 2, "the page itself, and the files of the list"
    (asset,) = (PAGE / "assets").glob("index-*.js")
    register = re.search(r"serviceWorker\.register\(([^)]*)\)", asset.read_text(encoding="utf-8"))[1]
    assert register.strip("`\"'") == "sw.js", "relative, and without another scope"
    source = Path(browser.__file__).parent
    assert not any("service-worker-allowed" in path.read_text().lower() for path in source.glob("*.py"))


# -- the build --------------------------------------------------------------------------------------------------------


def test_the_built_page_is_of_these_sources() -> None:
    if not WEB.is_dir():
        pytest.skip("the page's sources are not here: this is no clone of the repository")
    built = json.loads((PAGE / "build.json").read_text())
    assert built["sources"] == sources_digest(), "web/ has changed: cd web && npm ci && npm run build"


def test_the_built_page_has_no_other_hosts_and_is_small() -> None:
    html = (PAGE / "index.html").read_text()
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", html)
    assert not re.search(r"\son\w+=|\sstyle=", html), "the server's policy would block them"
    assert ENGINE in html and LINKS in html, "the server replaces them"
    assert sum(path.stat().st_size for path in PAGE.rglob("*")) < 6e6
    listed = json.loads(re.search(r"FILES = (\[.*?\]);", (PAGE / "sw.js").read_text()).group(1))  # type: ignore[union-attr]
    assert {"index.html", "examples/dog.jpg"} <= set(listed)
    assert all((PAGE / name).is_file() for name in listed)


def test_the_page_is_copied_only_where_nothing_else_lies(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="holds other files"):
        copy_page(tmp_path / "mine")
    with pytest.raises(ConfigError, match="npm ci"):
        copy_page(tmp_path / "new", page=tmp_path / "none")
    copy_page(tmp_path / "new")
    (tmp_path / "new/assets/old.js").write_text("")
    copy_page(tmp_path / "new")
    assert not (tmp_path / "new/assets/old.js").exists()
    assert (tmp_path / "new/index.html").is_file()


# -- the server's model for it ----------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="the stand-in for Python is a shell script")
def test_the_server_exports_the_page_s_model_while_it_works(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    ready = make_exported(tiny_model, tmp_path / "ready")
    exporter = tmp_path / "python"
    exporter.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/asked\nmkdir -p "$7" && cp {ready}/* "$7"\n')
    exporter.chmod(0o755)
    monkeypatch.setattr(browser.sys, "executable", str(exporter))
    captioner = load(tiny_model, runtime="torch")
    app = FastAPI()
    site = Site(app, find_browser_model(captioner))
    assert "data-pending" in site.index, "until then the server captions"
    wait_for_export(site, lambda: any(getattr(route, "path", "") == "/model" for route in app.routes))
    assert f" export {tiny_model} --output " in (tmp_path / "asked").read_text()
    assert ENGINE in site.index
    again = find_browser_model(captioner)
    assert again.is_ready, "the second time it is there at once"
    assert ENGINE in Site(FastAPI(), again).index

    exporter.write_text("#!/bin/sh\necho no room >&2; exit 1\n")
    shutil.rmtree(tmp_path / "cache")
    site = Site(FastAPI(), find_browser_model(captioner))
    wait_for_export(site, lambda: "data-pending" not in site.index)
    assert escape(FAILED) in site.index


def wait_for_export(site: Site, condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        async with asyncio.timeout(PATIENCE), site.exporting():
            while not condition():
                await asyncio.sleep(0.01)

    run_async(wait())


def make_exported(model: Path, folder: Path) -> Path:
    """What an export writes, as far as it is read here."""
    folder.mkdir()
    for name in ("encoder", "start", "step"):
        (folder / f"{name}.onnx").write_bytes(name.encode())
    state = {"beam.past": ["float32", ["rows", 2]]}
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    preprocess = json.loads((model / "config.json").read_text())["encoder"]["preprocess"]
    pixels = ["float32", ["photos", 3, preprocess["size"], preprocess["size"]]]
    features = {"grid": ["float32", ["photos", 16, 8]], "pooled": ["float32", ["photos", 8]]}
    tensors = {
        "encoder": ({"pixels": pixels}, features),
        "start": ({"pooled": ["float32", [1]]}, state),
        "step": (
            {"token": ["int64", [1]], **state},
            {"logits": ["float32", ["rows", len(tokenizer["tokens"])]], "next.past": ["float32", [1]]},
        ),
    }
    manifest = {
        "format": "sightline-onnx-1", "precision": "int8", "encoder": "", "decoder": "", "parameters": 1,
        "weights": file_hash(model / "model.safetensors"), "licence": "", "grid": [4, 4], "tokenizer": tokenizer,
        "preprocess": preprocess, "decoding": {},
        "graphs": {
            name: {"bytes": len(name), "sha256": "", "inputs": inputs, "outputs": outputs}
            for name, (inputs, outputs) in tensors.items()
        },
    }  # fmt: skip
    (folder / "sightline.json").write_text(json.dumps(manifest))
    return folder


def test_the_default_model_s_own_graphs_need_no_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    found = find_browser_model(load())
    assert found.is_ready and found.folder == DEFAULT_MODEL
    app = FastAPI()
    assert ENGINE in Site(app, found).index
    (files,) = (route.app for route in app.routes if getattr(route, "path", "") == "/model")
    served = {path.name for path in DEFAULT_MODEL.iterdir() if files.lookup_path(path.name)[1]}
    assert served == set(MODEL_FILES), "other files of a model's folder are nobody's business"

    assert run(["export", "default", "--web", str(tmp_path / "site")]) == 0
    copied = {path.name for path in (tmp_path / "site/model").iterdir()}
    assert copied == {*MODEL_FILES, "README.md"}
    with pytest.raises(SightlineError, match="cannot write"):
        copy_model(tmp_path / "site/model", tmp_path / "site/model")
    assert {path.name for path in (tmp_path / "site/model").iterdir()} == copied
    uncalibrated = tmp_path / "uncalibrated"
    shutil.copytree(DEFAULT_MODEL, uncalibrated, ignore=shutil.ignore_patterns("confidence.json"))
    copy_model(tmp_path / "site/model", uncalibrated)
    assert not (tmp_path / "site/model/confidence.json").exists(), "the calibration of the model before it"
    (tmp_path / "site/model/model.safetensors").unlink()
    assert not has_small_graphs(tmp_path / "site/model"), "graphs without their weights"


def test_where_no_model_can_be_exported_the_page_says_why(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path))
    captioner, several = load(tiny_model, runtime="torch"), load(tiny_model, tiny_model, runtime="torch")
    found = find_browser_model(captioner)
    assert (found.is_ready, found.source) == (False, tiny_model)
    assert "Several models" in find_browser_model(several).reason
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    missing = find_browser_model(captioner)
    assert (missing.folder, missing.source) == (None, None)
    assert 'onnxscript: pip install "sightline-captions[onnx]"' in missing.reason
    site = Site(FastAPI(), missing)
    assert ENGINE not in site.index
    assert escape(missing.reason) in site.index
    assert "npm ci" in Site(FastAPI(), missing, page=tmp_path / "none").index
