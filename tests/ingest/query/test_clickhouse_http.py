"""Tests of the parser of ClickHouse's HTTP requests, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from fastapi import Request

from legato_ingest.errors import BadRequest, TooLarge
from legato_ingest.query.clickhouse_http import BODY_BYTES_MAX, ReadRequest, foreign, read_request


def request(query: Mapping[str, str] | None = None, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Request:
    """A request with this query, body and headers."""
    raw = [(name.lower().encode(), value.encode()) for name, value in {"host": "127.0.0.1", **(headers or {})}.items()]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": urlencode(query or {}).encode(), "headers": raw}
    parts = [body[at : at + 1_000] for at in range(0, len(body), 1_000)] or [b""]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    return Request(scope, receive)


def parsed(*args: Any, **kwargs: Any) -> ReadRequest:
    """The parsed request."""
    return asyncio.run(read_request(request(*args, **kwargs)))


def form(**fields: Any) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of a form; a value that is a pair is a file."""
    files = {name: value if isinstance(value, tuple) else (None, value) for name, value in fields.items()}
    built = httpx.Request("POST", "http://127.0.0.1/", files=files)
    return built.read(), {"content-type": built.headers["content-type"]}


def test_statement_parameters_and_format() -> None:
    """The statement of URL and body together, parameters as their client encoded them, the reply's format and compression."""
    found = parsed(
        {"query": "SELECT number", "param_x": "a\\tb", "param_1": "no", "default_format": "CSV", "query_id": "a b\r\n1", "readonly": "0"},
        b"FROM numbers(2)",
    )
    assert found.sql == "SELECT number\nFROM numbers(2)" and found.default_format == "CSV" and found.query_id == "ab1" and not found.gzip
    assert {name: str(value) for name, value in found.parameters.items()} == {"x": "a\\tb"}
    assert parsed({"enable_http_compression": "1"}, headers={"accept-encoding": "gzip, br"}).gzip
    assert parsed(headers={"X-ClickHouse-Format": "JSON"}).default_format == "JSON"


def test_forms() -> None:
    """A form's fields are the statement and parameters, also long ones; the last of two fields with one name counts."""
    body, headers = form(query="SELECT {x:String}", param_x="ü" * 100_000, other="1")
    found = parsed({"param_x": "of the URL"}, body, headers)
    assert found.sql == "SELECT {x:String}" and str(found.parameters["x"]) == "ü" * 100_000
    assert parsed(body=b"\xff\xfe", headers={"content-type": "multipart/form-data"}).sql == ""


@pytest.mark.parametrize(
    ("query", "headers", "status", "message"),
    [
        ({"database": "system"}, {}, 404, "Code: 81"),
        ({"compress": "1"}, {}, 400, "own compression"),
        ({"decompress": "1"}, {}, 415, "uncompressed"),
        ({}, {"content-encoding": "gzip"}, 415, "uncompressed"),
        ({"default_format": "a b"}, {}, 404, "Code: 73"),
        ({}, {"content-type": "multipart/form-data; boundary=x; charset=utf-7"}, 415, "UTF-8"),
        ({}, {"content-type": "multipart/form-data; boundary=x"}, 400, "cannot be parsed"),
    ],
)
def test_unsupported_requests_are_rejected(query: dict[str, str], headers: dict[str, str], status: int, message: str) -> None:
    """Each with its status and a message."""
    with pytest.raises(BadRequest, match=message) as raised:
        parsed(query, b"not a form", headers)
    assert raised.value.status == status


def test_files_are_rejected() -> None:
    """External data would be an upload, also with an empty name or after a field."""
    for name in ("x.csv", " "):
        body, headers = form(query="SELECT 1", ext=(name, b"1"))
        with pytest.raises(BadRequest, match="files and external tables") as raised:
            parsed(None, body, headers)
        assert raised.value.status == 400


def test_bodies_are_bounded() -> None:
    """2 MiB in all, for a statement and for a form."""
    assert len(parsed(body=b"x" * BODY_BYTES_MAX).sql) == BODY_BYTES_MAX
    body, headers = form(query="SELECT 1", param_x="x" * BODY_BYTES_MAX)
    for too_large, kind in ((b"x" * (BODY_BYTES_MAX + 1), {}), (body, headers)):
        with pytest.raises(TooLarge):
            parsed(None, too_large, kind)


def test_local_and_foreign_requests() -> None:
    """Loopback names and the configured address are local, in Host and Origin."""
    for host in ("localhost", "LOCALHOST:8123", "[::1]:8123", "127.0.0.1", "localhost.", "10.0.0.5:8123"):
        assert not foreign(request(headers={"host": host}), "10.0.0.5", False)
    for host in ("evil.example", "", "127.0.0.1.evil.example", "localhost@evil", "127.0.0.1:80:80"):
        assert "Host" in foreign(request(headers={"host": host}), "10.0.0.5", False)
        assert not foreign(request(headers={"host": host}), "10.0.0.5", True)
    assert not foreign(request(headers={"origin": "http://localhost:3000"}), "10.0.0.5", True)
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example"):
        assert "Origin" in foreign(request(headers={"origin": origin}), "10.0.0.5", True)
