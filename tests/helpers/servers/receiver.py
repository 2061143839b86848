"""A receiver behind a Collector: it answers with a chosen status and keeps all requests. It checks the Collector, not the ingest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import zstandard
from fastapi import FastAPI, Request, Response

from helpers.servers.serving import served

__all__ = ["Receiver", "Received", "receiver"]


@dataclass(frozen=True)
class Received:
    """One received request: path, decompressed body, Authorization header, and the status of the reply."""

    path: str
    body: bytes
    authorization: str
    status: int


@dataclass
class Receiver:
    """The receiver's URL, the status of its replies, and the requests received so far."""

    url: str = ""
    status: int = 200
    received: list[Received] = field(default_factory=list)

    @property
    def accepted(self) -> list[Received]:
        """The requests that were answered with 200."""
        return [each for each in self.received if each.status == 200]


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    """Run a receiver on a free port."""
    app, kept = FastAPI(), Receiver()

    async def accept(request: Request) -> Response:
        raw = await request.body()
        body = zstandard.ZstdDecompressor().decompressobj().decompress(raw) if request.headers.get("content-encoding") == "zstd" else raw
        kept.received.append(Received(request.url.path, body, request.headers.get("authorization", ""), kept.status))
        return Response(status_code=kept.status, media_type="application/x-protobuf")

    app.add_api_route("/v1/traces", accept, methods=["POST"])
    app.add_api_route("/v1/metrics", accept, methods=["POST"])
    with served(app) as url:
        kept.url = url
        yield kept
