"""What a request to the read endpoint asks: statement, parameters, format; and who may ask at all.

One idea: the subset of ClickHouse's HTTP interface that its clients use, taken apart in one place. A browser may not be turned against
the endpoint: a page that rebinds its own name to 127.0.0.1 comes with a foreign Host, one that posts across sites with a foreign Origin.
Where there is a password, it and not the Host says who asks. It judges no statement and runs none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any

from fastapi import Request

from legato_ingest.errors import BadRequest, TooLarge

__all__ = ["Question", "has_foreign_origin", "is_local", "question_of"]

BODY_BYTES_MAX = 2 * 2**20
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
_AUTHORITY = re.compile(r"([\w.-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?", re.ASCII)
_FORMAT = re.compile(r"\w{1,64}")
_PARAMETER = re.compile(r"param_([A-Za-z_]\w*)", re.ASCII)
_DATABASES = frozenset(("", "default", "__default__"))


class _Encoded:
    """A parameter's value as its client wrote it for the wire. The driver escapes strings once more, and leaves other objects' text be."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


@dataclass(frozen=True, slots=True)
class Question:
    """One request: what to run, with which values, and how to answer."""

    sql: str
    parameters: dict[str, Any]
    default_format: str
    query_id: str
    gzip: bool


def is_local(request: Request, host: str) -> bool:
    """Whether the Host is a loopback name (or ``host``, where we listen), and the Origin, if there is one, too."""
    return _name(request.headers.get("host", "")) in _LOOPBACK | {host} and not has_foreign_origin(request, host)


def has_foreign_origin(request: Request, host: str) -> bool:
    """Whether a page that neither loopback nor ``host`` served has sent this."""
    origin = request.headers.get("origin")
    return origin is not None and _name(origin.partition("://")[2]) not in _LOOPBACK | {host}


def _name(authority: str) -> str:
    """The host of ``host``, ``host:port`` or ``[address]:port``; empty when it is none of these."""
    match = _AUTHORITY.fullmatch(authority.lower())
    return match.group(1).strip("[]").rstrip(".") if match else ""


async def question_of(request: Request) -> Question:
    """Take the request apart. Raises ``BadRequest``."""
    values = dict(request.query_params.items())
    if values.get("database", "") not in _DATABASES:
        raise BadRequest(
            f"Code: 81. DB::Exception: database {values['database']}: only `default` is here; name others, as in system.one", 404
        )
    if request.headers.get("content-encoding", "identity") != "identity" or values.get("decompress", "0") not in ("0", "false"):
        raise BadRequest("compressed requests are not taken here: send the statement as it is", 415)
    if values.get("compress", "0") not in ("0", "false"):
        raise BadRequest("replies in ClickHouse's own compression (LZ4, ZSTD: compress=1) are not made here: ask for gzip or for none")
    body = await _body(request)
    kind = request.headers.get("content-type", "")
    parts = [values.pop("query", "")]
    if kind.startswith("multipart/form-data"):
        form = _form(kind, body)
        parts.append(form.pop("query", ""))
        values.update(form)
    else:
        parts.append(body.decode("utf-8", "replace"))
    chosen = request.headers.get("x-clickhouse-format") or values.get("default_format") or "TabSeparated"
    if not _FORMAT.fullmatch(chosen):
        raise BadRequest("Code: 73. DB::Exception: the default format is no format's name", 404)
    return Question(
        sql="\n".join(part for part in parts if part.strip()),
        parameters={match.group(1): _Encoded(value) for key, value in values.items() if (match := _PARAMETER.fullmatch(key))},
        default_format=chosen,
        query_id=re.sub(r"[^\w.:-]", "", values.get("query_id", ""), flags=re.ASCII)[:64],
        gzip=values.get("enable_http_compression") == "1" and "gzip" in request.headers.get("accept-encoding", ""),
    )


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise TooLarge(f"the request has more than {BODY_BYTES_MAX} bytes; this endpoint takes statements, not data")
        parts.append(part)
    return b"".join(parts)


def _form(kind: str, body: bytes) -> dict[str, str]:
    """The fields of a form: clickhouse-connect sends one when its parameters are too long for a URL. Files (external data) are refused."""
    message = BytesParser(policy=HTTP).parsebytes(b"Content-Type: " + kind.encode("latin-1", "replace") + b"\r\n\r\n" + body)
    fields: dict[str, str] = {}
    for part in message.iter_parts() if message.is_multipart() else ():
        name, payload = part.get_param("name", header="content-disposition"), part.get_payload(decode=True)
        if part.get_filename() is not None or not isinstance(name, str) or not isinstance(payload, bytes):
            raise BadRequest("files and external tables are not taken here: this endpoint only reads", 400)
        fields[name] = payload.decode("utf-8", "replace")
    return fields
