"""From a request's body to photos and options, within the limits and in memory alone: no upload touches the disk."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from sightline.io.files import counted, printable
from sightline.serve.http_errors import Refusal
from sightline.serve.schemas import CaptionBody, Options, fault_line, given

LONGEST_FIELD = 64  # characters of an option in a form
LONGEST_NAME = 200
ACCEPTED = "multipart/form-data or application/json"

Body = TypeVar("Body", bound=Options)


@dataclass(frozen=True)
class Upload:
    """The photos of one request, with the names their files had, and the options it gave."""

    photos: list[bytes]
    names: list[str]
    options: dict[str, Any]


class Multipart(MultiPartParser):
    """Starlette's parser, which past a megabyte would write to disk, and takes a body without its end for whole."""

    spool_max_size = 2**62

    def __init__(self, headers: Headers, stream: AsyncGenerator[bytes, None], max_photos: int):
        fields = len(Options.model_fields) + 2
        super().__init__(headers, stream, max_files=max_photos, max_fields=fields, max_part_size=LONGEST_FIELD)
        self.complete = False

    def on_end(self) -> None:
        self.complete = True


async def limited(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """The body, piece by piece, as long as it is not too large; a length that is announced is believed at once."""
    too_large = Refusal(413, f"the request is larger than {max_bytes:,} bytes: send fewer or smaller photos")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise too_large
    count = 0
    async for piece in request.stream():
        count += len(piece)
        if count > max_bytes:
            raise too_large
        yield piece


async def read_form(request: Request, model: type[Options], max_bytes: int, max_photos: int) -> Upload:
    parser = Multipart(request.headers, limited(request, max_bytes), max_photos)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if error.message.startswith("Too many files"):
            raise too_many(max_photos) from None
        if error.message.startswith("Part exceeded"):
            raise Refusal(422, "a field is too long: photos need a file name, options are short") from None
        raise Refusal(400, f"the form cannot be read: {printable(error.message)}") from None
    except FormParserError as error:  # older Starlettes let it through
        raise Refusal(400, f"the form cannot be read: {printable(error)}") from None
    photos, names, fields = [], [], {}
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if name != "photos":
                    raise Refusal(422, f"a photo is in the field {printable(name)[:80]!r}: call it photos")
                photos.append(await value.read())
                names.append(printable(value.filename or "")[:LONGEST_NAME])
            elif name == "photos":
                raise Refusal(422, "photos has no file name: send it as a file, e.g. curl -F photos=@dog.jpg")
            elif name in fields:
                raise Refusal(422, f"{printable(name)[:80]} is given twice: give it once")
            else:
                fields[name] = value
    finally:
        await form.close()
    if not parser.complete:
        raise Refusal(400, "the form is cut off, its end is missing: send it again")
    if not photos:
        raise Refusal(422, "photos is missing: send at least one, e.g. curl -F photos=@dog.jpg")
    return Upload(photos, names, given(checked(model, fields)))


def checked(model: type[Body], fields: dict[str, Any]) -> Body:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise Refusal(422, fault_line(error, model)) from None


def read_json(body: bytes, model: type[CaptionBody], max_photos: int) -> Upload:
    """Takes a while for a large body: call it outside the event loop."""
    try:
        asked = model.model_validate_json(body, strict=True)
    except ValidationError as error:
        broken = any(item["type"] == "json_invalid" for item in error.errors(include_input=False))
        raise Refusal(400 if broken else 422, fault_line(error, model)) from None
    if len(asked.photos) > max_photos:
        raise too_many(max_photos)
    photos = [_from_base64(text, number) for number, text in enumerate(asked.photos, 1)]
    return Upload(photos, [""] * len(photos), given(asked))


def _from_base64(text: str, number: int) -> bytes:
    if text.startswith("data:"):
        kind, _, text = text.partition(",")
        if not kind.endswith(";base64"):
            raise Refusal(422, f"photo {number} is a data: address without ;base64: encode it as base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Refusal(422, f"photo {number} is not base64: encode the file's bytes, without line breaks") from None


def too_many(max_photos: int) -> Refusal:
    return Refusal(422, f"more than {counted(max_photos, 'photo')} in one request: send them in several")
