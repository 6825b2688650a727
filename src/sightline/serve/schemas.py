"""Requests and responses as pydantic models, which check requests, and the OpenAPI document made of them."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic.json_schema import models_json_schema

from sightline.decoding.options import DecodingOptions, UserOption, user_options
from sightline.errors import nearest
from sightline.io.files import counted, printable
from sightline.serve.middleware import PROTECTED
from sightline.serve.settings import Settings

LIMITS: dict[str, dict[str, float]] = {  # tighter than those of `DecodingOptions`: other clients wait meanwhile
    "beam": {"le": 10},
    "candidates": {"le": 10},
    "length_penalty": {"le": 10},
    "max_length": {"le": 1000},
    "min_length": {"le": 1000},
    "no_repeat_ngram": {"le": 100},
    "temperature": {"ge": 0.01, "le": 100},
    "top_k": {"le": 1_000_000},
    "seed": {"ge": 0, "le": 2**53},  # whole numbers that JavaScript holds exactly
}
EXAMPLE = (  # 8 x 8 pixels of orange
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAFUlEQVR42mN8NM2IARtgYsABBqcEAFFDAboRVUzBAAAAAElFTkSuQmCC"
)


# -- requests ---------------------------------------------------------------------------------------------------------

SAMPLING_ONLY: dict[str, Any] = {  # without "sample", these three may only have the values that switch them off
    "anyOf": [
        {"properties": {"sample": {"const": True}}, "required": ["sample"]},
        {"properties": {"temperature": {"const": 1}, "top_k": {"const": 0}, "top_p": {"const": 1}}},
    ]
}


def _no_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)  # None only means "not given"; `openapi_document` writes the model's defaults


def _option(kind: Any, description: str, **bounds: Any) -> Any:
    return kind, Field(default=None, description=description, json_schema_extra=_no_default, **bounds)


def _true_or_false(value: Any) -> Any:
    if isinstance(value, str) and value not in ("true", "false"):  # of a form; pydantic would also take 0, yes, on, …
        raise ValueError("give true or false")
    return value


Flag = Annotated[bool, BeforeValidator(_true_or_false)]


def _decoding_option(option: UserOption) -> Any:
    """One of `DecodingOptions` as a field, within the server's limits."""
    limits, bounds = LIMITS.get(option.name, {}), dict(option.bounds)
    for limit, replaced in (("ge", "gt"), ("le", "lt")):
        if limit in limits:
            bounds.pop(replaced, None)
    return _option(Flag if option.type is bool else option.type, option.help, **bounds | limits)


DECODING = {option.name: _decoding_option(option) for option in user_options()}
EXPLAINING = DECODING | {"occlusion": _option(Flag, "Find the maps by hiding patches of the photo; slower.")}


