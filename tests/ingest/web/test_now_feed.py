"""Tests of the events of what runs now: one query for all browsers, an end for each of them, and no event without permission."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from legato_ingest.errors import BadRequest, Denied, StoreError
from legato_ingest.web.now_feed import NowFeed

ROWS = {"in_flight": [{"service": "a", "in_flight": 2}], "stalled": [], "engines": []}


class CountedReads:
    """Answers the three queries of Now from constant rows, and counts how often they are asked for."""

    def __init__(self) -> None:
        self.views, self.error = 0, ""

    async def view(self, work: Callable[..., Any], tenant: str) -> Any:
        """Run the work as `Reads.view` does."""
        self.views += 1
        await asyncio.sleep(0)
        if self.error:
            raise StoreError(self.error)
        return work(lambda sql, values: ROWS["in_flight"] if "streams_in_flight" in sql else [])


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event every 10 ms."""
    monkeypatch.setattr("legato_ingest.web.now_feed._EVERY_S", 0.01)


def parsed(event: bytes) -> tuple[str, Any]:
    """The name and the data of an event."""
    name, data = event.decode().rstrip("\n").split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_all_browsers_share_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty browsers of one tenant cost one query; a second tenant has its own."""
    # The busiest machine asks all of them within a minute.
    monkeypatch.setattr("legato_ingest.web.now_feed._EVERY_S", 60.0)
    reads = CountedReads()

    async def watch() -> list[bytes]:
        feed = NowFeed(reads, lambda: False)  # type: ignore[arg-type]
        watching = [feed.events(lambda tenant=f"t{number % 2}": tenant) for number in range(20)]  # type: ignore[misc]
        return await asyncio.gather(*(anext(events) for events in watching))

    found = asyncio.run(watch())
    assert reads.views == 2 and len(set(found)) == 1
    assert parsed(found[0]) == ("now", {**ROWS, "stalled_streams": 0})


def test_a_long_list_of_stalled_streams_is_cut_by_the_query() -> None:
    """At most 200 rows are read, and the number of all stalled streams then comes from a query of its count."""
    stalled = [{"trace": f"{number:032x}"} for number in range(200)]
    limits: list[Any] = []

    def run(sql: str, values: dict[str, Any]) -> list[dict[str, Any]]:
        limits.extend([values["rows"]] if "rows" in values else [])
        return stalled if "rows" in values else [{"streams": 54_321}] if "uniqExact" in sql else []

    class Reads:
        async def view(self, work: Callable[..., Any], tenant: str) -> Any:
            return work(run)

    async def first() -> bytes:
        return await anext(NowFeed(Reads(), lambda: False).events(lambda: "t"))  # type: ignore[arg-type]

    _, found = parsed(asyncio.run(first()))
    assert (limits, found["stalled_streams"], len(found["stalled"])) == ([200], 54_321, 200)


def test_an_unchanged_state_is_sent_once() -> None:
    """Then only a comment keeps the connection, after the silence that is allowed; the stream ends when the server stops."""
    stopping = asyncio.Event()

    async def watch() -> list[bytes]:
        feed = NowFeed(CountedReads(), stopping.is_set)  # type: ignore[arg-type]
        asyncio.get_running_loop().call_later(0.2, stopping.set)
        return [event async for event in feed.events(lambda: "t")]

    assert len(asyncio.run(watch())) == 1


def test_removed_credentials_end_the_events() -> None:
    """The credentials are checked at each event: the last one says why there are no more."""
    checks = iter(range(3))

    def tenant_of() -> str:
        if next(checks) == 2:
            raise Denied("the token was removed")
        return "t"

    async def watch() -> list[bytes]:
        return [event async for event in NowFeed(CountedReads(), lambda: False).events(tenant_of)]  # type: ignore[arg-type]

    found = asyncio.run(watch())
    assert [parsed(event)[0] for event in found] == ["now", "denied"] and "removed" in parsed(found[-1])[1]["error"]


def test_a_failing_store_is_an_event_and_the_next_one_is_data_again() -> None:
    """A store that restarts interrupts the events, and does not end them."""
    reads = CountedReads()

    async def watch() -> list[str]:
        events = NowFeed(reads, lambda: False).events(lambda: "t")  # type: ignore[arg-type]
        names = [parsed(await anext(events))[0]]
        reads.error = "Code: 210. Connection refused"
        names.append(parsed(await anext(events))[0])
        reads.error = ""
        return [*names, parsed(await anext(events))[0]]

    assert asyncio.run(watch()) == ["now", "failed", "now"]


def test_too_many_browsers_are_refused() -> None:
    """The number of connections is bounded; one that leaves makes room."""

    async def watch() -> None:
        feed = NowFeed(CountedReads(), lambda: False)  # type: ignore[arg-type]
        watching = [feed.events(lambda: "t") for _ in range(64)]
        await asyncio.gather(*(anext(events) for events in watching))
        with pytest.raises(BadRequest, match="64 browsers"):
            feed.events(lambda: "t")
        await watching[0].aclose()  # type: ignore[attr-defined]
        feed.events(lambda: "t")

    asyncio.run(watch())
