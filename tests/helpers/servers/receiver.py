"""A receiver behind a Collector that answers as it is told and remembers what came: it shows what a Collector does, not the ingest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import zstandard
from fastapi import FastAPI, Request, Response

from helpers.servers.serving import served

__all__ = ["Came", "Receiver", "receiver"]


@dataclass(frozen=True)
class Came:
    """One request: its path, its body after decompression, its Authorization."""

    path: str
    body: bytes
    authorization: str
    status: int


@dataclass
class Receiver:
    """Answers every request with ``status``."""

    url: str = ""
    status: int = 200
    came: list[Came] = field(default_factory=list)

    @property
    def taken(self) -> list[Came]:
        """What was answered with 200."""
        return [each for each in self.came if each.status == 200]


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver on a free port."""
    app, kept = FastAPI(), Receiver()

    async def take(request: Request) -> Response:
        raw = await request.body()
        body = zstandard.ZstdDecompressor().decompressobj().decompress(raw) if request.headers.get("content-encoding") == "zstd" else raw
        kept.came.append(Came(request.url.path, body, request.headers.get("authorization", ""), kept.status))
        return Response(status_code=kept.status, media_type="application/x-protobuf")

    app.add_api_route("/v1/traces", take, methods=["POST"])
    app.add_api_route("/v1/metrics", take, methods=["POST"])
    with served(app) as url:
        kept.url = url
        yield kept
