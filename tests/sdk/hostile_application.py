"""An application that reads one response of each case to its end: `hostile_application.py CLIENT URL recorded|bare CASE …`.

Each case is read in a forked child, which prints one JSON object: by how many MiB its resident memory grew at most, the class of the error
of the client, the bytes that it read, and of a recorded stream the outcome, the bytes, the number of chunks, and the counters of faults and
of folded streams. A bare application imports the same.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import legato

CHAT: dict[str, Any] = {"model": "m", "stream": True, "messages": []}
PATIENCE_S = 20


def library(name: str) -> Any:
    """Import a library. Each application has one."""
    return importlib.import_module(name)


def read_httpx(url: str) -> int:
    """The bytes as they arrive."""
    httpx = library("httpx")
    with httpx.stream("POST", f"{url}/chat/completions", json=CHAT, timeout=PATIENCE_S) as response:
        return sum(map(len, response.iter_raw()))


def read_httpx_async(url: str) -> int:
    """The same on an event loop."""
    httpx = library("httpx")

    async def read() -> int:
        async with (
            httpx.AsyncClient() as client,
            client.stream("POST", f"{url}/chat/completions", json=CHAT, timeout=PATIENCE_S) as response,
        ):
            count = 0
            async for data in response.aiter_raw():
                count += len(data)
            return count

    return asyncio.run(read())


def read_openai(url: str) -> int:
    """The raw response of the client, as it arrives: its events cannot all be parsed."""
    openai = library("openai")
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S) as client:
        with client.chat.completions.with_streaming_response.create(**CHAT) as response:
            return sum(map(len, response.http_response.iter_raw()))


def read_aiohttp(url: str) -> int:
    """The bytes as they arrive, decompressed."""
    aiohttp = library("aiohttp")

    async def read() -> int:
        async with aiohttp.ClientSession() as session, session.post(f"{url}/chat/completions", json=CHAT) as response:
            count = 0
            async for data in response.content.iter_any():
                count += len(data)
            return count

    return asyncio.run(read())


def read_requests(url: str) -> int:
    """Parts of a size, decompressed."""
    requests = library("requests")
    with requests.post(f"{url}/chat/completions", json=CHAT, stream=True, timeout=PATIENCE_S) as response:
        return sum(map(len, response.iter_content(4096)))


CLIENTS: dict[str, Callable[[str], int]] = {
    "httpx": read_httpx,
    "httpx_async": read_httpx_async,
    "openai": read_openai,
    "aiohttp": read_aiohttp,
    "requests": read_requests,
}


def peak_kib() -> int:
    """The largest resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def read_case(client: str, url: str, exporter: InMemorySpanExporter) -> dict[str, Any]:
    """Read the response and return what became of it."""
    exporter.clear()
    before, found = peak_kib(), dict[str, Any](bytes=0, error="", flushed=True)
    try:
        found["bytes"] = CLIENTS[client](url)
    except Exception as error:
        found["error"] = type(error).__name__
    found["flushed"] = legato.flush(60)
    spans = [dict(span.attributes or {}) for span in exporter.get_finished_spans() if span.name == "chat m"]
    names = ("outcome", "wire_bytes", "chunks")
    found["streams"] = [{name: attributes.get(f"legato.stream.{name}") for name in names} for attributes in spans]
    found["folded"] = legato.stats()["folded"]
    found["faults"] = legato.stats()["faults"]
    found["growth_mib"] = (peak_kib() - before) / 1024
    return found


def main() -> None:
    """Read all cases."""
    client, url, way, *cases = sys.argv[1:]
    logging.disable()
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    library(client.removesuffix("_async"))
    if way == "recorded":
        legato.instrument()
    with legato.stream(model="before"):
        pass
    legato.flush()
    for case in cases:
        child = os.fork()
        if not child:
            print(json.dumps(read_case(client, f"{url}/{case}", exporter)), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
