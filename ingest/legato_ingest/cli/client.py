"""Asks the read endpoint, as the CLI does.

One idea: one POST a question, values bound as parameters and never put into the text, rows back as JSON. Only the standard library, so
that a command answers at once; it never opens a store and never imports its engine.
"""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from legato_ingest.errors import LegatoError
from legato_ingest.quoting import Value, parameter

__all__ = ["DEFAULT_URL", "DEFAULT_USER", "ReadError", "Reader"]

DEFAULT_URL = "http://127.0.0.1:8123"
DEFAULT_USER = "legato"
_TIMEOUT_S = 60


class ReadError(LegatoError):
    """The endpoint cannot be reached, or did not answer the question."""


class Reader:
    """A client of the endpoint at ``url``, with a password as that user, which is in no message. Raises ``ReadError``."""

    def __init__(self, url: str = DEFAULT_URL, user: str = DEFAULT_USER, password: str = "") -> None:
        parts = urlsplit(url)
        if parts.username is not None or parts.password is not None:
            raise ReadError("the read URL holds a user or a password: leave them out, and set LEGATO_READ_USER and LEGATO_READ_PASSWORD")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ReadError(f"the read URL is {url!r}, expected something like {DEFAULT_URL}")
        self._https = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port or (443 if self._https else 8123)
        self._path = parts.path or "/"
        basic = base64.b64encode(f"{user}:{password}".encode("utf-8", "surrogateescape")).decode()
        self._headers = {"Authorization": f"Basic {basic}"} if password else {}

    def rows(self, sql: str, parameters: Mapping[str, Value] | None = None) -> list[dict[str, Any]]:
        """The rows of a query, each by column name. Raises ``ReadError``."""
        query = {"default_format": "JSONEachRow", **{f"param_{name}": parameter(value) for name, value in (parameters or {}).items()}}
        return [json.loads(line) for line in self._ask(sql, query).splitlines()]

    def _ask(self, sql: str, query: Mapping[str, str]) -> bytes:
        kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            connection.request("POST", f"{self._path}?{urlencode(query)}", sql.encode(), self._headers)
            reply = connection.getresponse()
            body = reply.read()
        except ConnectionRefusedError:
            raise ReadError(
                f"no `legato serve` on {self._host}:{self._port}: start it with `legato serve`, "
                "or say where it is with --url or LEGATO_READ_URL"
            ) from None
        except TimeoutError:
            raise ReadError(
                f"{self._host}:{self._port} did not answer within {_TIMEOUT_S} s: ask for less (--since 15m), or again"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise ReadError(
                f"cannot ask {self._host}:{self._port} ({type(error).__name__}: {error}): is it `legato serve`'s read port?"
            ) from None
        finally:
            connection.close()
        if reply.status != 200 or reply.headers.get("X-ClickHouse-Format") is None:
            raise ReadError(self._complaint(reply.status, reply.headers.get("X-ClickHouse-Exception-Code"), body))
        return body

    def _complaint(self, status: int, code: str | None, body: bytes) -> str:
        where = f"{self._host}:{self._port}"
        if code is None:
            return f"{where} answers (status {status}), but not as a read endpoint: is it `legato serve`'s read port?"
        if code == "516":
            return f"{where} wants a user and a password, and these are not right: set LEGATO_READ_USER and LEGATO_READ_PASSWORD"
        text = body.decode("utf-8", "replace").strip()[:500]
        if code == "60":
            return f"the store behind {where} lacks a table of this version ({text}): `legato schema status` shows what is applied"
        return f"{where} refused the query (status {status}): {text}"
