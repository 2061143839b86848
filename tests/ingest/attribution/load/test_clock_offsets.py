"""Offsets between clocks as they are loaded: from the last content of each stream, however it is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.builders.spans import native_span, request
from helpers.builders.world import MS, World
from helpers.builders.world_spans import put, response_id, steps, stream
from legato._timeline import pack
from legato_ingest.attribution.load.clock_offsets import RecordedEnds, clock_offsets
from legato_ingest.storage import Store

SKEW_NS = 40 * 1_000 * MS
WORLD = World(offset_ns=SKEW_NS)
KEY = ("", "e")
ENDED_NS = int(WORLD.ends[-1])


def ends() -> RecordedEnds:
    """Return the ends of the world's requests by the engine's clock."""
    recorded = {response_id(number): int(WORLD.server(number).times_ns[-1]) + SKEW_NS for number in range(4)}
    low, high = int(WORLD.ends[0]), ENDED_NS
    return RecordedEnds(recorded, (low + SKEW_NS - 10**11, high + SKEW_NS + 10**11), (low, high))


@pytest.mark.parametrize("without", ["", "ttft_us = NULL", "ttfo_us = NULL", "ttft_us = NULL, ttfo_us = NULL"])
def test_the_offset_is_that_of_the_last_content(store: Store, without: str) -> None:
    """From the first content and the gaps after it, or from the times of all chunks where the first content is unknown."""
    put(store, steps(WORLD, 4), ENDED_NS + SKEW_NS)
    for number in range(4):
        for vantage in ("server", "client"):
            put(store, stream(WORLD, vantage, number), ENDED_NS)
    if without:
        store.command(f"ALTER TABLE stream_revs UPDATE {without} WHERE 1 SETTINGS mutations_sync = 1")
    offsets = clock_offsets(store, {KEY: ends(), ("", "another"): ends(), ("other", "e"): ends()})
    own = offsets[KEY]
    assert own.server is not None and abs(own.server[0] - SKEW_NS) < 2_000 and own.server[1] is None
    assert len(own.clients) == 1 and abs(next(iter(own.clients.values())) - SKEW_NS) < 60 * MS
    # The requests of an engine are those that this engine finished.
    assert offsets["", "another"].server == own.server
    assert offsets["other", "e"].server is None and not offsets["other", "e"].clients


@pytest.mark.parametrize(
    ("times_ms", "outcome", "open_ms"),
    [
        ([3 * number for number in range(300)], "complete", 0),
        ([at for number in range(100) for at in (20 * number, 20 * number + 1)], "complete", 0),
        ([20 * number for number in range(100)], "client_cancel", 5_000),
        ([20 * number for number in range(100)], "complete", 5_000),
        ([0], "complete", 0),
    ],
    ids=["3 ms a chunk", "in pairs", "left after a silence", "ended after a silence", "one chunk"],
)
def test_the_last_content_is_exact(store: Store, times_ms: list[int], outcome: str, open_ms: int) -> None:
    """Also where contents are nearer to each other than gaps are counted, and where the stream goes on without content."""
    put(store, steps(WORLD, 4), ENDED_NS + SKEW_NS)
    start_ns = ENDED_NS // 1000 * 1000 - 10**10
    attributes = {
        "legato.stream.vantage": "server",
        "legato.stream.outcome": outcome,
        "legato.stream.timeline": pack([1_000 * at + 400_000 for at in times_ms], None, None, [1] * len(times_ms)),
        "gen_ai.response.id": response_id(0),
        "legato.engine.id": "e",
    }
    body = request()
    native_span(body, attributes, start_ns=start_ns, duration_ns=(400 + times_ms[-1] + open_ms + 1) * MS)
    put(store, body, ENDED_NS)
    last_ns = start_ns + (400 + times_ms[-1]) * MS
    own = replace(ends(), recorded_ns={response_id(0): last_ns + SKEW_NS})
    assert clock_offsets(store, {KEY: own})[KEY].server == (SKEW_NS, None)


def test_a_stream_without_times_gives_no_offset(store: Store) -> None:
    """A summary with a number of chunks says nothing about the time of the last one."""
    put(store, steps(WORLD, 4), ENDED_NS + SKEW_NS)
    put(store, stream(WORLD, "server"), ENDED_NS)
    store.command("ALTER TABLE stream_revs UPDATE dt_us = [], chunk_kind = [], gap_sum_us = NULL WHERE 1 SETTINGS mutations_sync = 1")
    assert clock_offsets(store, {KEY: ends()})[KEY].server is None


def test_an_engine_without_requests_has_no_offsets(store: Store) -> None:
    """Nothing is read for it."""
    none = clock_offsets(store, {KEY: RecordedEnds({}, (0, 1), (0, 1))})
    assert none[KEY].server is None and not none[KEY].clients


def test_the_nearest_requests_are_used() -> None:
    """Of more requests than are needed, those in the middle."""
    many = RecordedEnds({f"r{number}": number * MS for number in range(2_000)}, (0, 1), (0, 1))
    nearest = many.nearest()
    assert len(nearest) == 512 and min(nearest.values()) >= 740 * MS and max(nearest.values()) <= 1_260 * MS
