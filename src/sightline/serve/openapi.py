"""The OpenAPI document, completed where FastAPI cannot know: bodies that handlers read themselves, and refusals."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from sightline.serve import schemas
from sightline.serve.settings import Settings

REFERENCE = "#/components/schemas/{model}"
BODIES: dict[str, tuple[type[BaseModel], type[BaseModel]]] = {
    "/v1/caption": (schemas.CaptionBody, schemas.Options),
    "/v1/explain": (schemas.ExplainBody, schemas.ExplainOptions),
}
ALWAYS = {
    "403": "Another site's page asked, and the server was not told to allow it.",
    "421": "The server does not go by the name in the Host header.",
}
REFUSALS = {
    "400": "The body cannot be read: not JSON, or a form that is cut off.",
    "408": "The body did not arrive in time.",
    "413": "Too many bytes.",
    "415": "Neither a form nor JSON.",
    "422": "A field is missing, unknown or out of bounds, or a photo cannot be opened or has too many pixels.",
    "429": "The queue is full; Retry-After says when to come again.",
    "503": "No answer in time; Retry-After says when to come again.",
}
RETRY = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}


def openapi_document(app: FastAPI, settings: Settings) -> dict[str, Any]:
    """Both kinds of body with this server's limits, every refusal, and the token where one is asked for."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    components = document.setdefault("components", {})
    models: list[Any] = [(model, "validation") for bodies in BODIES.values() for model in bodies]
    _, definitions = models_json_schema([*models, (schemas.ErrorOut, "validation")], ref_template=REFERENCE)
    known = components.setdefault("schemas", {})
    known.update(definitions["$defs"])
    for path, operations in document["paths"].items():
        for operation in operations.values():
            answers = operation["responses"]
            answers.update({status: _refusal(meaning) for status, meaning in ALWAYS.items()})
            if path in BODIES:
                operation["requestBody"] = _body(known, *BODIES[path], settings.max_photos)
                answers.update({status: _refusal(meaning) for status, meaning in REFUSALS.items()})
                answers["429"]["headers"] = answers["503"]["headers"] = RETRY
            if settings.token and path in (*BODIES, "/metrics"):
                operation["security"] = [{"token": []}]
                answers["401"] = _refusal("The token is missing or wrong.")
    paths = document["paths"]
    paths["/healthz"]["get"]["responses"]["503"] = _refusal("One of the model's threads has ended.")
    paths["/metrics"]["get"]["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    if settings.token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return document


def _body(known: dict[str, Any], whole: type[BaseModel], options: type[BaseModel], most: int) -> dict[str, Any]:
    known[whole.__name__]["properties"]["photos"]["maxItems"] = most
    photos = {
        "type": "array", "minItems": 1, "maxItems": most, "description": "Answers come in the same order.",
        "items": {"type": "string", "format": "binary"},
    }  # fmt: skip
    form = {
        "type": "object",
        "additionalProperties": False,
        "required": ["photos"],
        "properties": {"photos": photos, **known[options.__name__]["properties"]},
    }
    as_json = {"$ref": REFERENCE.format(model=whole.__name__)}
    return {
        "required": True,
        "content": {"multipart/form-data": {"schema": form}, "application/json": {"schema": as_json}},
    }


def _refusal(meaning: str) -> dict[str, Any]:
    error = {"schema": {"$ref": REFERENCE.format(model="ErrorOut")}}
    return {"description": meaning, "content": {"application/json": error}}
