"""A running `legato serve` that receives streams with stalls, and the number of its rows."""

from __future__ import annotations

import httpx

from helpers.builders.spans import native_span, request
from helpers.servers.reading import stream
from helpers.servers.serving import Served

__all__ = ["row_counts", "send_stalls"]

_HEADERS = {"content-type": "application/x-protobuf"}
_COUNTS = "SELECT (SELECT count() FROM streams), (SELECT sum(cityHash64(toString(tuple(*)))) FROM stream_revs FINAL)"


def send_stalls(served: Served, count: int) -> None:
    """Send ``count`` streams with one stall of 700 ms each, and wait for the acknowledgement."""
    body = request()
    for _ in range(count):
        made = stream((20.0,) * 10 + (700.0,) + (20.0,) * 8, holds_ms=(0.0,) * 10 + (690.0,) + (0.0,) * 9)
        native_span(body, made["attributes"], duration_ns=made["duration_ns"])
    assert httpx.post(f"{served.otlp}/v1/traces", content=body.SerializeToString(), headers=_HEADERS, timeout=60).status_code == 200


def row_counts(served: Served) -> list[str]:
    """The number of streams and the row checksum of `stream_revs`, by a reader's query."""
    return httpx.post(served.read, content=_COUNTS).text.split()
