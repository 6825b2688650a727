"""OpenAI's and Ollama's APIs in the server's OpenAPI document: their requests, responses and examples."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

from sightline.serve.compatible import ChatCompletionBody, OllamaBody, ResponseBody
from sightline.serve.schemas import (
    ERRORS_ALWAYS,
    ERRORS_OF_BODIES,
    EXAMPLE,
    REFERENCE,
    RETRY_AFTER,
    CaptionOut,
    ErrorOut,
    error_content,
)

URL = f"data:image/png;base64,{EXAMPLE}"
QUESTION = "What does this photo show?"


# -- responses: the fields that matter to a client --------------------------------------------------------------------


class ReliabilityOut(BaseModel):
    """Fields that neither API has."""

    confidence: float = Field(ge=0, le=1, description="Of the least confident caption.")
    unsure: bool = Field(description="Whether one of the captions is not to be relied on.")
    captions: list[CaptionOut] = Field(description="One for each photo, as /v1/caption has them.")


class AssistantOut(BaseModel):
    role: Literal["assistant"]
    content: str = Field(description="A caption of each photo, one line each.")


class ChoiceOut(ReliabilityOut):
    index: int
    finish_reason: Literal["stop", "length"]
    logprobs: dict[str, Any] | None
    message: AssistantOut


class ChatCompletionOut(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChoiceOut] = Field(description="Candidates, best first.")
    usage: dict[str, int]


class OutputTextOut(ReliabilityOut):
    type: Literal["output_text"]
    text: str


class OutputMessageOut(BaseModel):
    type: Literal["message"]
    id: str
    status: Literal["completed"]
    role: Literal["assistant"]
    content: list[OutputTextOut]


class ResponseOut(BaseModel):
    id: str
    object: Literal["response"]
    status: Literal["completed"]
    created_at: int
    model: str
    output: list[OutputMessageOut]
    usage: dict[str, int]


class ModelOut(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsOut(BaseModel):
    object: Literal["list"]
    data: list[ModelOut]


class OllamaOut(BaseModel):
    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load"] | None = None
    confidence: float | None = Field(default=None, ge=0, le=1, description="Of the least confident caption.")
    unsure: bool | None = None
    captions: list[CaptionOut] | None = None


class GenerateOut(OllamaOut):
    response: str = Field(description="A caption of each photo, one line each.")


class ChatOut(OllamaOut):
    message: AssistantOut


class TagOut(BaseModel):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: dict[str, Any]


class TagsOut(BaseModel):
    models: list[TagOut]


class ShowOut(BaseModel):
    modified_at: str
    details: dict[str, Any]
    model_info: dict[str, Any]
    capabilities: list[str]


class VersionOut(BaseModel):
    version: str


class OpenAIErrorDetail(BaseModel):
    message: str = Field(description="What happened, which value, what to do.")
    type: str
    param: str | None
    code: str | None


class OpenAIErrorOut(BaseModel):
    error: OpenAIErrorDetail


# -- operations -------------------------------------------------------------------------------------------------------


class Operation(NamedTuple):
    method: str
    summary: str
    response: type[BaseModel]
    body: type[BaseModel] | None = None
    example: dict[str, Any] | None = None
    stream: str = ""  # the content type of a streamed response


MESSAGE = {
    "role": "user",
    "content": [{"type": "text", "text": QUESTION}, {"type": "image_url", "image_url": {"url": URL}}],
}
INPUT = {"role": "user", "content": [{"type": "input_image", "image_url": URL}]}
NDJSON = "application/x-ndjson"
OPERATIONS = {
    "/v1/chat/completions": Operation(
        "post", "Caption the photos of the last message: OpenAI's chat completions.", ChatCompletionOut,
        ChatCompletionBody, {"model": "default", "messages": [MESSAGE]}, "text/event-stream",
    ),
    "/v1/responses": Operation(
        "post", "Caption the photos of the input: OpenAI's responses.", ResponseOut,
        ResponseBody, {"model": "default", "input": [INPUT]},
    ),
    "/v1/models": Operation("get", "The one model of this server.", ModelsOut),
    "/v1/models/{model}": Operation("get", "The model of this name.", ModelOut),
    "/api/generate": Operation(
        "post", "Caption photos: Ollama's generate. It streams unless stream is false.", GenerateOut,
        OllamaBody, {"model": "default", "prompt": QUESTION, "images": [EXAMPLE], "stream": False}, NDJSON,
    ),
    "/api/chat": Operation(
        "post", "Caption the photos of the last message: Ollama's chat. It streams unless stream is false.", ChatOut,
        OllamaBody,
        {"model": "default", "messages": [{"role": "user", "content": QUESTION, "images": [EXAMPLE]}], "stream": False},
        NDJSON,
    ),
    "/api/tags": Operation("get", "The one model of this server.", TagsOut),
    "/api/ps": Operation("get", "The one model of this server, which is loaded.", TagsOut),
    "/api/show": Operation("post", "What the model can do.", ShowOut),
    "/api/version": Operation("get", "The server's version.", VersionOut),
}  # fmt: skip


def add_operations(document: dict[str, Any], model: str) -> None:
    """Add both APIs to the document of a server that shows its model as ``model``."""
    kinds = [kind for operation in OPERATIONS.values() for kind in (operation.response, operation.body) if kind]
    every: list[Any] = [(kind, "validation") for kind in dict.fromkeys([*kinds, OpenAIErrorOut, ErrorOut])]
    _, definitions = models_json_schema(every, ref_template=REFERENCE)
    document["components"]["schemas"].update(definitions["$defs"])
    for path, operation in OPERATIONS.items():
        document["paths"][path] = {operation.method: _described(path, operation, model)}


def _described(path: str, operation: Operation, model: str) -> dict[str, Any]:
    kind = OpenAIErrorOut if path.startswith("/v1/") else ErrorOut
    errors = dict(ERRORS_ALWAYS)
    if operation.body:
        errors |= {status: meaning for status, meaning in ERRORS_OF_BODIES.items() if status != "415"}
    if "{" in path:
        errors["404"] = "There is no model of this name."
    content: dict[str, Any] = {"application/json": {"schema": _reference(operation.response)}}
    if operation.stream:
        content[operation.stream] = {"schema": {}}  # objects of the API, one on each line
    responses: dict[str, Any] = {"200": {"description": "Successful response.", "content": content}}
    responses |= {status: error_content(meaning, kind) for status, meaning in errors.items()}
    found: dict[str, Any] = {
        "tags": ["OpenAI's API" if path.startswith("/v1/") else "Ollama's API"],
        "summary": operation.summary,
        "operationId": f"{operation.method}{path}".replace("/", "_").replace("{", "").replace("}", ""),
        "responses": responses,
    }
    if operation.body:
        responses["429"]["headers"] = responses["503"]["headers"] = RETRY_AFTER
        body = {"schema": _reference(operation.body), "example": operation.example}
        found["requestBody"] = {"required": True, "content": {"application/json": body}}
    if "{" in path:
        name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        found["parameters"] = [name | {"example": model}]
    return found


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REFERENCE.format(model=model.__name__)}
