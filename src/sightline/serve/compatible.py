"""OpenAI's and Ollama's APIs over the same model, queue and limits as ``/v1/caption``.

Programs that caption photos through one of them need only another address. A caption needs no prompt, so prompts,
temperatures, tools and model names are accepted and have no effect. No URL is ever fetched.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fastapi import FastAPI
from pydantic import BaseModel, Field, StrictBool, StrictInt, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from sightline import __version__
from sightline.errors import ImageError
from sightline.nn.hub import model_size
from sightline.serve.middleware import AsciiJSON
from sightline.serve.schemas import LIMITS, error_line
from sightline.serve.uploads import Upload, decode_photo, limited_body, too_many_photos
from sightline.types import Caption

if TYPE_CHECKING:
    from sightline.serve.app import Hold, Service

MOST_VALUES = 10_000  # of a request's JSON: each takes some hundred bytes of memory
PATHS = (
    "/v1/chat/completions", "/v1/responses", "/v1/models",
    "/api/generate", "/api/chat", "/api/tags", "/api/ps", "/api/show", "/api/version",
)  # fmt: skip


# -- requests: the fields that matter; all others are ignored ---------------------------------------------------------


class ImageURL(BaseModel):
    url: str


class Part(BaseModel):
    image_url: str | ImageURL | None = None


class Message(BaseModel):
    content: str | list[Part] | None = None  # OpenAI's photos are parts of it
    images: list[str] | None = None  # Ollama's photos, as base64

    def photos(self) -> list[str]:
        parts = self.content if isinstance(self.content, list) else []
        urls = [part.image_url for part in parts if part.image_url is not None]
        return [*(url if isinstance(url, str) else url.url for url in urls), *(self.images or ())]


class Body(BaseModel):
    logprobs: StrictBool | None = None

    def texts(self) -> list[str]:
        """The photos, as base64 or ``data:`` URLs."""
        raise NotImplementedError

    def max_tokens(self) -> int | None:
        return None

    def candidates(self) -> int:
        return 1


def _latest_photos(messages: Sequence[Message]) -> list[str]:
    """Those of the last message that has any: a conversation repeats the earlier ones."""
    return next((photos for message in reversed(messages) if (photos := message.photos())), [])


class StreamOptions(BaseModel):
    include_usage: StrictBool | None = None


class ChatCompletionBody(Body):
    messages: list[Message]
    n: StrictInt | None = Field(None, ge=1, le=int(LIMITS["candidates"]["le"]))
    max_completion_tokens: StrictInt | None = Field(None, ge=1)
    max_tokens_: StrictInt | None = Field(None, ge=1, alias="max_tokens")
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None

    def texts(self) -> list[str]:
        return _latest_photos(self.messages)

    def max_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens_

    def candidates(self) -> int:
        return self.n or 1


class ResponseBody(Body):
    input: str | list[Message]
    max_output_tokens: StrictInt | None = Field(None, ge=1)
    stream: StrictBool | None = None

    def texts(self) -> list[str]:
        return [] if isinstance(self.input, str) else _latest_photos(self.input)

    def max_tokens(self) -> int | None:
        return self.max_output_tokens


class OllamaOptions(BaseModel):
    num_predict: StrictInt | None = None


class OllamaBody(Body):
    options: OllamaOptions | None = None
    stream: StrictBool | None = None  # None is true, as Ollama has it
    prompt: str = ""
    images: list[str] | None = None
    messages: list[Message] = []

    def texts(self) -> list[str]:
        return self.images or _latest_photos(self.messages)

    def max_tokens(self) -> int | None:
        limit = self.options.num_predict if self.options else None
        return limit if limit and limit > 0 else None  # -1 and -2: without a limit


@dataclass(frozen=True)
class Ask(Upload):
    """The photos of one request, and the rest of it."""

    body: Any


# -- responses --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """One text: a caption of each photo of the request, one line each."""

    captions: list[Caption]

    @property
    def text(self) -> str:
        return "\n".join(caption.sentence() for caption in self.captions)

    @property
    def finish_reason(self) -> str:
        return "stop" if all(caption.finished for caption in self.captions) else "length"

    @property
    def tokens(self) -> int:
        return sum(len(caption.tokens) for caption in self.captions)

    def extras(self) -> dict[str, Any]:
        """Fields that neither API has: how far to rely on the text, and all that ``/v1/caption`` says."""
        return {
            "confidence": round(min(caption.confidence for caption in self.captions), 4),
            "unsure": any(caption.unsure for caption in self.captions),
            "captions": [replace(caption, others=()).as_dict() for caption in self.captions],
        }

    def log_probs(self) -> list[dict[str, Any]]:
        words = [word for caption in self.captions for word in caption.words]
        return [{"token": word.text, "logprob": math.log(max(word.probability, 1e-30))} for word in words]


class Compatible:
    """Adds both APIs to an app."""

    def __init__(self, app: FastAPI, service: Service, name: str):
        self.service, self.name, self.started = service, name, int(time.time())
        posts: dict[str, Callable[[Request], Any]] = {
            "/v1/chat/completions": self._captioning(ChatCompletionBody, self.chat_completion),
            "/v1/responses": self._captioning(ResponseBody, self.response),
            "/api/generate": self._captioning(OllamaBody, self.generate),
            "/api/chat": self._captioning(OllamaBody, self.chat),
            "/api/show": self.show,
        }
        gets: dict[str, Callable[[Request], Any]] = {
            "/v1/models": self.models,
            "/v1/models/{model:path}": self.model,
            "/api/tags": self.tags,
            "/api/ps": self.tags,
            "/api/version": self.version,
        }
        for method, routes in (("POST", posts), ("GET", gets)):
            for path, endpoint in routes.items():
                app.add_route(path, endpoint, methods=[method], include_in_schema=False)

    def _captioning(
        self, model: type[Body], respond: Callable[[Ask, list[Answer], int], Response]
    ) -> Callable[[Request], Any]:
        """An endpoint that reads a request, captions its photos within the server's limits, and responds."""

        async def endpoint(request: Request) -> Response:
            began = time.perf_counter_ns()

            async def read(hold: Hold) -> Ask:
                chunks = limited_body(request, self.service.settings.max_bytes, hold.add_bytes)
                body = b"".join([chunk async for chunk in chunks])
                return await self.service.in_pool(self.read, body, model)

            async def work(ask: Upload) -> Response:
                assert isinstance(ask, Ask)
                return respond(ask, await self.answers(ask), time.perf_counter_ns() - began)

            return await self.service.limited(request, read, work)

        return endpoint

    def read(self, data: bytes, model: type[Body]) -> Ask:
        """Slow for a large body: call it outside the event loop."""
        if sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
            raise HTTPException(422, f"the JSON has more than {MOST_VALUES:,} values: send fewer messages")
        try:
            body = model.model_validate_json(data)
        except ValidationError as error:
            not_json = any(item["type"] == "json_invalid" for item in error.errors(include_input=False))
            raise HTTPException(400 if not_json else 422, error_line(error, model)) from None
        texts = body.texts()
        if len(texts) > self.service.settings.max_photos:
            raise too_many_photos(self.service.settings.max_photos)
        if not texts and not _only_loads(body):
            raise HTTPException(422, "the request has no photo: send one as base64, this model only captions photos")
        options: dict[str, Any] = {"candidates": body.candidates()} if body.candidates() > 1 else {}
        if tokens := body.max_tokens():
            options["max_length"] = self.service.work.captioner.max_length(tokens)
        photos = [decode_photo(text, number) for number, text in enumerate(texts, 1)]
        return Ask(photos, [""] * len(photos), options, body)

    async def answers(self, ask: Ask) -> list[Answer]:
        """The best caption of each photo, then the second best, and so on. A photo that cannot be read is an error."""
        captions = []
        for number, outcome in enumerate(await self.service.outcomes(ask), 1):
            if isinstance(outcome, ImageError):
                raise HTTPException(422, f"photo {number}: {outcome}" if len(ask.photos) > 1 else str(outcome))
            captions.append(outcome.caption)
        return [Answer(list(ranked)) for ranked in zip(*([caption, *caption.others] for caption in captions))]

    # -- OpenAI -------------------------------------------------------------------------------------------------------

    def chat_completion(self, ask: Ask, answers: list[Answer], nanoseconds: int) -> Response:
        body: ChatCompletionBody = ask.body
        head = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": self.name}
        usage = _usage("prompt_tokens", "completion_tokens", answers)
        choices = [
            {
                "index": index,
                "finish_reason": answer.finish_reason,
                "logprobs": _openai_log_probs(answer) if body.logprobs else None,
                **answer.extras(),
            }
            for index, answer in enumerate(answers)
        ]
        if not body.stream:
            messages = [{"role": "assistant", "content": answer.text, "refusal": None} for answer in answers]
            whole = [{**choice, "message": message} for choice, message in zip(choices, messages)]
            return AsciiJSON({**head, "object": "chat.completion", "choices": whole, "usage": usage})
        head["object"] = "chat.completion.chunk"
        events: list[dict[str, Any]] = []
        for answer, choice in zip(answers, choices):
            delta = {"role": "assistant", "content": answer.text}
            text = {"index": choice["index"], "delta": delta, "finish_reason": None, "logprobs": choice["logprobs"]}
            events += [{**head, "choices": [text]}, {**head, "choices": [{**choice, "delta": {}, "logprobs": None}]}]
        if body.stream_options and body.stream_options.include_usage:
            events = [{**event, "usage": None} for event in events] + [{**head, "choices": [], "usage": usage}]
        lines = [f"data: {_dumped(event)}\n\n" for event in events]
        return _text("".join(lines) + "data: [DONE]\n\n", "text/event-stream")

    def response(self, ask: Ask, answers: list[Answer], nanoseconds: int) -> Response:
        if ask.body.stream:
            raise HTTPException(422, "stream is true, but /v1/responses sends the whole response: leave it out")
        (answer,) = answers
        part = {"type": "output_text", "text": answer.text, "annotations": [], **answer.extras()}
        message = {
            "type": "message", "id": f"msg_{uuid4().hex}", "status": "completed", "role": "assistant",
            "content": [part],
        }  # fmt: skip
        return AsciiJSON(
            {
                "id": f"resp_{uuid4().hex}", "object": "response", "status": "completed", "model": self.name,
                "created_at": int(time.time()), "output": [message], "error": None, "incomplete_details": None,
                "instructions": None, "metadata": {}, "parallel_tool_calls": False, "tool_choice": "none", "tools": [],
                "usage": _usage("input_tokens", "output_tokens", answers),
            }
        )  # fmt: skip

    async def models(self, request: Request) -> Response:
        return AsciiJSON({"object": "list", "data": [self._openai_model()]})

    async def model(self, request: Request) -> Response:
        if request.path_params["model"] != self.name:
            raise HTTPException(404, f"there is no such model: this server has {self.name}")
        return AsciiJSON(self._openai_model())

    def _openai_model(self) -> dict[str, Any]:
        return {"id": self.name, "object": "model", "created": self.started, "owned_by": "sightline"}

    # -- Ollama -------------------------------------------------------------------------------------------------------

    def generate(self, ask: Ask, answers: list[Answer], nanoseconds: int) -> Response:
        return self._ollama(ask, answers, nanoseconds, lambda text: {"response": text})

    def chat(self, ask: Ask, answers: list[Answer], nanoseconds: int) -> Response:
        return self._ollama(
            ask, answers, nanoseconds, lambda text: {"message": {"role": "assistant", "content": text}}
        )  # fmt: skip

    def _ollama(
        self, ask: Ask, answers: list[Answer], nanoseconds: int, content: Callable[[str], dict[str, Any]]
    ) -> Response:
        body: OllamaBody = ask.body
        head = {"model": self.name, "created_at": _iso(time.time())}
        if not answers:  # a client that loads the model beforehand
            return AsciiJSON({**head, **content(""), "done": True, "done_reason": "load"})
        (answer,) = answers
        log_probs = {"logprobs": answer.log_probs()} if body.logprobs else {}
        end = {
            "done": True, "done_reason": answer.finish_reason, "total_duration": nanoseconds, "load_duration": 0,
            "prompt_eval_count": 0, "prompt_eval_duration": 0, "eval_count": answer.tokens,
            "eval_duration": nanoseconds, **answer.extras(),
        }  # fmt: skip
        if body.stream is False:
            return AsciiJSON({**head, **content(answer.text), **log_probs, **end})
        lines = [{**head, **content(answer.text), **log_probs, "done": False}, {**head, **content(""), **end}]
        return _text("".join(f"{_dumped(line)}\n" for line in lines), "application/x-ndjson")

    @cached_property
    def digest(self) -> str:
        """Of the model and its datastore: computed once, as it reads all of their numbers."""
        return hashlib.sha256("\n".join(self.service.work.captioner.signatures()).encode()).hexdigest()

    async def tags(self, request: Request) -> Response:
        folders = [folder for folder in self.service.work.captioner.folders if folder]
        model = {
            "name": self.name,
            "model": self.name,
            "modified_at": self._modified(),
            "size": sum(map(model_size, folders)),
            "digest": await self.service.in_pool(lambda: self.digest),
            "details": self._details(),
        }
        return AsciiJSON({"models": [model]})

    async def show(self, request: Request) -> Response:
        return AsciiJSON(
            {
                "modified_at": self._modified(),
                "details": self._details(),
                "model_info": {"general.architecture": "sightline"},
                "capabilities": ["completion", "vision"],
            }
        )

    async def version(self, request: Request) -> Response:
        return AsciiJSON({"version": __version__})

    def _modified(self) -> str:
        folders = [folder for folder in self.service.work.captioner.folders if folder]
        return _iso(max((folder.stat().st_mtime for folder in folders), default=self.started))

    def _details(self) -> dict[str, Any]:
        captioner = self.service.work.captioner
        return {
            "parent_model": "", "format": captioner.runtimes[0], "family": "sightline", "families": ["sightline"],
            "parameter_size": _parameter_size(sum(backend.parameters for backend in captioner.backends)),
            "quantization_level": "",
        }  # fmt: skip


def _parameter_size(count: int) -> str:
    """As Ollama writes it: 27.12M, 1.5B."""
    for unit, least, digits in (("B", 10**9, 1), ("M", 10**6, 2), ("K", 10**3, 0)):
        if count >= least:
            return f"{count / least:.{digits}f}{unit}"
    return str(count)


def _only_loads(body: Body) -> bool:
    """Ollama's clients load a model by a request without a prompt."""
    return isinstance(body, OllamaBody) and not body.prompt and not body.messages


def _usage(given: str, made: str, answers: list[Answer]) -> dict[str, int]:
    tokens = sum(answer.tokens for answer in answers)
    return {given: 0, made: tokens, "total_tokens": tokens}


def _openai_log_probs(answer: Answer) -> dict[str, Any]:
    content = [{**word, "bytes": list(word["token"].encode()), "top_logprobs": []} for word in answer.log_probs()]
    return {"content": content, "refusal": None}


def _dumped(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def _text(content: str, media_type: str) -> Response:
    return Response(content, media_type=media_type, headers={"Cache-Control": "no-store"})


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
