"""Reads from `legato serve` over its ClickHouse endpoint, as any client does.

One idea: the CLI has no way of its own to the data. Values go in as bound parameters, rows come out of JSONCompact. It opens no store
and imports no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from legato_ingest.errors import LegatoError

__all__ = ["DEFAULT_URL", "Reader", "Row"]

Row = dict[str, Any]
DEFAULT_URL = "http://127.0.0.1:8123"


class Reader:
    """Queries the endpoint at ``url``. Raises ``LegatoError`` with what to do next when nobody answers or a query is refused."""

    def __init__(self, url: str, timeout_s: float = 60.0) -> None:
        self._url = url.rstrip("/")
        self._client = httpx.Client(timeout=timeout_s)

    def rows(self, sql: str, **parameters: object) -> list[Row]:
        """The rows of a query, each by column name. ``parameters`` are bound to ``{name:Type}`` in it."""
        params: Mapping[str, str] = {f"param_{key}": str(value) for key, value in parameters.items()}
        try:
            reply = self._client.post(f"{self._url}/", params={**params, "default_format": "JSONCompact"}, content=sql.encode())
        except httpx.TransportError as error:
            raise LegatoError(
                f"nothing answers at {self._url} ({error}): start `legato serve`, or name its read port with --url or LEGATO_READ_URL"
            ) from None
        if reply.status_code != 200:
            raise LegatoError(f"the query was refused ({reply.status_code}): {reply.text.strip()[:500]}")
        answer = reply.json()
        names = [column["name"] for column in answer["meta"]]
        return [dict(zip(names, row, strict=True)) for row in answer["data"]]

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.close()
