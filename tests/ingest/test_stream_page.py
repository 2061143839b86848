"""The page of one stream: its vantages, its stalls, and how it is found."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from helpers.serving import served
from helpers.spans import SECOND_NS, native_span, request
from legato._timeline import pack
from legato_ingest import read, stream_page
from legato_ingest.errors import LegatoError
from legato_ingest.metrics import Metrics
from legato_ingest.reader import Reader
from legato_ingest.rows import Limits, rows_of
from legato_ingest.settings import load
from legato_ingest.store import Store

TRACE = bytes.fromhex("4bf92f3577b34da6a3ce929d0e0e4736")


@pytest.fixture(scope="module")
def url(shared_store: Store) -> Iterator[str]:
    """The read door."""
    with served(read.create_app(load(), shared_store, Metrics())) as address:
        yield address


@pytest.fixture
def reader(store: Store, url: str) -> Iterator[Reader]:
    """A reader of the emptied store."""
    with Reader(url) as made:
        yield made


def put(store: Store, *spans: dict[str, Any], scope: dict[str, Any] | None = None, **more: Any) -> None:
    """Native spans into the store, each with its attributes; ``trace_id`` and the like are for all."""
    body = request(None, {"legato.emitter": "legato-python/0.1.0", **(scope or {})})
    for attributes in spans:
        native_span(body, attributes, **more)
    store.insert("stream_revs", rows_of(body, tenant="", received_at_ns=time.time_ns(), limits=Limits()).revs)


def page_of(rows: list[dict[str, Any]], width: int = 100) -> str:
    """What a terminal shows."""
    console = Console(width=width)
    with console.capture() as captured:
        console.print(stream_page.render(rows))
    return captured.get()


def test_vantages_are_found_by_any_id_and_lie_under_each_other(store: Store, reader: Reader) -> None:
    """By the trace, its beginning, a span, or the response; the client above the server."""
    for vantage, span in (("server", b"s" * 8), ("client", b"c" * 8)):
        put(
            store,
            {"legato.stream.vantage": vantage, "gen_ai.response.id": "chatcmpl-x"},
            trace_id=TRACE,
            span_id=span,
            start_ns=time.time_ns() - SECOND_NS,
        )
    put(store, {"gen_ai.response.id": "other"})
    for wanted in (
        TRACE.hex(),
        TRACE.hex().upper(),
        TRACE.hex()[:8],
        (b"s" * 8).hex(),
        (b"c" * 8).hex()[:10],
        "chatcmpl-x",
        " chatcmpl-x ",
    ):
        rows = stream_page.find(reader, wanted)
        assert sorted(row["vantage"] for row in rows) == ["client", "server"], wanted
        assert {row["trace"] for row in rows} == {TRACE.hex()}


def test_traces_apart_are_joined_by_the_response(store: Store, reader: Reader) -> None:
    """Vantages that share no trace still lie under each other."""
    put(store, {"legato.stream.vantage": "server", "gen_ai.response.id": "joined"})
    put(store, {"legato.stream.vantage": "client", "gen_ai.response.id": "joined"})
    assert {row["vantage"] for row in stream_page.find(reader, "joined")} == {"client", "server"}


_EMPTY_ID = pytest.mark.xfail(strict=True, reason="FIND: response_id = '' holds for every stream whose response id nobody knows")


@pytest.mark.parametrize(
    "wanted", ["nosuch", "00", "ffffffffffffffff", pytest.param("", marks=_EMPTY_ID), "%", "zzzzzzzz", "{a:String}", "4bf92f3"]
)
def test_what_is_not_there_is_said(store: Store, reader: Reader, wanted: str) -> None:
    """With what to do; too few digits find nothing, nor does the empty id find a stream without a response id."""
    put(store, {}, trace_id=TRACE, drop=["gen_ai.response.id"])
    with pytest.raises(LegatoError, match="no stream has the trace"):
        stream_page.find(reader, wanted)


def test_an_ambiguous_beginning_is_refused(store: Store, reader: Reader) -> None:
    """Two traces with the same beginning: the longer ones are named."""
    for i in (1, 2):
        put(store, {"gen_ai.response.id": f"r{i}"}, trace_id=TRACE[:15] + bytes([i]))
    with pytest.raises(LegatoError, match="beginning of 2 traces"):
        stream_page.find(reader, TRACE.hex()[:12])
    assert len(stream_page.find(reader, (TRACE[:15] + b"\x01").hex())) == 1


@pytest.mark.xfail(
    strict=True, reason="find(): two traces are only told apart when both have a response id; else the first is shown as if meant"
)
def test_an_ambiguous_beginning_without_response_ids_is_refused(store: Store, reader: Reader) -> None:
    """Streams whose response id nobody knows are as different as others."""
    for i in (1, 2):
        put(store, {}, trace_id=TRACE[:15] + bytes([i]), drop=["gen_ai.response.id"])
    with pytest.raises(LegatoError, match="beginning of 2 traces"):
        stream_page.find(reader, TRACE.hex()[:12])


def test_stalls_are_told_with_what_came_after(store: Store, reader: Reader) -> None:
    """Where, how long, how many chunks and bytes ended it, the hold; and the open gap."""
    times = [100_000, 200_000, 700_000, 700_000, 750_000, 1_000_000]
    timeline = pack(times, [3, 4, 5, 6, 7, 8], None, [1, 1, 1, 1, 5, 1])
    put(store, {"legato.stream.timeline": timeline, "legato.stream.outcome": "client_cancel"}, trace_id=TRACE, duration_ns=2 * SECOND_NS)
    (row,) = stream_page.find(reader, TRACE.hex())
    stalls = stream_page.stalls_of(row)
    told = [(stall["at_us"], stall["gap_us"], stall["chunks_after"], stall["bytes_after"], stall["open"]) for stall in stalls]
    assert told == [(200_000, 500_000, 2, 11, False), (700_000, 300_000, 1, 8, False), (1_000_000, 1_000_000, 0, 0, True)]
    assert len(stalls) == row["stalls_250ms"]
    page = page_of([row])
    assert "500 ms" in page and "the end" in page and "client_cancel" in page


def test_a_page_without_gaps_or_chunks_is_whole(store: Store, reader: Reader) -> None:
    """A summary alone, and a stream in which nothing came, have pages too; what nobody knows is a dash."""
    put(store, {}, trace_id=TRACE, span_id=b"a" * 8, drop=["legato.stream.timeline"])
    put(store, {"legato.stream.timeline": pack([]), "legato.stream.outcome": "timeout"}, trace_id=TRACE, span_id=b"b" * 8, duration_ns=0)
    rows = stream_page.find(reader, TRACE.hex())
    assert len(rows) == 2
    assert "–" in page_of(rows) and all(stream_page.stalls_of(row) == [] for row in rows)


def test_clocks_decide_about_the_axis(store: Store, reader: Reader) -> None:
    """Vantages of one clock share an axis; of others each begins at its own start, and the page says so."""
    now = time.time_ns() - 60 * SECOND_NS
    for name, clocks in (("one", ("boot:1:5", "boot:1:9")), ("two", ("boot:1:5", "other:1:5")), ("none", ("", ""))):
        for i, (vantage, clock) in enumerate(zip(("client", "server"), clocks, strict=True)):
            attributes = {"legato.stream.vantage": vantage, "gen_ai.response.id": name}
            put(store, attributes, scope={"legato.stream.clock": clock} if clock else None, start_ns=now + i * SECOND_NS)
    pages = {name: page_of(stream_page.find(reader, name)) for name in ("one", "two", "none")}
    assert "one clock" in pages["one"] and "clocks apart" in pages["two"] and "clocks apart" in pages["none"]
    assert all(len(line) <= 100 for page in pages.values() for line in page.splitlines())
