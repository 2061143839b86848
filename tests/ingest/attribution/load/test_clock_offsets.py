"""Offsets between clocks as they are loaded: from the chunk of the last step of each complete stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from helpers.builders.spans import native_span, request
from helpers.builders.world import MS, World
from helpers.builders.world_spans import put, response_id, steps, stream
from legato._timeline import Kind, pack
from legato_ingest.attribution.load import clock_offsets as module
from legato_ingest.attribution.load.clock_offsets import RecordedEnds, clock_offsets
from legato_ingest.attribution.load.streams import clock_of
from legato_ingest.storage import Store

SKEW_NS = 40 * 1_000 * MS
WORLD = World(offset_ns=SKEW_NS)
KEY = ("", "e")
CLOCK = clock_of("", "test", "")
ENDED_NS = int(WORLD.ends[-1])
ROLE, TEXT, USAGE, HEARTBEAT, DONE = (int(kind) for kind in (Kind.ROLE, Kind.TEXT, Kind.USAGE, Kind.HEARTBEAT, Kind.DONE))


def ends() -> RecordedEnds:
    """Return the ends of the world's requests by the engine's clock."""
    recorded = {response_id(number): int(WORLD.server(number).times_ns[-1]) + SKEW_NS for number in range(4)}
    low, high = int(WORLD.ends[0]), ENDED_NS
    return RecordedEnds(recorded, (low + SKEW_NS - 10**11, high + SKEW_NS + 10**11), (low, high), frozenset((CLOCK,)))


def test_the_offset_is_that_of_the_last_step(store: Store) -> None:
    """To the server and to the client, for the engine that finished the requests."""
    put(store, steps(WORLD, 4), ENDED_NS + SKEW_NS)
    for number in range(4):
        for vantage in ("server", "client"):
            put(store, stream(WORLD, vantage, number), ENDED_NS)
    offsets = clock_offsets(store, {KEY: ends(), ("", "another"): ends(), ("other", "e"): ends()})
    own = offsets[KEY]
    assert own.server is not None and abs(own.server[0] - SKEW_NS) < 2 * MS and own.server[1] is None
    assert len(own.clients) == 1 and abs(next(iter(own.clients.values())) - SKEW_NS) < 60 * MS
    # The requests of an engine are those that this engine finished.
    assert offsets["", "another"].server == own.server
    # Those of clients are needed only for streams without a server.
    (alone,) = clock_offsets(store, {KEY: replace(ends(), clients=frozenset())}).values()
    assert alone.server == own.server and not alone.clients
    assert offsets["other", "e"].server is None and not offsets["other", "e"].clients


TEXTS = [(20 * number, TEXT) for number in range(100)]
# What follows the last content, at 1,980 ms: the time in ms and the kind of each chunk. Then the time of the last step.
ENDINGS = [
    ([], 1_980, ""),
    # At the limit the last content has the finish reason. The usage and the end mark do not wait for a step, but for what the server
    # works between, or until a client that holds each chunk reads on.
    ([(1_992, DONE)], 1_980, "length"),
    ([(1_992, USAGE), (1_992, DONE)], 1_980, "length"),
    ([(1_992, USAGE), (1_992, DONE)], 1_980, ""),
    ([(1_985, HEARTBEAT), (1_990, USAGE)], 1_980, "stop"),
    ([(1_992, ROLE), (1_992, DONE), (1_992, DONE)], 1_980, "max_tokens"),
    # The end of the sequence is a token without text: the finish reason comes one step, here of 250 ms, after the last content.
    ([(2_230, DONE), (2_230, USAGE), (2_230, DONE)], 2_230, ""),
    ([(2_230, DONE), (2_230, USAGE), (2_242, DONE)], 2_230, "stop"),
    ([(2_230, DONE), (2_245, DONE)], 2_230, "tool_calls"),
    ([(2_230, DONE), (2_245, USAGE)], 2_230, "stop"),
    ([(2_000, HEARTBEAT), (2_230, ROLE), (2_242, DONE), (2_242, DONE)], 2_230, "end_turn"),
    ([(2_230, DONE)], 2_230, "stop"),
    # At the limit, but the last token completes no text.
    ([(2_230, DONE), (2_242, DONE)], 2_230, "length"),
]


@pytest.mark.parametrize("vantage", ["server", "client"])
def test_the_last_step_is_where_the_request_finished(store: Store, vantage: str) -> None:
    """Not the last content, which may be one step too early, nor the last byte, which may come after what the server does at the end."""
    put(store, steps(WORLD, len(ENDINGS)), ENDED_NS + SKEW_NS)
    found: list[object] = []
    for number, (after, last_ms, reason) in enumerate(ENDINGS):
        start_ns = _put(store, number, [*TEXTS, *after], vantage, {"gen_ai.response.finish_reasons": reason} if reason else {})
        own = replace(ends(), recorded_ns={response_id(number): start_ns + (400 + last_ms) * MS + SKEW_NS})
        offsets = clock_offsets(store, {KEY: own})[KEY]
        found += [offsets.server] if vantage == "server" else offsets.clients.values()
    assert found == ([(SKEW_NS, None)] if vantage == "server" else [SKEW_NS]) * len(ENDINGS)


def test_the_last_step_is_known_of_complete_streams(store: Store) -> None:
    """When the client left is no time of a step, and a timeline without its end does not have the last one."""
    put(store, steps(WORLD, 3), ENDED_NS + SKEW_NS)
    all_others: tuple[dict[str, str | int], ...] = ({}, {"legato.stream.outcome": "client_cancel"}, {"legato.stream.chunks_dropped": 3})
    for number, others in enumerate(all_others):
        start_ns = _put(store, number, [(1_980, TEXT)], "server", others)
        own = replace(ends(), recorded_ns={response_id(number): start_ns + 2_380 * MS + SKEW_NS})
        assert clock_offsets(store, {KEY: own})[KEY].server == (None if others else (SKEW_NS, None))


def _put(store: Store, number: int, chunks: list[tuple[int, int]], vantage: str, others: Mapping[str, str | int]) -> int:
    """Store a stream with these chunks, each at its time in ms after the first 400 ms, and return its start. It ends 19 ms later."""
    start_ns = ENDED_NS // 1000 * 1000 - 10**10
    attributes = {
        "legato.stream.vantage": vantage,
        "legato.stream.timeline": pack([1_000 * at + 400_000 for at, _ in chunks], None, None, [kind for _, kind in chunks]),
        "gen_ai.response.id": response_id(number),
        "legato.engine.id": "e",
        **others,
    }
    body = request()
    native_span(body, attributes, start_ns=start_ns, duration_ns=(419 + chunks[-1][0]) * MS)
    put(store, body, ENDED_NS)
    return start_ns


def test_some_streams_of_a_clock_are_enough(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than are needed no timelines are read."""
    monkeypatch.setattr(module, "_STREAMS_MAX", 2)
    put(store, steps(WORLD, 4), ENDED_NS + SKEW_NS)
    for number in range(4):
        put(store, stream(WORLD, "server", number), ENDED_NS)
    own = ends()
    # The first and the last are read: another one would change the offset.
    recorded = {name: at + (10**9 if number in (1, 2) else 0) for number, (name, at) in enumerate(own.recorded_ns.items())}
    server = clock_offsets(store, {KEY: replace(own, recorded_ns=recorded)})[KEY].server
    assert server is not None and abs(server[0] - SKEW_NS) < 2 * MS


def test_an_engine_without_requests_has_no_offsets(store: Store) -> None:
    """Nothing is read for it."""
    none = clock_offsets(store, {KEY: RecordedEnds({}, (0, 1), (0, 1))})
    assert none[KEY].server is None and not none[KEY].clients


def test_the_nearest_requests_are_used() -> None:
    """Of more requests than are needed, those in the middle."""
    many = RecordedEnds({f"r{number}": number * MS for number in range(2_000)}, (0, 1), (0, 1))
    nearest = many.nearest()
    assert len(nearest) == 512 and min(nearest.values()) >= 740 * MS and max(nearest.values()) <= 1_260 * MS
