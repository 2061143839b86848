"""An application that reads one stream from the demo server and ends it in a given way: `application.py WAY SERVER OTLP KEY`.

The tests run it as a separate process. Each way is one in which real applications end a stream. After the end only the interpreter's exit
and `legato.flush()` run. The ways `complete`, `close`, `timeout` and `killed` print the line `reading` after ten chunks.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from openai import AsyncOpenAI, OpenAI, Timeout

import legato

ENOUGH = 10


def _request(key: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hello"}]
    return {"model": "demo-kv", "messages": messages, "stream": True, "extra_headers": {"X-Request-Id": key}}


def _announced(chunks: Iterator[Any]) -> Iterator[Any]:
    """Yield the chunks and print `reading` before the eleventh."""
    for number, chunk in enumerate(chunks):
        if number == ENOUGH:
            print("reading", flush=True)
        yield chunk


def complete(server: str, key: str) -> None:
    """Read to the end."""
    with OpenAI(base_url=server, api_key="demo") as client:
        for _ in _announced(client.chat.completions.create(**_request(key))):
            pass


def close(server: str, key: str) -> None:
    """Leave the loop after ten chunks and close the stream, as `with` does."""
    with OpenAI(base_url=server, api_key="demo") as client, client.chat.completions.create(**_request(key)) as chunks:
        for number, _ in enumerate(_announced(chunks)):
            if number == ENOUGH:
                break


def cancel(server: str, key: str) -> None:
    """Cancel the reading task after ten chunks."""

    async def read(enough: asyncio.Event) -> None:
        async with AsyncOpenAI(base_url=server, api_key="demo") as client:
            number = 0
            async for _ in await client.chat.completions.create(**_request(key)):
                number += 1
                if number == ENOUGH:
                    enough.set()

    async def run() -> None:
        enough = asyncio.Event()
        task = asyncio.create_task(read(enough))
        await enough.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def drop(server: str, key: str) -> None:
    """Leave the loop after ten chunks and drop the stream without closing it."""
    client = OpenAI(base_url=server, api_key="demo")

    def some() -> None:
        chunks = client.chat.completions.create(**_request(key))
        for number, _ in enumerate(chunks):
            if number == ENOUGH:
                return

    some()
    client.close()


def drop_async(server: str, key: str) -> None:
    """Leave the loop over an async generator and drop the generator without closing it."""

    async def texts(client: AsyncOpenAI) -> AsyncIterator[Any]:
        async for chunk in await client.chat.completions.create(**_request(key)):
            yield chunk

    async def run() -> None:
        client = AsyncOpenAI(base_url=server, api_key="demo")
        number = 0
        async for _ in texts(client):
            number += 1
            if number == ENOUGH:
                break

    asyncio.run(run())


def timeout(server: str, key: str) -> None:
    """Read with a time-out of 0.6 s, which the stream's stall exceeds."""
    with OpenAI(base_url=server, api_key="demo", max_retries=0, timeout=Timeout(5, read=0.6)) as client:
        try:
            for _ in _announced(client.chat.completions.create(**_request(key))):
                pass
        except Exception as error:
            # In the middle of a stream the `openai` package passes on the error of its HTTP client unchanged.
            if "Timeout" not in type(error).__name__:
                raise
            return
    raise SystemExit("the stream did not time out; a time-out after 0.6 s was expected")


def slow(server: str, key: str) -> None:
    """Read to the end and sleep 0.5 s after each of the first eleven chunks."""
    with OpenAI(base_url=server, api_key="demo") as client:
        for number, _ in enumerate(client.chat.completions.create(**_request(key))):
            if number <= ENOUGH:
                time.sleep(0.5)


def busy(server: str, key: str) -> None:
    """Read to the end on an event loop that another callback blocks once, for 1 s."""

    async def run() -> None:
        async with AsyncOpenAI(base_url=server, api_key="demo") as client:
            number = 0
            async for _ in await client.chat.completions.create(**_request(key)):
                number += 1
                if number == ENOUGH:
                    asyncio.get_running_loop().call_soon(time.sleep, 1.0)

    asyncio.run(run())


def main() -> None:
    """Read one stream in the way that the first argument names."""
    way, server, otlp, key = sys.argv[1:]
    legato.configure(endpoint=otlp, service_name=f"app-{way}")
    legato.instrument_openai()
    ways = {
        "complete": complete,
        "close": close,
        "cancel": cancel,
        "drop": drop,
        "drop_async": drop_async,
        "timeout": timeout,
        "killed": complete,
        "slow": slow,
        "busy": busy,
    }
    ways[way](f"{server}/v1", key)
    legato.flush()


if __name__ == "__main__":
    main()