class Options(BaseModel):
    """How captions are searched for or sampled. An option that is not given has the model's default."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, json_schema_extra=SAMPLING_ONLY)


class Photos(Options):
    """Photos as base64 (or ``data:`` URLs), and options."""

    photos: list[str] = Field(min_length=1, description="Photos as base64, one string each.", examples=[[EXAMPLE]])


CaptionOptions: type[Options] = create_model("CaptionOptions", __base__=Options, **DECODING)
ExplainOptions: type[Options] = create_model("ExplainOptions", __base__=Options, **EXPLAINING)
CaptionBody: type[Photos] = create_model("CaptionBody", __base__=Photos, **DECODING)
ExplainBody: type[Photos] = create_model("ExplainBody", __base__=Photos, **EXPLAINING)


# -- responses --------------------------------------------------------------------------------------------------------


class WordOut(BaseModel):
    text: str
    probability: float = Field(ge=0, le=1, description="The model's, not calibrated.")
    confidence: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Probability that people use this word, if the model is calibrated; not to be used where unsure.",
    )


class CaptionOut(BaseModel):
    source: str = Field(description="The upload's file name, if it had one.")
    caption: str
    confidence: float = Field(
        ge=0,
        le=1,
        description="The probability that it is right, or else the geometric mean of the words' probabilities.",
    )
    calibrated: bool = Field(description="Which of the two the confidence is.")
    unsure: bool = Field(description="Not to be relied on: an unusual photo, or a caption of low confidence.")
    ood_score: float | None = Field(default=None, ge=0, description="Of the photo; above 1 it is marked unsure.")
    finished: bool = Field(description="False where the greatest length cut the caption.")
    words: list[WordOut]
    others: list[CaptionOut] | None = Field(default=None, description="Further candidates.")


class PhotoErrorOut(BaseModel):
    """In place of a caption, for one of several photos that cannot be read."""

    source: str
    error: str = Field(description="What is wrong with this photo.")


IN_ORDER = "One for each photo, in the order sent; one of several photos may have an error instead."


class CaptionsOut(BaseModel):
    captions: list[CaptionOut | PhotoErrorOut] = Field(description=IN_ORDER)


class ExplainedWordOut(WordOut):
    attention: list[list[float]] = Field(description="Attention or occlusion: rows of grid cells, top to bottom.")
    heat_map: list[list[float]] = Field(description="The same, scaled to be drawn: once smoothed, 1 is the peak.")
    gate: float | None = Field(default=None, description="How much the photo counted, rather than the words before.")
    alternatives: list[WordOut] = Field(description="The other most likely tokens.")


class ExplanationOut(CaptionOut):
    words: list[ExplainedWordOut]  # type: ignore[assignment]
    sentence: str = Field(description="The caption for a person to read.")
    certainty: str = Field(description="A few words on how far to rely on it.")
    method: str = Field(description="How the maps were found: attention or occlusion.")
    frame: list[float] = Field(description="What the maps cover: left, top, right, bottom as shares of the photo.")


class ExplanationsOut(BaseModel):
    explanations: list[ExplanationOut | PhotoErrorOut] = Field(description=IN_ORDER)


class LimitsOut(BaseModel):
    max_bytes: int
    max_pixels: int
    max_photos: int


class HealthOut(BaseModel):
    status: str
    model: str
    version: str
    token_required: bool
    beam: int = Field(description="The model's default.")
    limits: LimitsOut


class ErrorOut(BaseModel):
    error: str = Field(description="What happened, which value, what to do.")


# -- errors in a request ----------------------------------------------------------------------------------------------


SHOWN_ERRORS = 5
SHORT = reprlib.Repr()  # cuts a value before it is printed: a request may hold one of many megabytes
SHORT.maxstring = SHORT.maxother = SHORT.maxlong = 60


def error_line(error: ValidationError, model: type[BaseModel]) -> str:
    """The first few errors of a request, as one line. `uploads.read_json` bounds how many there can be."""
    shown = [_error(item, model) for item in error.errors(include_url=False)[:SHOWN_ERRORS]]
    more = error.error_count() - len(shown)
    return "; ".join([*dict.fromkeys(shown), *([f"and {counted(more, 'more error')}"] if more else [])])


def _error(item: Any, model: type[BaseModel]) -> str:
    field = printable(".".join(str(part)[:80] for part in item["loc"]))[:80]
    reason = item["msg"].removeprefix("Value error, ")
    reason = reason[:1].lower() + reason[1:]
    if item["type"] == "json_invalid":
        return f"the body is not JSON: {reason.removeprefix('invalid JSON: ')}"
    if item["type"] == "extra_forbidden":
        return f"unknown field {field!r}{nearest(field, model.model_fields)}"
    if item["type"] == "missing":
        return f"{field} is missing"
    return f"{field or 'the body'} is {SHORT.repr(item['input'])}: {reason}"


# -- OpenAPI ----------------------------------------------------------------------------------------------------------

REFERENCE = "#/components/schemas/{model}"
BODIES: dict[str, tuple[type[Photos], type[Options]]] = {
    "/v1/caption": (CaptionBody, CaptionOptions),
    "/v1/explain": (ExplainBody, ExplainOptions),
}
ERRORS_ALWAYS = {
    "403": "A page of another site sent the request, and the server does not allow that origin.",
    "421": "The server does not have the name in the Host header.",
}
ERRORS_OF_BODIES = {
    "400": "The body cannot be read: not JSON, or a form that is cut off.",
    "408": "The body did not arrive in time.",
    "413": "Too many bytes.",
    "415": "Neither a form nor JSON.",
    "422": "A field is missing, unknown or out of bounds, or the only photo cannot be opened.",
    "429": "The limit of photos in flight is reached; Retry-After says when to try again.",
    "503": "No response in time; Retry-After says when to try again.",
}
RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}


def openapi_document(
    app: FastAPI,
    settings: Settings,
    defaults: Mapping[str, DecodingOptions],
    add: Callable[[dict[str, Any]], None] = lambda document: None,
) -> dict[str, Any]:
    """FastAPI's document, completed with what it cannot know: bodies that handlers read themselves, and errors.

    ``defaults`` are the model's options at each path with a body; ``add`` adds further paths.
    """
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    components = document.setdefault("components", {})
    models: list[Any] = [(model, "validation") for bodies in BODIES.values() for model in bodies]
    _, definitions = models_json_schema([*models, (ErrorOut, "validation")], ref_template=REFERENCE)
    known = components.setdefault("schemas", {})
    known.update(definitions["$defs"])
    for path, operations in document["paths"].items():
        for operation in operations.values():
            responses = operation["responses"]
            responses.update({status: error_content(meaning) for status, meaning in ERRORS_ALWAYS.items()})
            if path in BODIES:
                operation["requestBody"] = _request_body(known, *BODIES[path], settings.max_photos, defaults[path])
                responses.update({status: error_content(meaning) for status, meaning in ERRORS_OF_BODIES.items()})
                responses["429"]["headers"] = responses["503"]["headers"] = RETRY_AFTER
    paths = document["paths"]
    add(document)
    for path, operations in paths.items():
        for operation in operations.values() if settings.token and path.startswith(PROTECTED) else ():
            kind = operation["responses"]["403"]["content"]["application/json"]["schema"]
            operation["security"] = [{"token": []}]
            operation["responses"]["401"] = error_content("The token is missing or wrong.")
            operation["responses"]["401"]["content"]["application/json"]["schema"] = kind
    paths["/healthz"]["get"]["responses"]["503"] = error_content("One of the model's threads has ended.")
    paths["/metrics"]["get"]["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    if settings.token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return document


def _request_body(
    known: dict[str, Any], body: type[Photos], options: type[Options], max_photos: int, defaults: DecodingOptions
) -> dict[str, Any]:
    """One body as a form with files, or as JSON with base64; both with this server's limit and its model's defaults."""
    known[body.__name__]["properties"]["photos"]["maxItems"] = max_photos
    for model in (body, options):
        for name, field in known[model.__name__]["properties"].items():
            if name != "photos":
                field["default"] = getattr(defaults, name, False)  # occlusion is no decoding option
    photos = {
        "type": "array", "minItems": 1, "maxItems": max_photos, "description": "Answers come in the same order.",
        "items": {"type": "string", "format": "binary"},
    }  # fmt: skip
    form = {
        "type": "object",
        "additionalProperties": False,
        "required": ["photos"],
        "properties": {"photos": photos, **known[options.__name__]["properties"]},
        **SAMPLING_ONLY,
    }
    reference = {"$ref": REFERENCE.format(model=body.__name__)}
    return {
        "required": True,
        "content": {"multipart/form-data": {"schema": form}, "application/json": {"schema": reference}},
    }


def error_content(meaning: str, kind: type[BaseModel] = ErrorOut) -> dict[str, Any]:
    content = {"schema": {"$ref": REFERENCE.format(model=kind.__name__)}}
    return {"description": meaning, "content": {"application/json": content}}
