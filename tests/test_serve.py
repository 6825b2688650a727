"""The server's parts on their own: settings, files, bodies, command. No model, no socket."""

from __future__ import annotations

import json
import socket
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server's extra is not installed: pip install 'sightline-captions[serve]'")
pytest.importorskip("python_multipart")
pytest.importorskip("prometheus_client")

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from sightline.decoding.options import DecodingOptions, user_options
from sightline.errors import ConfigError
from sightline.serve.browser import BrowserModel
from sightline.serve.schemas import CaptionBody, CaptionOptions, ExplainOptions
from sightline.serve.server import listen, open_to_all
from sightline.serve.settings import make_settings
from sightline.serve.site import PageFiles, Site
from sightline.serve.uploads import read_json

PATIENCE = 60


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"port": 70000}, "--port is 70000"),
        ({"max_bytes": 0}, "--max-bytes is 0"),
        ({"timeout": 0}, "--timeout is 0"),
        ({"queue": 2, "max_photos": 3}, "queue is 2, but a request may bring max_photos 3"),
        ({"cors_origins": ("example.org",)}, "--cors-origin"),
        ({"cors_origins": ("https://example.org/path",)}, "without a path"),
        ({"token": ""}, "the token must be"),
        ({"token": "two words"}, "the token must be"),
    ],
)
def test_settings_out_of_bounds_are_named_by_their_flag(values: dict[str, Any], words: str):
    with pytest.raises(ConfigError) as error:
        make_settings(**values)
    assert words in str(error.value)
    assert "two words" not in str(error.value)


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("box", False)]
)
def test_only_loopback_is_local(host: str, local: bool):
    assert make_settings(host=host).is_local == local
    warning = open_to_all(make_settings(host=host))
    assert (f"--host {host} without a token" in warning and "set SIGHTLINE_TOKEN" in warning) == (not local)
    assert open_to_all(make_settings(host=host, token="secret")) == ""


# -- files ------------------------------------------------------------------------------------------------------------


def test_static_files_are_of_known_kinds_with_plain_names_and_no_links(tmp_path: Path):
    (tmp_path / "assets").mkdir()
    for name in ("index.html", "assets/app.mjs", ".hidden.js", "notes.exe"):
        (tmp_path / name).write_text("text")
    (tmp_path / "link.json").symlink_to("/etc/hostname")
    files = PageFiles(directory=tmp_path)
    found = {
        name
        for name in ("index.html", "assets/app.mjs", ".hidden.js", "notes.exe", "link.json", "../app.py", "none.js")
        if files.lookup_path(name)[1] is not None
    }
    assert found == {"index.html", "assets/app.mjs"}
    path = tmp_path / "assets/app.mjs"
    response = files.file_response(path, path.stat(), {"type": "http", "headers": []})
    assert response.headers["content-type"].startswith("text/javascript")
    assert "'wasm-unsafe-eval'" in response.headers["content-security-policy"]


def test_the_page_needs_its_model_folder(tmp_path: Path):
    with pytest.raises(ConfigError, match="not a folder"):
        Site(FastAPI(), BrowserModel(tmp_path / "none"))


# -- the schema -------------------------------------------------------------------------------------------------------


def test_the_schema_has_every_decoding_option_with_its_help():
    properties = CaptionOptions.model_json_schema()["properties"]
    assert {name: field["description"] for name, field in properties.items()} == {
        option.name: option.help for option in user_options()
    }
    assert set(ExplainOptions.model_fields) == {*properties, "occlusion"}


@pytest.mark.parametrize("options", [{"temperature": 2.0}, {"top_k": 5}, {"top_p": 0.5}])
def test_the_schema_allows_what_decoding_allows_sampling_options_only_with_sample(options: dict[str, Any]):
    jsonschema = pytest.importorskip("jsonschema")
    schema = CaptionOptions.model_json_schema()
    off = {"temperature": 1, "top_k": 0, "top_p": 1}
    for given in (options, {**options, "sample": False}, {**options, "sample": True}, off):
        try:
            DecodingOptions(**given)
        except ConfigError:
            allowed = False
        else:
            allowed = True
        assert allowed == bool(given.get("sample") or given is off)
        assert jsonschema.Draft202012Validator(schema).is_valid(given) == allowed, given


# -- bodies -----------------------------------------------------------------------------------------------------------

