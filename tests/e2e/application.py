"""An application that reads one stream of the demo's server in one way, as a process of its own: `application.py WAY SERVER OTLP KEY`.

One idea: each way is how real applications end a stream. What matters is how it ends, so nothing is done after the end but what the
interpreter and `legato.flush()` do. It prints a line when it has read its tenth chunk.
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


def _told(chunks: Iterator[Any]) -> Iterator[Any]:
    for number, chunk in enumerate(chunks):
        if number == ENOUGH:
            print("reading", flush=True)
        yield chunk


def complete(server: str, key: str) -> None:
    """Read to the end."""
    with OpenAI(base_url=server, api_key="demo") as client:
        for _ in _told(client.chat.completions.create(**_request(key))):
            pass


def close(server: str, key: str) -> None:
    """Leave the loop half-way and close the stream, as `with` does."""
    with OpenAI(base_url=server, api_key="demo") as client, client.chat.completions.create(**_request(key)) as chunks:
        for number, _ in enumerate(_told(chunks)):
            if number == ENOUGH:
                break


def cancel(server: str, key: str) -> None:
    """Cancel the task that reads, half-way."""

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
    """Leave the loop half-way and let go of the stream: nobody closes it."""
    client = OpenAI(base_url=server, api_key="demo")

    def some() -> None:
        chunks = client.chat.completions.create(**_request(key))
        for number, _ in enumerate(chunks):
            if number == ENOUGH:
                return

    some()
    client.close()


def drop_async(server: str, key: str) -> None:
    """The same of an async generator, half-way through."""

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
    """Have a read time-out that the stream's stall exceeds."""
    with OpenAI(base_url=server, api_key="demo", max_retries=0, timeout=Timeout(5, read=0.6)) as client:
        try:
            for _ in _told(client.chat.completions.create(**_request(key))):
                pass
        except Exception as error:
            # In mid-stream the `openai` package lets its HTTP client's own error through.
            if "Timeout" not in type(error).__name__:
                raise
            return
    raise SystemExit("the stream was to time out, and did not")


def slow(server: str, key: str) -> None:
    """Read to the end, and sleep half a second after each of the first chunks."""
    with OpenAI(base_url=server, api_key="demo") as client:
        for number, _ in enumerate(client.chat.completions.create(**_request(key))):
            if number <= ENOUGH:
                time.sleep(0.5)


def busy(server: str, key: str) -> None:
    """Read to the end on an event loop that something else keeps busy, once, for a second."""

    async def run() -> None:
        async with AsyncOpenAI(base_url=server, api_key="demo") as client:
            number = 0
            async for _ in await client.chat.completions.create(**_request(key)):
                number += 1
                if number == ENOUGH:
                    asyncio.get_running_loop().call_soon(time.sleep, 1.0)

    asyncio.run(run())


def main() -> None:
    """Read one stream in the way that is asked for."""
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
