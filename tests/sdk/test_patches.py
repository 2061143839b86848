"""Other tools replace the methods that Legato replaces: neither removes the other's, in whichever order they come and go."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import httpx
import pytest
import requests
from openai._base_client import AsyncAPIClient, SyncAPIClient
from opentelemetry.sdk.trace import ReadableSpan

import legato
from helpers.servers.formats import formats_app
from helpers.servers.serving import served
from legato._patches import Patch, Patches

Spans = Callable[[], list[ReadableSpan]]
ASKED: dict[str, Any] = {"model": "asked", "stream": True}


def other_tool(below: Callable[..., Any]) -> Callable[..., Any]:
    """Return what another tool puts in place of a method."""

    @functools.wraps(below)
    def replaced(*given: Any, **named: Any) -> Any:
        return below(*given, **named)

    return replaced


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Restore the methods after the test, with Legato not installed."""
    yield monkeypatch
    monkeypatch.undo()
    legato.uninstrument()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (requests.Session, "send"),
        (httpx.Client, "send"),
        (httpx.AsyncClient, "send"),
        (aiohttp.ClientSession, "_request"),
        (SyncAPIClient, "request"),
        (AsyncAPIClient, "request"),
    ],
)
def test_a_later_replacement_stays(restored: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Undoing and installing again leaves it in place, and adds no second layer."""
    before = vars(owner)[name]
    legato.instrument()
    own = vars(owner)[name]
    other = other_tool(own)
    restored.setattr(owner, name, other)
    legato.uninstrument()
    assert vars(owner)[name] is other
    legato.instrument()
    assert vars(owner)[name] is other
    restored.undo()
    assert vars(owner)[name] is own
    legato.uninstrument()
    assert vars(owner)[name] is before


def with_requests(url: str) -> None:
    """Ask for a stream with requests."""
    list(requests.post(url, json=ASKED, stream=True, timeout=60).iter_content(None))


def with_httpx(url: str) -> None:
    """Ask with httpx."""
    with httpx.stream("POST", url, json=ASKED, timeout=60) as response:
        response.read()


def with_async_httpx(url: str) -> None:
    """Ask with httpx in an event loop."""

    async def run() -> None:
        async with httpx.AsyncClient(timeout=60) as client, client.stream("POST", url, json=ASKED) as response:
            await response.aread()

    asyncio.run(run())


def with_aiohttp(url: str) -> None:
    """Ask with aiohttp."""

    async def run() -> None:
        async with aiohttp.ClientSession() as session, session.post(url, json=ASKED) as response:
            await response.read()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("owner", "name", "ask"),
    [
        (requests.Session, "send", with_requests),
        (httpx.Client, "send", with_httpx),
        (httpx.AsyncClient, "send", with_async_httpx),
        (aiohttp.ClientSession, "_request", with_aiohttp),
    ],
)
def test_below_another_tool_it_is_switched_off_and_on(
    restored: pytest.MonkeyPatch, spans: Spans, owner: Any, name: str, ask: Callable[[str], None]
) -> None:
    """Without the instrumentation there is no row, and with it again there is one."""
    legato.instrument()
    restored.setattr(owner, name, other_tool(vars(owner)[name]))
    with served(formats_app()) as base:
        for undo, rows in ((legato.uninstrument, 0), (legato.instrument, 1)):
            undo()
            ask(f"{base}/anthropic")
            assert len(spans()) == rows


class Base:
    """A class of a library."""

    def call(self) -> str:
        """Return the result of the library."""
        return "library"


class Inherits(Base):
    """A class that has the method from another."""


def make(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    """Return a replacement that shows whether it is on."""

    @functools.wraps(original)
    def call(self: Any) -> str:
        return f"recorded {original(self)}" if patch.is_on else str(original(self))

    return call


def test_a_replacement_that_another_tool_removed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that was there first restores what it had found; then Legato's is not below any more."""
    patches, found = Patches("call"), Base.call
    patches.install(Base, make)
    monkeypatch.setattr(Base, "call", other_tool(Base.call))
    patches.undo()
    assert Base().call() == "library" and not patches.is_on(Base)
    monkeypatch.setattr(Base, "call", other_tool(found))
    patches.install(Base, make)
    patches.install(Base, make)
    assert Base().call() == "recorded library" and patches.is_on(Base)
    patches.undo()
    assert Base().call() == "library"


def test_an_inherited_method_is_inherited_again() -> None:
    """What a class did not have itself is removed, so later changes of the class above reach it."""
    patches = Patches("call")
    patches.install(Inherits, make)
    assert Inherits().call() == "recorded library" and Base().call() == "library"
    patches.undo()
    assert "call" not in vars(Inherits)
