"""The requests of ClickHouse's HTTP interface: statement, parameters and format, and whether a browser of another site sent the request.

It parses the subset of the interface that ClickHouse's clients use. It checks no statement, runs none, and checks no credentials. The
checks of Host and Origin protect against browsers: a site that rebinds its name to 127.0.0.1 sends a foreign Host, and a form on another
site sends a foreign Origin.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.formparsers import MultiPartException, MultiPartParser

from legato_ingest.errors import BadRequest, TooLarge

__all__ = ["Encoded", "ReadRequest", "foreign", "read_request"]

BODY_BYTES_MAX = 2 * 2**20
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
_AUTHORITY = re.compile(r"([\w.-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?", re.ASCII)
_FORMAT = re.compile(r"\w{1,64}")
_PARAMETER = re.compile(r"param_([A-Za-z_]\w*)", re.ASCII)
_DATABASES = frozenset(("", "default", "__default__"))


class Encoded:
    """A parameter's value in the encoding of the HTTP interface. The driver would escape a ``str`` a second time; other types it keeps."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """One request: the statement, its parameters, and the format and compression of the reply."""

    sql: str
    parameters: dict[str, Any]
    default_format: str
    query_id: str
    gzip: bool


def foreign(request: Request, host: str, is_guarded: bool) -> str:
    """Return why a request of a web page of another origin, or with a foreign name for this host, is refused; empty for all others.

    ``host``: the address that the server listens on. ``is_guarded``: whether readers need credentials; then any name may be used.
    """
    if not is_guarded and not _is_local(request, host):
        return "the Host (or Origin) is not a loopback name; use http://127.0.0.1 or http://localhost"
    if _has_foreign_origin(request, host):
        return "the Origin is not a loopback name: web pages of other sites may not query"
    return ""


def _is_local(request: Request, host: str) -> bool:
    """Whether Host, and Origin if there is one, are loopback names or ``host``, the address that the server listens on."""
    return _name(request.headers.get("host", "")) in _LOOPBACK | {host} and not _has_foreign_origin(request, host)


def _has_foreign_origin(request: Request, host: str) -> bool:
    """Whether a web page sent this request that was served neither from a loopback name nor from ``host``."""
    origin = request.headers.get("origin")
    return origin is not None and _name(origin.partition("://")[2]) not in _LOOPBACK | {host}


def _name(authority: str) -> str:
    """The host of ``host``, ``host:port`` or ``[address]:port``; empty when it is none of these."""
    match = _AUTHORITY.fullmatch(authority.lower())
    return match.group(1).strip("[]").rstrip(".") if match else ""


async def read_request(request: Request) -> ReadRequest:
    """Parse a request. Raises ``BadRequest``."""
    values = dict(request.query_params.items())
    _check_supported(request, values)
    parts = [values.pop("query", "")]
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        form = await _form(request)
        parts.append(form.pop("query", ""))
        values.update(form)
    else:
        body = b"".join([part async for part in _bounded(request)])
        parts.append(body.decode("utf-8", "replace"))
    chosen = request.headers.get("x-clickhouse-format") or values.get("default_format") or "TabSeparated"
    if not _FORMAT.fullmatch(chosen):
        raise BadRequest("Code: 73. DB::Exception: the default format is not the name of a format", 404)
    return ReadRequest(
        sql="\n".join(part for part in parts if part.strip()),
        parameters={match.group(1): Encoded(value) for key, value in values.items() if (match := _PARAMETER.fullmatch(key))},
        default_format=chosen,
        query_id=re.sub(r"[^\w.:-]", "", values.get("query_id", ""), flags=re.ASCII)[:64],
        gzip=values.get("enable_http_compression") == "1" and "gzip" in request.headers.get("accept-encoding", ""),
    )


def _check_supported(request: Request, values: dict[str, str]) -> None:
    """Reject another default database and ClickHouse's own compression. Raises ``BadRequest``."""
    if values.get("database", "") not in _DATABASES:
        raise BadRequest(
            f"Code: 81. DB::Exception: database {values['database']}: only `default` can be selected here; "
            "write other databases in the statement, as in system.one",
            404,
        )
    if request.headers.get("content-encoding", "identity") != "identity" or values.get("decompress", "0") not in ("0", "false"):
        raise BadRequest("compressed requests are not supported: send the statement uncompressed", 415)
    if values.get("compress", "0") not in ("0", "false"):
        raise BadRequest("replies in ClickHouse's own compression (LZ4, ZSTD: compress=1) are not supported: use gzip or no compression")


async def _bounded(request: Request) -> AsyncGenerator[bytes, None]:
    """The parts of the body. Raises ``TooLarge`` beyond 2 MiB."""
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise TooLarge(f"the request has more than {BODY_BYTES_MAX} bytes; this endpoint accepts statements, not data")
        yield part


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form: clickhouse-connect sends one when its parameters are too long for a URL. Files are rejected."""
    _, options = parse_options_header(request.headers["content-type"])
    if not options.get(b"boundary"):
        return {}
    if options.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8"):
        raise BadRequest("forms are accepted in UTF-8 only", 415)
    parser = MultiPartParser(request.headers, _bounded(request), max_files=0, max_part_size=BODY_BYTES_MAX)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if error.message.startswith("Too many files"):
            raise BadRequest("files and external tables are not accepted: this endpoint only reads") from None
        raise BadRequest(f"the form cannot be parsed: {error.message}") from None
    return {name: value for name, value in form.items() if isinstance(value, str)}
