"""Every answer that is not what was asked for: a status, and one line of JSON that says why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response


class Refusal(Exception):
    """Raised anywhere while a request is handled; answered as ``{"error": reason}``."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None):
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, dict(headers or {})

    def response(self) -> Response:
        return json_response({"error": self.reason}, self.status, self.headers)


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(as_json(content), status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


def as_json(content: Any) -> bytes:
    """Escaped to ASCII, so that any text comes through, even what UTF-8 cannot hold."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")
