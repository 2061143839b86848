"""What browsers send to the web page's server: bodies and parameters, parsed, and whether the request may be answered.

The module reads requests and answers none.
"""

from __future__ import annotations

import base64
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, Field, ValidationError, model_validator

from legato_ingest.errors import BadRequest
from legato_ingest.query.clickhouse_http import foreign
from legato_ingest.web.panel_queries import MS_MAX

__all__ = ["IncidentRange", "Login", "Statement", "authorization_of", "json_body", "refusal", "url_parameters"]

_BODY_BYTES_MAX = 2**20
_OTHER_ORIGIN = "the request came from a page of another origin"

Model = TypeVar("Model", bound=BaseModel)


class Login(BaseModel):
    """What the login form sends: a token, or a user and a password."""

    user: str = Field("", max_length=256)
    password: str = Field(min_length=1, max_length=4_096)


class IncidentRange(BaseModel):
    """The range of an incident in ms since the epoch, and the service; empty: all."""

    from_ms: int = Field(ge=0, le=MS_MAX)
    to_ms: int = Field(ge=1, le=MS_MAX)
    service: str = Field("", max_length=1_024)

    @model_validator(mode="after")
    def _ordered(self) -> IncidentRange:
        if self.from_ms >= self.to_ms:
            raise ValueError(f"the range ends ({self.to_ms}) before it begins ({self.from_ms})")
        return self


class Statement(BaseModel):
    """A statement of the query page."""

    sql: str = Field(min_length=1, max_length=262_144)


def refusal(request: Request, host: str, is_guarded: bool) -> str:
    """Return why a request of another page is refused; empty for all others.

    Another port of this host is another origin, but not another site, so browsers send cookies from there; Sec-Fetch-Site says so. Browsers
    send it over HTTPS and to loopback names.
    """
    site = request.headers.get("sec-fetch-site", "")
    if site not in ("", "same-origin", "none") and request.url.path.startswith("/api/"):
        return _OTHER_ORIGIN
    if is_guarded and site == "same-origin":
        # A page cannot set this header. A proxy in between may have replaced Host.
        return ""
    origin = request.headers.get("origin")
    if is_guarded and origin is not None:
        # The page may have any name, as a request needs credentials; its own requests name the same host and port twice.
        is_own = origin.partition("://")[2].lower() == request.headers.get("host", "").lower()
        return "" if is_own else _OTHER_ORIGIN
    return foreign(request, host, is_guarded)


def url_parameters(request: Request, model: type[Model]) -> Model:
    """Parse the parameters of a URL. Raises ``BadRequest``."""
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise _invalid(error) from None


async def json_body(request: Request, model: type[Model]) -> Model:
    """Parse a JSON body. Raises ``BadRequest``."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise BadRequest("the body must be JSON (Content-Type: application/json)", 415)
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > _BODY_BYTES_MAX:
            raise BadRequest(f"the body has more than {_BODY_BYTES_MAX} bytes", 413)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise _invalid(error) from None


def _invalid(error: ValidationError) -> BadRequest:
    first = error.errors(include_input=False, include_url=False)[0]
    return BadRequest(f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}")


def authorization_of(given: Login) -> str:
    """The value of an Authorization header: Basic with a user, Bearer for a token alone."""
    if given.user:
        return "Basic " + base64.b64encode(f"{given.user}:{given.password}".encode()).decode()
    return "Bearer " + given.password.encode().decode("latin-1")
