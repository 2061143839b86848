"""A server that streams `FORMATS`, for tests of middlewares and clients: the path names the format, and the query what happens.

`?cut` leaves out the end, `?gzip` compresses, `?pause=S` sleeps S seconds between the words, `?break` drops the connection, `?status=N`
answers with a status. `at` adds paths at which the clients of a provider find their format.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from helpers.builders.formats import FORMATS, WORDS, gemini_array

__all__ = ["formats_app"]


async def _stream(name: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
    wire = FORMATS[name]
    packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS) if "gzip" in query else None
    events = (*wire.prelude, *wire.words) if "cut" in query or "break" in query else wire.events
    for event in events:
        yield event if packer is None else packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH)
        await asyncio.sleep(float(query.get("pause", 0.005)))
    if "break" in query:
        raise ConnectionError("the provider closed the connection")
    if packer is not None:
        yield packer.flush()


async def _words() -> AsyncIterator[str]:
    for word in WORDS:
        yield word
        await asyncio.sleep(0.01)


async def _array() -> AsyncIterator[bytes]:
    for piece in gemini_array():
        yield piece
        await asyncio.sleep(0.005)


def formats_app(at: Mapping[str, str] | None = None, seen: list[dict[str, str]] | None = None, *more: Any) -> Starlette:
    """Return the application. ``at``: formats by path, besides ``/NAME``; ``seen``: the headers of each request are appended to it."""
    paths = {f"/{name}": name for name in FORMATS} | dict(at or {})

    def answer(name: str) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            if seen is not None:
                seen.append(dict(request.headers))
            query = request.query_params
            if "status" in query:
                return PlainTextResponse("no", int(query["status"]))
            if name == "words":
                return StreamingResponse(_words(), media_type="text/plain")
            if name == "array":
                return StreamingResponse(_array(), media_type="application/json")
            headers = {"content-encoding": "gzip"} if "gzip" in query else None
            return StreamingResponse(_stream(name, query), media_type=FORMATS[name].content_type, headers=headers)

        return endpoint

    paths["/words"] = "words"
    routes = [Route(path, answer(name), methods=["GET", "POST"]) for path, name in paths.items()]
    return Starlette(routes=[*more, *routes])
