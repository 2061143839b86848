"""Streams as evidence: which have a stall to judge, and which keep a verdict that later evidence withdraws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.builders.judging import RECEIVED_NS, verdicts, worker
from helpers.builders.rollup_rows import snapshot
from helpers.builders.spans import native_span, request
from helpers.builders.world import MS, World
from helpers.builders.world_spans import put, steps, stream, trace_id
from legato._timeline import pack
from legato_ingest.attribution.load.due import Due
from legato_ingest.attribution.load.streams import Most, slices_of, streams_in
from legato_ingest.columns import NS_MAX
from legato_ingest.storage import Store

GAP_US = 250_000


def test_a_stall_that_proves_healthy_is_withdrawn(store: Store) -> None:
    """Without the engine a gap is generation. The engine's record shows a large batch and a duration that is usual for it: ``base``."""
    world = World(busy={n: 60 for n in range(50, 400, 25)})
    for vantage in ("client", "server"):
        put(store, stream(world, vantage), RECEIVED_NS)
    judge = worker(store)
    judge.step()
    assert [row[0] for row in verdicts(store)] == ["generation"] * 14
    put(store, steps(world), RECEIVED_NS)
    judge.again(0)
    assert [row[0] for row in verdicts(store)] == ["base"] * 14


ALL = Due(0, NS_MAX)


def put_tenants(store: Store, count: int) -> None:
    """Store the same for so many tenants: a client on a path that was held, its server without a long gap, and the steps of the engine."""
    world = World(held=(200, 700 * MS))
    for number in range(count):
        for part in (stream(world, "client"), stream(world, "server"), steps(world)):
            put(store, part, RECEIVED_NS, f"tenant-{number}")


def test_a_bound_on_memory_changes_no_verdict(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One second with more than may be in memory at once is judged in parts: by a hash of the ids, and by the chunks of the servers."""
    put_tenants(store, 9)
    columns = "tenant, cause, confidence, parts, missing, evidence, gap_start_us, excess_us"
    judge = worker(store)
    judge.step()
    whole = store.select(f"SELECT {columns} FROM verdicts FINAL ORDER BY tenant")
    assert len(whole) == 9 and {row[1] for row in whole} == {"connection"}
    store.command("TRUNCATE TABLE verdicts")
    small = Most(streams=4, bytes=1)
    monkeypatch.setattr("legato_ingest.attribution.run._MOST", small)
    assert judge.again(0)["streams"] == 9
    assert store.select(f"SELECT {columns} FROM verdicts FINAL ORDER BY tenant") == whole
    slices = slices_of(store, ALL, GAP_US, small)
    pieces = [piece for each in slices for piece in streams_in(store, each, GAP_US, small)]
    assert [len(piece) for piece in pieces] == [1] * 9 and all(piece[0].server is not None for piece in pieces)
    assert len(slices) == 9, "no more slices than streams"
    assert len(slices_of(store, ALL, GAP_US, Most(streams=3, bytes=2**29))) == 3
    assert len(slices_of(store, ALL, GAP_US, Most(streams=9, bytes=2**29))) == 1


def test_streams_of_very_many_stalls_are_bounded_by_bytes(store: Store) -> None:
    """Eight streams of 20,000 gaps of 300 ms: 17 MB of chunks, and 16 MB of verdicts on the 1,024 longest of each."""
    body = request()
    for number in range(8):
        times = np.cumsum(np.full(20_000, 300_000)).tolist()
        timeline = {"legato.stream.vantage": "client", "legato.stream.timeline": pack(times, None, None, [1] * len(times))}
        native_span(body, timeline, trace_id=trace_id(number), start_ns=RECEIVED_NS, duration_ns=(times[-1] + 1) * 1000)
    put(store, body, RECEIVED_NS)
    most = Most(streams=4_000, bytes=9_000_000)
    slices = slices_of(store, ALL, GAP_US, most)
    assert len(slices) == 4
    assert sum(len(piece) for each in slices for piece in streams_in(store, each, GAP_US, most)) == 8


def test_streams_with_the_same_ids_are_divided_and_those_of_other_tenants_are_not(store: Store) -> None:
    """A sender may give all its streams one trace and one span, a nanosecond apart."""
    times = [300_000 * number for number in range(1, 4)]
    timeline = {"legato.stream.vantage": "client", "legato.stream.timeline": pack(times, None, None, [1] * 3)}
    for tenant, count in (("hostile", 400), ("a", 3), ("b", 3)):
        body = request()
        for number in range(count):
            start_ns = RECEIVED_NS // 10**9 * 10**9 + number
            native_span(body, timeline, trace_id=trace_id(0), span_id=b"same one", start_ns=start_ns, duration_ns=10**9)
        put(store, body, RECEIVED_NS, tenant)
    most = Most(streams=50, bytes=2**29)
    pieces = [piece for each in slices_of(store, ALL, GAP_US, most) for piece in streams_in(store, each, GAP_US, most)]
    hostile = [piece for piece in pieces if piece[0].tenant == "hostile"]
    assert sum(map(len, hostile)) == 400 and len(hostile) == 8 and max(map(len, hostile)) < 90
    assert [sorted(stream.tenant for stream in piece) for piece in pieces if piece not in hostile] == [["a"] * 3 + ["b"] * 3]


@pytest.mark.parametrize(
    ("attributes", "is_cut"),
    [
        ({"legato.stream.outcome": "complete"}, False),
        ({"legato.stream.outcome": "client_cancel"}, True),
        ({"legato.stream.outcome": "timeout"}, True),
        ({"legato.stream.outcome": "complete", "legato.stream.chunks_dropped": 9}, True),
        (snapshot(30.0, b"snapshot"), True),
    ],
)
def test_a_client_that_saw_the_end_with_fewer_chunks_is_not_compared_by_index(
    store: Store, attributes: dict[str, Any], is_cut: bool
) -> None:
    """Sizes are unknown. If the client's record lacks the stream's end, its chunks are the server's first ones, else some were merged."""
    for vantage, count in (("client", 30), ("server", 40)):
        body, times = request(), [20_000 * number + 400_000 * (number >= 20) for number in range(1, count + 1)]
        chunks: dict[str, Any] = {"legato.stream.vantage": vantage, "legato.stream.timeline": pack(times, None, None, [1] * count)}
        ids: dict[str, Any] = {"name": "legato.stream.snapshot"} if "legato.stream.rev" in attributes and vantage == "client" else {}
        chunks |= {"gen_ai.response.id": "r"} | (attributes if vantage == "client" else {})
        native_span(body, chunks, trace_id=trace_id(0), start_ns=RECEIVED_NS, **ids)
        put(store, body, RECEIVED_NS)
    worker(store).step()
    ((cause, _, missing, _),) = verdicts(store)
    assert (cause, "server" in missing) == ("generation", not is_cut)
    ((client,),) = streams_in(store, ALL, GAP_US, Most(streams=9, bytes=2**29))
    assert client.judged.is_cut == is_cut and client.server is not None and not client.server.is_cut