SIZE = 200_000
COSTLY = {
    "numbers": b'{"photos":[' + b"0," * (SIZE // 2) + b"0]}",
    "empty strings": b'{"photos":[' + b'"",' * (SIZE // 3) + b'""]}',
    "unknown fields": b'{"photos":["AAAA"],' + b",".join(b'"%x":0' % number for number in range(SIZE // 8)) + b"}",
    "one field many times": b'{"photos":["AAAA"]' + b',"beam":1' * (SIZE // 9) + b"}",
    "a list as an option": b'{"photos":["AAAA"],"beam":[' + b"0," * (SIZE // 2) + b"0]}",
    "nested objects": b'{"a":' * (SIZE // 5),
    "a few unknown fields": b'{"photos":["AAAA"],' + b",".join(b'"%x":0' % number for number in range(40)) + b"}",
    "a few numbers": b'{"photos":[0,0,0,0,0,0,0,0,0,0]}',
    "a long name": b'{"photos":["AAAA"],"' + b"k" * SIZE + b'":0}',
    "a long value": b'{"photos":["AAAA"],"beam":"' + b"\\u0000" * (SIZE // 6) + b'"}',
    "long values": b'{"photos":["AAAA"],"beam":[' + b",".join([b'"%s"' % (b"v" * (SIZE // 20))] * 20) + b"]}",
    "a long number": b'{"photos":["AAAA"],"beam":' + b"9" * 4000 + b"}",
}


@pytest.mark.parametrize("name", COSTLY)
def test_a_json_body_costs_memory_and_an_answer_in_proportion_to_its_size(name: str):
    body = COSTLY[name]
    tracemalloc.start()
    try:
        with pytest.raises(HTTPException) as caught:
            read_json(body, CaptionBody, max_photos=16)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.status_code == 422
    assert len(caught.value.detail) < 1000
    assert peak < 8 * len(body) + 500_000


def test_the_first_errors_of_a_body_are_named_and_the_others_counted():
    body = json.dumps({"photos": ["AAAA"], **{f"field {number}": 0 for number in range(7)}}).encode()
    with pytest.raises(HTTPException, match=r"'field 0'.*'field 4'; and 2 more errors$"):
        read_json(body, CaptionBody, max_photos=16)


def test_as_many_photos_and_options_as_are_allowed_fit_a_json_body():
    photos = ["data:image/jpeg;base64,AAAA"] * 16
    options = {"sample": True, "beam": 2, "candidates": 2, "temperature": 0.5, "top_k": 3, "top_p": 0.5, "seed": 1}
    body = json.dumps({"photos": photos} | options, indent=4).encode()
    upload = read_json(body, CaptionBody, max_photos=16)
    assert (len(upload.photos), upload.options) == (16, options)


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def error_line(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The one line that the command prints when it does not start."""
    import logging

    from sightline.cli import run

    package_log, root = logging.getLogger("sightline"), logging.getLogger()
    before = package_log.handlers, package_log.propagate, package_log.level, list(root.handlers)
    monkeypatch.delenv("SIGHTLINE_TOKEN", raising=False)
    for name in ("PYTHONWARNINGS", "HF_HUB_VERBOSITY", "TORCH_CPP_LOG_LEVEL", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(name, "")

    def call(*arguments: str) -> str:
        assert run(["serve", *arguments]) == 2
        out, err = capfd.readouterr()
        assert out == ""
        (line,) = err.splitlines()
        return line

    with warnings.catch_warnings():
        yield call
    package_log.handlers, package_log.propagate, root.handlers = before[0], before[1], before[3]
    package_log.setLevel(before[2])


def test_wrong_flags_and_tokens_are_one_line(error_line, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert "--queue is 0" in error_line("--queue", "0")
    assert "--token-file" in error_line("--token-file", str(tmp_path / "none"))
    (tmp_path / "empty").write_text("\n")
    assert "not empty" in error_line("--token-file", str(tmp_path / "empty"))
    monkeypatch.setenv("SIGHTLINE_TOKEN", "")
    assert "not empty" in error_line()


@pytest.mark.parametrize("listens_to", [lambda: socket.create_server(("127.0.0.1", 0)), lambda: listen("127.0.0.1", 0)])
def test_a_port_in_use_is_known_before_the_model_is_loaded(error_line, listens_to: Callable[[], socket.socket]):
    """Also one that another server of ours has only just taken."""
    with listens_to() as taken:
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is in use" in error_line("--port", str(port), "--model", "no/such/folder")


def test_a_host_that_is_not_ours_is_one_line(error_line):
    assert "cannot listen on 203.0.113.7:0" in error_line("--host", "203.0.113.7", "--port", "0")


def test_what_is_missing_is_named(error_line, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert error_line() == 'error: sightline serve needs uvicorn: pip install "sightline-captions[serve]"'


# -- explanations -----------------------------------------------------------------------------------------------------


def test_the_frame_is_the_part_of_the_photo_that_the_encoder_takes():
    from sightline.io.preprocess import Preprocess

    assert Preprocess(fit="squash").frame(200, 100) == (0, 0, 1, 1)
    assert Preprocess(size=224, resize=224, fit="crop").frame(200, 100) == pytest.approx((0.25, 0, 0.75, 1))
    assert Preprocess(size=200, resize=400, fit="crop").frame(100, 100) == pytest.approx((0.25, 0.25, 0.75, 0.75))


def test_a_model_without_attention_is_explained_by_occlusion_one_photo_at_a_time(tiny_flickr8k_kept: Path):
    import torch

    from sightline.data import load_dataset
    from sightline.engine.captioner import Captioner
    from sightline.engine.torch_backend import TorchBackend
    from sightline.nn.checkpoint import CaptionModel, Checkpoint
    from sightline.nn.decoders import build_decoder
    from sightline.nn.encoders import build_encoder
    from sightline.serve.batching import CaptionWork
    from sightline.serve.server import warm_up
    from sightline.tokenizers import train_tokenizer

    torch.manual_seed(0)
    tokenizer = train_tokenizer("word", load_dataset(tiny_flickr8k_kept).captions("train"), min_count=1, max_length=8)
    encoder = build_encoder("patches", image_size=16, patch_size=8, width=16, blocks=1, heads=2)
    decoder = build_decoder("lstm", features=16, vocabulary=tokenizer.size, max_length=8, width=16)
    work = CaptionWork(Captioner([TorchBackend(Checkpoint(CaptionModel(encoder, decoder), tokenizer, {}))]), 10**6)
    assert not work.query({}, explain=True).alone
    warm_up(work)
    query = work.query({}, explain=True)
    assert query.alone
    assert not work.query({}, explain=False).alone
    photo = next((tiny_flickr8k_kept / "Flicker8k_Dataset").iterdir()).read_bytes()
    output = work.decode(work.encode([work.prepare(photo)]), query)[0].as_dict()
    assert output["method"] == "occlusion"
    assert [len(word["attention"]) for word in output["words"]] == [8] * len(output["words"]) != []
