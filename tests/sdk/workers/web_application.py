"""A web application for servers with worker processes: `wsgi` and `asgi` relay one stream of the completions server for each request.

The last part of the path is the model, so each request gives two streams: the client's with that name, and the server's in the same trace.
The module calls `configure()` when it is imported: in the master under `--preload`, else in each worker. It never calls `legato.flush()`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

import legato
from legato.asgi import StreamMiddleware as AsgiMiddleware
from legato.wsgi import StreamMiddleware as WsgiMiddleware

_URL = os.environ["SERVER"] + "/chat/completions"
legato.configure(service_name="workers")
legato.instrument_httpx()


def _asked(path: str) -> dict[str, Any]:
    return {"model": path.rpartition("/")[2], "messages": [], "stream": True}


def _application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/event-stream"), ("X-Process", str(os.getpid()))])

    def relayed() -> Iterator[bytes]:
        with httpx.Client() as client, client.stream("POST", _URL, json=_asked(environ["PATH_INFO"])) as response:
            yield from response.iter_raw()

    return relayed()


async def _relay(request: Request) -> StreamingResponse:
    async def relayed() -> AsyncIterator[bytes]:
        async with httpx.AsyncClient() as client, client.stream("POST", _URL, json=_asked(request.url.path)) as response:
            async for part in response.aiter_raw():
                yield part

    return StreamingResponse(relayed(), media_type="text/event-stream", headers={"X-Process": str(os.getpid())})


wsgi = WsgiMiddleware(_application)
asgi = AsgiMiddleware(Starlette(routes=[Route("/{model}", _relay, methods=["POST"])]))
