"""OpenAI's and Ollama's APIs of the running server with the default model: with their own clients, and by hand."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from default_model import SENTENCE

pytest.importorskip("fastapi", reason="the server's extra is not installed: pip install 'sightline-captions[serve]'")
pytest.importorskip("prometheus_client")

from serving import Reply, RunningServer, serving

import sightline

DOG = Path(__file__).parents[1] / "examples" / "dog.jpg"
IMAGE = base64.b64encode(DOG.read_bytes()).decode()
URL = f"data:image/jpeg;base64,{IMAGE}"
TOKEN = "open-sesame"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving("--max-photos", 3, "--max-bytes", 4_000_000, SIGHTLINE_TOKEN=TOKEN) as running:
        running.headers = {"Authorization": f"Bearer {TOKEN}"}
        yield running


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return sightline.load().caption(DOG, candidates=2).as_dict()


def message(*urls: str, text: str = "What does this show?") -> dict[str, Any]:
    return {
        "role": "user",
        "content": [
            {"type": "text", "text": text},
            *({"type": "image_url", "image_url": {"url": url}} for url in urls),
        ],
    }


# -- the clients themselves -------------------------------------------------------------------------------------------


@pytest.fixture
def openai_client(server: RunningServer) -> Any:
    openai = pytest.importorskip("openai", reason="the OpenAI client is not installed: pip install openai")
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=TOKEN, max_retries=0)


@pytest.fixture
def ollama_client(server: RunningServer) -> Any:
    ollama = pytest.importorskip("ollama", reason="the Ollama client is not installed: pip install ollama")
    return ollama.Client(f"http://127.0.0.1:{server.port}", headers={"Authorization": f"Bearer {TOKEN}"})


def test_the_openai_client_gets_a_caption_with_its_confidence(openai_client: Any, expected: dict[str, Any]):
    completion = openai_client.chat.completions.create(
        model="gpt-4o", messages=[message(URL)], max_tokens=300, temperature=0.2, logprobs=True
    )
    (choice,) = completion.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", SENTENCE, "stop")
    assert (choice.confidence, choice.unsure) == (expected["confidence"], False)
    assert choice.captions[0]["words"] == expected["words"]
    probabilities = [math.exp(word.logprob) for word in choice.logprobs.content]
    assert probabilities == pytest.approx([word["probability"] for word in expected["words"]], abs=1e-3)
    assert completion.usage.completion_tokens == len(expected["words"])
    assert completion.model == openai_client.models.list().data[0].id == openai_client.models.retrieve("default").id


def test_the_openai_client_gets_the_candidates_and_the_length_it_asks_for(openai_client: Any, expected: dict[str, Any]):
    two = openai_client.chat.completions.create(model="any", messages=[message(URL)], n=2).choices
    assert [choice.captions[0]["caption"] for choice in two] == [
        expected["caption"],
        expected["others"][0]["caption"],
    ]
    assert [choice.index for choice in two] == [0, 1]
    (short,) = openai_client.chat.completions.create(
        model="any", messages=[message(URL)], max_completion_tokens=3
    ).choices
    assert short.finish_reason == "length" and len(short.message.content.split()) == 3


def test_the_openai_client_reads_the_stream(openai_client: Any, expected: dict[str, Any]):
    chunks = list(
        openai_client.chat.completions.create(
            model="any", messages=[message(URL)], stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    (end,) = [choice for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert (text, end.finish_reason, end.confidence) == (SENTENCE, "stop", expected["confidence"])
    assert chunks[-1].usage.completion_tokens == len(expected["words"]) and chunks[-1].choices == []


def test_the_openai_client_s_newer_api_works_without_streaming(openai_client: Any, expected: dict[str, Any]):
    import openai

    part = {"type": "input_image", "image_url": URL, "detail": "low"}
    given = [{"role": "user", "content": [{"type": "input_text", "text": "Describe it."}, part]}]
    response = openai_client.responses.create(model="any", input=given, max_output_tokens=512)
    assert response.output_text == SENTENCE
    assert response.output[0].content[0].confidence == expected["confidence"]
    with pytest.raises(openai.UnprocessableEntityError, match="leave it out"):
        openai_client.responses.create(model="any", input=given, stream=True)


def test_the_openai_client_raises_its_own_errors(server: RunningServer, openai_client: Any):
    import openai

    chat = openai_client.chat.completions
    with pytest.raises(openai.UnprocessableEntityError, match="this server fetches none") as caught:
        chat.create(model="any", messages=[message("https://example.org/dog.jpg")])
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.UnprocessableEntityError, match="no photo"):
        chat.create(model="any", messages=[{"role": "user", "content": "Hello"}])
    with pytest.raises(openai.UnprocessableEntityError, match="n is 11"):
        chat.create(model="any", messages=[message(URL)], n=11)
    with pytest.raises(openai.NotFoundError, match="this server has default"):
        openai_client.models.retrieve("gpt-4o")
    with pytest.raises(openai.AuthenticationError, match="a token is needed"):
        openai_client.with_options(api_key="wrong").chat.completions.create(model="any", messages=[message(URL)])


@pytest.mark.parametrize("stream", [False, True])
def test_the_ollama_client_gets_a_caption(ollama_client: Any, expected: dict[str, Any], stream: bool):
    generated: Any = ollama_client.generate("llava", "What is this?", images=[DOG], stream=stream, logprobs=True)
    chatted: Any = ollama_client.chat(
        "llava", [{"role": "user", "content": "What is this?", "images": [str(DOG)]}], stream=stream
    )
    parts, messages = (list(answer) if stream else [answer] for answer in (generated, chatted))
    assert "".join(part.response for part in parts) == SENTENCE
    assert "".join(part.message.content for part in messages) == SENTENCE
    assert parts[-1].done and parts[-1].done_reason == "stop"
    assert parts[-1].eval_count == len(expected["words"])
    assert [word.token for word in parts[0].logprobs] == [word["text"] for word in expected["words"]]


def test_the_ollama_client_finds_the_model(ollama_client: Any):
    (model,) = ollama_client.list().models
    assert (model.model, model.details.family) == ("default", "sightline")
    assert int(model.size) > 1_000_000 and len(model.digest) == 64
    assert "vision" in ollama_client.show("default").capabilities
    assert ollama_client.ps().models[0].model == "default"
    assert ollama_client.generate("default").done_reason == "load"


def test_the_ollama_client_raises_its_own_errors(server: RunningServer, ollama_client: Any):
    import ollama

    with pytest.raises(ollama.ResponseError, match="no photo") as caught:
        ollama_client.generate("default", "Hello")
    assert caught.value.status_code == 422
    with pytest.raises(ollama.ResponseError, match="not an image"):
        ollama_client.chat("default", [{"role": "user", "content": "", "images": [b"words"]}])
    with pytest.raises(ollama.ResponseError, match="a token is needed"):
        ollama.Client(f"http://127.0.0.1:{server.port}", headers={"Authorization": "Bearer no"}).list()


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_what_photoprism_sends_gets_one_object_with_the_caption(server: RunningServer, expected: dict[str, Any]):
    """Its request to an Ollama service, field by field: no stream, base64 without a prefix, and the content type."""
    body = {
        "id": "b5f1c1b2", "model": "default", "prompt": "Create a caption", "suffix": "", "stream": False,
        "options": {"temperature": 0.1}, "images": [IMAGE],
    }  # fmt: skip
    answer = server.post_json("/api/generate", body).json
    assert (answer["response"], answer["done"], answer["model"]) == (SENTENCE, True, "default")
    assert (answer["confidence"], answer["unsure"]) == (expected["confidence"], False)


def test_what_photoprism_sends_to_openai_gets_the_caption_as_the_first_text(server: RunningServer):
    """Its other engine: messages of typed parts to /v1/responses, with options that mean nothing to this model."""
    body = {
        "model": "default",
        "input": [
            {"role": "system", "type": "message", "content": [{"type": "input_text", "text": "You caption photos."}]},
            {"role": "user", "type": "message", "content": [
                {"type": "input_text", "text": "Provide one sentence."},
                {"type": "input_image", "image_url": URL, "detail": "low"},
            ]},
        ],
        "reasoning": {"effort": "low"}, "max_output_tokens": 512, "temperature": 0.1, "top_p": 0.9,
    }  # fmt: skip
    answer = server.post_json("/v1/responses", body).json
    (output,) = answer["output"]
    assert [part["text"] for part in output["content"]] == [SENTENCE]
    assert (answer["model"], answer.get("error")) == ("default", None)


def test_ollama_streams_lines_unless_told_otherwise_and_needs_no_content_type(server: RunningServer):
    reply = server.ask("POST", "/api/generate", json.dumps({"images": [IMAGE]}).encode())
    assert reply.headers["content-type"] == "application/x-ndjson"
    first, last = [json.loads(line) for line in reply.body.splitlines()]
    assert (first["response"], first["done"]) == (SENTENCE, False)
    assert (last["response"], last["done"], last["unsure"]) == ("", True, False)


def test_server_sent_events_are_well_formed(server: RunningServer):
    reply = server.post_json("/v1/chat/completions", {"messages": [message(URL)], "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = reply.body.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(json.loads(event.removeprefix("data: "))["object"] == "chat.completion.chunk" for event in events)


def test_only_the_last_message_with_photos_counts_and_each_photo_has_its_line(server: RunningServer):
    grey = "data:image/png;base64," + GREY
    history = [
        message(grey),
        {"role": "assistant", "content": "?"},
        message(URL, grey),
        {"role": "user", "content": ""},
    ]
    (choice,) = server.post_json("/v1/chat/completions", {"messages": history}).json["choices"]
    first, second = choice["message"]["content"].splitlines()
    assert first == SENTENCE and second != SENTENCE
    assert choice["captions"][0]["caption"] == SENTENCE.lower().rstrip(".")
    assert choice["confidence"] == min(caption["confidence"] for caption in choice["captions"])


def test_an_unsure_caption_says_so_in_its_text_and_in_a_field(server: RunningServer):
    (choice,) = server.post_json("/v1/chat/completions", {"messages": [message("data:image/png;base64," + GREY)]}).json[
        "choices"
    ]
    assert choice["unsure"] is True
    assert choice["message"]["content"].startswith("unsure: ")


def openai_error(reply: Reply) -> str:
    assert set(reply.json) == {"error"} and set(reply.json["error"]) == {"message", "type", "param", "code"}
    assert "\n" not in reply.json["error"]["message"]
    return reply.json["error"]["message"]


GREY = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAFUlEQVR42mN8NM2IARtgYsABBqcEAFFDAboRVUzBAAAAAElFTkSuQmCC"
BAD = {
    "not JSON": (b"{", 400, "not JSON"),
    "no photo": ({}, 422, "no photo"),
    "a URL": ({"images": ["http://127.0.0.1/dog.jpg"]}, 422, "this server fetches none"),
    "not base64": ({"images": ["?"]}, 422, "not base64"),
    "not an image": ({"images": ["d29yZHM="]}, 422, "not an image"),
    "one bad of two": ({"images": [GREY, "d29yZHM="]}, 422, "photo 2: "),
    "too many photos": ({"images": [GREY] * 4}, 422, "more than 3 photos"),
    "too many values": ({"images": [""] * 10_001}, 422, "more than 10,000 values"),
    "too deep": (b'{"messages": ' + b"[" * 9000 + b"]" * 9000 + b"}", 400, "recursion"),
    "wrong kind": ({"images": 3}, 422, "images is 3"),
    "too many bytes": (b" " * 4_000_001, 413, "larger than 4,000,000 bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_have_one_line_in_the_form_of_each_api(server: RunningServer, name: str):
    body, status, words = BAD[name]
    if isinstance(body, dict):
        images = body.get("images", [])
        content: Any = {"messages": [message(*images)] if isinstance(images, list) else images}
        ollama = server.post_json("/api/generate", {"prompt": "What is it?", **body})
    else:
        content, ollama = body, server.post_json("/api/chat", body)
    assert (ollama.status, words in ollama.error) == (status, True), ollama
    openai = server.post_json("/v1/chat/completions", content)
    words = "messages is 3" if name == "wrong kind" else words
    assert (openai.status, words in openai_error(openai)) == (status, True), openai


def test_the_size_of_the_model_is_told_as_ollama_does(server: RunningServer):
    (model,) = server.get("/api/tags").json["models"]
    assert server.get("/api/ps").json["models"][0]["digest"] == model["digest"]
    assert model["details"]["parameter_size"] == "27.13M"


def test_both_need_the_token_and_are_counted(server: RunningServer):
    paths = ("/v1/models", "/api/tags", "/api/version")
    for path in paths:
        assert server.get(path, Authorization="").status == 401
        assert server.get(path).status == 200
    assert openai_error(server.get("/v1/models", Authorization="")).startswith("a token is needed")
    assert server.get("/api/tags", Authorization="").error.startswith("a token is needed")
    assert openai_error(server.ask("DELETE", "/v1/models")).startswith("not with this method")
    text = server.get("/metrics").body.decode()
    for path in paths:
        assert f'sightline_requests_total{{path="{path}",status="200"}}' in text


# -- the OpenAPI document ---------------------------------------------------------------------------------------------


def test_the_document_describes_both_apis_and_its_examples_work(server: RunningServer):
    from sightline.serve.compatible import PATHS
    from sightline.serve.compatible_openapi import OPERATIONS

    document = server.get("/openapi.json").json
    assert set(OPERATIONS) == {*PATHS, "/v1/models/{model}"} < set(document["paths"])
    for path, operation in OPERATIONS.items():
        described = document["paths"][path][operation.method]
        assert described["security"] == [{"token": []}] and "401" in described["responses"]
        if operation.body is None:
            url = path.replace("{model}", "default")
            reply = server.ask(operation.method.upper(), url, b"{}" if operation.method == "post" else b"")
        else:
            reply = server.post_json(path, described["requestBody"]["content"]["application/json"]["example"])
            assert {"400", "413", "422", "429", "503"} <= set(described["responses"])
        assert reply.status == 200, (path, reply)
        found = operation.response.model_validate(reply.json)
        if operation.body is not None:
            assert '"confidence":' in reply.body.decode()
            assert "captions" in found.model_dump_json()


def test_try_it_on_the_api_page_captions_through_both_apis(browser: Any):
    with serving("--server-page") as server, browser.context() as context:
        page = context.new_page()
        context.set_default_timeout(120_000)
        page.goto(f"http://127.0.0.1:{server.port}/docs")
        background = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(background) == "rgb(251, 250, 246)", "the stylesheet of all pages"
        page.emulate_media(color_scheme="dark")
        page.reload()
        assert page.evaluate(background) == "rgb(18, 18, 22)" and page.locator("html.dark-mode").count() == 1
        assert page.locator("header .mark").inner_text() == "Sightline"
        for path in ("/v1/chat/completions", "/api/generate"):
            block = page.locator(".opblock", has=page.locator(f'[data-path="{path}"]'))
            block.locator(".opblock-summary-control").click()
            block.get_by_role("button", name="Try it out").click()
            block.get_by_role("button", name="Execute").click()
            answer = block.locator(".live-responses-table .response")
            answer.wait_for()
            assert answer.locator(".response-col_status").inner_text().startswith("200")
            assert "confidence" in answer.inner_text()
