"""An application that streams one response with each client library: `client_versions_application.py SERVER OTLP CLIENT …`.

It runs with old and with new releases (`test_client_versions.py`). Libraries are imported after `legato.instrument()`. It prints the
versions.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.metadata
import json
import os
import sys
from typing import Any

import legato

MESSAGES: list[Any] = [{"role": "user", "content": "Count."}]
CHAT: dict[str, Any] = {"messages": MESSAGES, "stream": True}
# Old releases have no argument for this option.
USAGE: dict[str, Any] = {"extra_body": {"stream_options": {"include_usage": True}}}


def library(name: str) -> Any:
    """Import a library; its types are those of one release."""
    return importlib.import_module(name)


def openai(server: str) -> None:
    """Chat completions."""
    openai = library("openai")

    list(openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0).chat.completions.create(model="openai", **USAGE, **CHAT))


def openai_async(server: str) -> None:
    """Chat completions in an event loop."""
    openai = library("openai")

    async def read() -> None:
        client = openai.AsyncOpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0)
        async for _ in await client.chat.completions.create(model="openai_async", **USAGE, **CHAT):
            pass

    asyncio.run(read())


def anthropic(server: str) -> None:
    """Messages; in releases before they existed, under `beta`."""
    anthropic = library("anthropic")

    client = anthropic.Anthropic(base_url=server, api_key="none", max_retries=0)
    messages = client.messages if hasattr(client, "messages") else client.beta.messages
    list(messages.create(model="anthropic", max_tokens=9, **CHAT))


def httpx(server: str) -> None:
    """A request by hand."""
    httpx = library("httpx")

    with httpx.stream("POST", f"{server}/v1/messages", json={"model": "httpx", **CHAT}) as response:
        list(response.iter_lines())


def aiohttp(server: str) -> None:
    """A request by hand."""
    aiohttp = library("aiohttp")

    async def read() -> None:
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{server}/v1/chat/completions", json={"model": "aiohttp", **CHAT}) as response:
                async for _ in response.content:
                    pass

    asyncio.run(read())


def requests(server: str) -> None:
    """A request by hand."""
    requests = library("requests")

    with requests.post(f"{server}/v1/chat/completions", json={"model": "requests", **CHAT}, stream=True, timeout=30) as response:
        list(response.iter_lines(chunk_size=None))


def genai(server: str) -> None:
    """Gemini."""
    genai = library("google.genai")

    client = genai.Client(api_key="none", http_options={"base_url": server})
    list(client.models.generate_content_stream(model="genai", contents="Count."))


def ollama(server: str) -> None:
    """Chat."""
    ollama = library("ollama")

    list(ollama.Client(host=server).chat(model="ollama", messages=MESSAGES, stream=True))


def litellm(server: str) -> None:
    """Chat completions of a server that speaks OpenAI's protocol."""
    litellm = library("litellm")

    litellm.telemetry = False
    list(litellm.completion(model="openai/litellm", api_base=f"{server}/v1", api_key="none", num_retries=0, **CHAT))


DISTRIBUTIONS = ("openai", "anthropic", "httpx", "aiohttp", "requests", "google-genai", "ollama", "litellm")


def main() -> None:
    """Stream with each client; a failure of one is printed and does not keep the others."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    server, otlp, *clients = sys.argv[1:]
    legato.configure(otlp)
    legato.instrument()
    failed = {}
    for name in clients:
        try:
            globals()[name](server)
        except Exception as error:
            failed[name] = repr(error)
    assert legato.flush()
    versions = {}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    print(json.dumps({"failed": failed, "versions": versions, "faults": legato.stats()["faults"]}))


if __name__ == "__main__":
    main()
