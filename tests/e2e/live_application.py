"""A server that streams, or an application that reads from it: `live_application.py server PORT OTLP`, `… client SERVER OTLP STREAMS`.

The tests run both as separate processes, so that the server can be frozen by a signal. Legato is used as in a user's application. With
`… busy SERVER OTLP STREAMS` the application also blocks its event loop again and again, and half of its streams are raw responses. Streams
have the number of chunks that the header `X-Chunks` gives.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from openai import AsyncOpenAI

import legato
from legato.asgi import StreamMiddleware

CHUNKS, EVERY_S = 1_200, 0.05
# A busy application blocks its loop for so long, and is idle between two blocks for so long.
BLOCKS_S, IDLE_S, BUSY_CHUNKS = (0.3, 0.5, 0.8), (0.15, 0.4), 200
_numbers = itertools.count()
app = FastAPI()


@app.post("/v1/chat/completions")
async def chat(request: Request) -> StreamingResponse:
    """Stream a chunk every 50 ms, for a minute by default."""
    ident = f"chatcmpl-{next(_numbers)}"

    async def events() -> AsyncIterator[str]:
        for _ in range(int(request.headers.get("X-Chunks", CHUNKS))):
            choices = [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]
            yield f"data: {json.dumps({'id': ident, 'object': 'chat.completion.chunk', 'model': 'm', 'choices': choices})}\n\n"
            await asyncio.sleep(EVERY_S)
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def _read_all(server: str, streams: int) -> None:
    async with AsyncOpenAI(base_url=server, api_key="none", max_retries=0) as client:

        async def read() -> None:
            async for _ in await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}], stream=True):
                pass

        await asyncio.gather(*(read() for _ in range(streams)))


async def _read_busily(server: str, streams: int) -> None:
    async with AsyncOpenAI(base_url=server, api_key="none", max_retries=0) as client:
        messages: list[Any] = [{"role": "user", "content": "?"}]
        more = {"extra_headers": {"X-Chunks": str(BUSY_CHUNKS)}}

        async def read(raw: bool) -> None:
            completions: Any = client.chat.completions
            if raw:
                response = await completions.with_raw_response.create(model="m", messages=messages, stream=True, **more)
                chunks = response.parse()
            else:
                chunks = await completions.create(model="m", messages=messages, stream=True, **more)
            async for _ in chunks:
                pass

        async def block() -> None:
            rng = random.Random(1)
            while True:
                await asyncio.sleep(rng.choice(IDLE_S))
                time.sleep(rng.choice(BLOCKS_S))

        blocking = asyncio.create_task(block())
        await asyncio.gather(*(read(bool(number % 2)) for number in range(streams)))
        blocking.cancel()


def main() -> None:
    """Run the server, or the application."""
    role, where, otlp = sys.argv[1:4]
    legato.configure(endpoint=otlp, service_name=f"live-{role}")
    if role == "server":
        app.add_middleware(StreamMiddleware, engine_id="engine-1")
        uvicorn.run(app, port=int(where), log_level="warning")
    else:
        legato.instrument_openai()
        asyncio.run((_read_busily if role == "busy" else _read_all)(where, int(sys.argv[4])))
        legato.flush()


if __name__ == "__main__":
    main()
