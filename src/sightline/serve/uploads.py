"""From a request's body to photos and options, within the limits and in memory: no upload is written to disk."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from sightline.errors import ImageError
from sightline.io.files import counted, printable
from sightline.serve.schemas import DECODING, Options, Photos, error_line

IDLE_SECONDS = 10  # between two chunks of a body
MAX_FIELD = 64  # characters of an option in a form
MAX_NAME = 200
ACCEPTED = "multipart/form-data or application/json"

Body = TypeVar("Body", bound=Options)


@dataclass(frozen=True)
class Upload:
    """The photos of one request, the names of their files, and the options it gave."""

    photos: list[bytes | ImageError]  # or why there is none: base64 that cannot be decoded
    names: list[str]
    options: dict[str, Any]


class Multipart(MultiPartParser):
    """Starlette's parser, but it never writes to disk, and notices a body that is cut off."""

    spool_max_size = 2**62

    def __init__(self, headers: Headers, stream: AsyncGenerator[bytes, None], max_photos: int):
        fields = len(DECODING) + 3
        super().__init__(headers, stream, max_files=max_photos, max_fields=fields, max_part_size=MAX_FIELD)
        self.complete = False

    def on_end(self) -> None:
        self.complete = True


async def limited_body(
    request: Request, max_bytes: int, on_bytes: Callable[[int], None]
) -> AsyncGenerator[bytes, None]:
    """The body in chunks, up to the limit; one that announces a greater length is refused at once.

    ``on_bytes`` gets the number of bytes in each chunk. HTTP 408 where no chunk comes for `IDLE_SECONDS`.
    """
    too_large = HTTPException(413, f"the request is larger than {max_bytes:,} bytes: send fewer or smaller photos")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise too_large
    count, stream = 0, request.stream()
    while True:
        try:
            async with asyncio.timeout(IDLE_SECONDS) as idle:
                chunk = await anext(stream, None)
        except TimeoutError:
            if not idle.expired():
                raise
            raise HTTPException(408, f"no byte arrived for {IDLE_SECONDS:g} seconds: send the request again") from None
        if chunk is None:
            return
        count += len(chunk)
        if count > max_bytes:
            raise too_large
        on_bytes(len(chunk))
        yield chunk


async def read_form(
    headers: Headers, chunks: AsyncGenerator[bytes, None], model: type[Options], max_photos: int
) -> Upload:
    parser = Multipart(headers, chunks, max_photos)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if error.message.startswith("Too many files"):
            raise too_many_photos(max_photos) from None
        if error.message.startswith("Part exceeded"):
            raise HTTPException(422, "a field is too long: photos need a file name, options are short") from None
        raise HTTPException(400, f"the form cannot be read: {printable(error.message)}") from None
    except FormParserError as error:  # older Starlettes let it through
        raise HTTPException(400, f"the form cannot be read: {printable(error)}") from None
    photos: list[bytes | ImageError] = []
    names, fields = [], {}
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if name != "photos":
                    raise HTTPException(422, f"a photo is in the field {printable(name)[:80]!r}: call it photos")
                photos.append(await value.read())
                names.append(printable(value.filename or "")[:MAX_NAME])
            elif name == "photos":
                raise HTTPException(422, "photos has no file name: send it as a file, e.g. curl -F photos=@dog.jpg")
            elif name in fields:
                raise HTTPException(422, f"{printable(name)[:80]} is given twice: give it once")
            else:
                fields[name] = value
    finally:
        await form.close()
    if not parser.complete:
        raise HTTPException(400, "the form is cut off, its end is missing: send it again")
    if not photos:
        raise HTTPException(422, "photos is missing: send at least one, e.g. curl -F photos=@dog.jpg")
    return Upload(photos, names, checked(model, fields).model_dump(exclude_unset=True))


def checked(model: type[Body], fields: dict[str, Any]) -> Body:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise HTTPException(422, error_line(error, model)) from None


def read_json(body: bytes, model: type[Photos], max_photos: int) -> Upload:
    """Slow for a large body: call it outside the event loop.

    Two bytes of JSON become a value of some hundred bytes, and its error some hundred more. So the values are counted
    before they are parsed: each one but the first follows a comma or a bracket, and base64 holds neither.
    """
    most = 4 * (max_photos + len(model.model_fields))  # a data: URL has a comma of its own
    if sum(map(body.count, (b",", b"[", b"{"))) > most:
        limits = f"{counted(max_photos, 'photo')} as base64, and each option once"
        raise HTTPException(422, f"the JSON has more than {most:,} values: send at most {limits}")
    try:
        parsed = model.model_validate_json(body, strict=True)
    except ValidationError as error:
        not_json = any(item["type"] == "json_invalid" for item in error.errors(include_input=False))
        raise HTTPException(400 if not_json else 422, error_line(error, model)) from None
    if len(parsed.photos) > max_photos:
        raise too_many_photos(max_photos)
    photos = [decode_photo(text, number) for number, text in enumerate(parsed.photos, 1)]
    return Upload(photos, [""] * len(photos), parsed.model_dump(exclude_unset=True, exclude={"photos"}))


def decode_photo(text: str, number: int) -> bytes | ImageError:
    """A photo given as base64 or as a ``data:`` URL; no other URL is fetched."""
    if "://" in text[:20]:
        return ImageError(f"photo {number} is a URL, and this server fetches none: send the photo itself as base64")
    if text.startswith("data:"):
        kind, _, text = text.partition(",")
        if not kind.endswith(";base64"):
            return ImageError(f"photo {number} is a data: URL without ;base64: encode it as base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return ImageError(f"photo {number} is not base64: encode the file, without line breaks")


def too_many_photos(max_photos: int) -> HTTPException:
    return HTTPException(422, f"more than {counted(max_photos, 'photo')} in one request: send them in several")
