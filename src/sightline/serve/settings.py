"""The server's settings and their bounds; only pydantic is needed here."""

from __future__ import annotations

import ipaddress
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from sightline.errors import ConfigError

MEGABYTE = 2**20


class Settings(BaseModel):
    """Memory is bounded by these: at most ``upload_bytes`` of uploads, and two photos of ``max_pixels``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)  # 0: any free one
    token: SecretStr | None = None
    max_bytes: int = Field(20 * MEGABYTE, ge=1024, le=1024 * MEGABYTE)  # of a request's body
    max_pixels: int = Field(65_000_000, ge=1, le=178_956_970)  # of a photo, as decoded: phones take 64.3 million
    max_photos: int = Field(16, ge=1, le=1000)  # of a request
    queue: int = Field(64, ge=1, le=100_000)  # photos in flight: waiting and being captioned
    batch: int = Field(16, ge=1, le=1000)  # photos captioned at once
    timeout: float = Field(30, gt=0, le=3600)  # seconds from a request's headers to its response
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()  # further host names of this server, e.g. behind a proxy

    @field_validator("token")
    @classmethod
    def _usable(cls, token: SecretStr | None) -> SecretStr | None:
        text = "unset" if token is None else token.get_secret_value()
        if not text or not text.isascii() or not text.isprintable() or " " in text:
            raise ValueError("must be printable ASCII without spaces, and not empty")
        return token

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            scheme, separator, rest = origin.partition("://")
            if origin != "*" and not (scheme in ("http", "https") and separator and rest and "/" not in rest):
                raise ValueError("must be * or an origin such as https://example.org, without a path")
        return origins

    @model_validator(mode="after")
    def _photos_fit(self) -> Settings:
        if self.max_photos > self.queue:
            raise ValueError(f"queue is {self.queue}, but a request may bring max_photos {self.max_photos}")
        return self

    @property
    def upload_bytes(self) -> int:
        """The limit for all requests together: some of the largest, or a full queue of usual ones."""
        return max(min(max(self.queue, 4), 32) * self.max_bytes, 4 * MEGABYTE * self.queue)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def make_settings(**values: Any) -> Settings:
    """Settings, or one `ConfigError` that names every error by its flag."""
    try:
        return Settings(**values)
    except ValidationError as error:
        raise ConfigError("; ".join(_error(item) for item in error.errors())) from None


def _error(item: Any) -> str:
    reason = item["msg"].removeprefix("Value error, ")
    if not item["loc"]:
        return reason
    name = str(item["loc"][0])
    if name == "token":  # never shown
        return f"the token {reason}"
    flag = {"cors_origins": "cors-origin", "allowed_hosts": "allow-host"}.get(name, name.replace("_", "-"))
    return f"--{flag} is {item['input']!r}: {reason[:1].lower()}{reason[1:]}"
