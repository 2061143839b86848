"""Offsets between clocks as they are loaded: from the last byte of each complete stream."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.builders.spans import native_span, request
from helpers.builders.world import MS, World
from helpers.builders.world_spans import put, response_id, steps, stream
from legato._timeline import Kind, pack
from legato_ingest.attribution.load.clock_offsets import RecordedEnds, clock_offsets
from legato_ingest.storage import Store

SKEW_NS = 40 * 1_000 * MS
WORLD = World(offset_ns=SKEW_NS)
KEY = ("", "e")
ENDED_NS = int(WORLD.ends[-1])
TEXT, USAGE, DONE = int(Kind.TEXT), int(Kind.USAGE), int(Kind.DONE)


def ends() -> RecordedEnds:
    """Return the ends of the world's requests by the engine's clock."""
    recorded = {response_id(number): int(WORLD.server(number).times_ns[-1]) + SKEW_NS for number in range(4)}
    low, high = int(WORLD.ends[0]), ENDED_NS
    return RecordedEnds(recorded, (low + SKEW_NS - 10**11, high + SKEW_NS + 10**11), (low, high))


def test_the_offset_is_that_of_the_last_byte(store: Store) -> None:
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
    assert offsets["other", "e"].server is None and not offsets["other", "e"].clients


@pytest.mark.parametrize(
    ("chunks", "outcome", "offset"),
    [
        # Each chunk is its time in ms and its kind.
        ([(20 * number, TEXT) for number in range(100)], "complete", (SKEW_NS, None)),
        # The end of the sequence is a token without text: the finish reason comes one step, here of 250 ms, after the last content.
        ([*((20 * number, TEXT) for number in range(100)), (2_230, DONE), (2_230, USAGE), (2_230, DONE)], "complete", (SKEW_NS, None)),
        ([(0, TEXT)], "complete", (SKEW_NS, None)),
        # When the client left is no time of a step.
        ([(20 * number, TEXT) for number in range(100)], "client_cancel", None),
    ],
    ids=["a length", "the end of a sequence", "one chunk", "left"],
)
def test_the_last_step_has_the_last_byte(
    store: Store, chunks: list[tuple[int, int]], outcome: str, offset: tuple[int, int | None] | None
) -> None:
    """Whether or not it carried text: an offset from the last content would be too large by the length of a step."""
    put(store, steps(WORLD, 4), ENDED_NS + SKEW_NS)
    start_ns = ENDED_NS // 1000 * 1000 - 10**10
    attributes = {
        "legato.stream.vantage": "server",
        "legato.stream.outcome": outcome,
        "legato.stream.timeline": pack([1_000 * at + 400_000 for at, _ in chunks], None, None, [kind for _, kind in chunks]),
        "gen_ai.response.id": response_id(0),
        "legato.engine.id": "e",
    }
    body = request()
    native_span(body, attributes, start_ns=start_ns, duration_ns=(400 + chunks[-1][0]) * MS)
    put(store, body, ENDED_NS)
    own = replace(ends(), recorded_ns={response_id(0): start_ns + (400 + chunks[-1][0]) * MS + SKEW_NS})
    assert clock_offsets(store, {KEY: own})[KEY].server == offset


def test_an_engine_without_requests_has_no_offsets(store: Store) -> None:
    """Nothing is read for it."""
    none = clock_offsets(store, {KEY: RecordedEnds({}, (0, 1), (0, 1))})
    assert none[KEY].server is None and not none[KEY].clients


def test_the_nearest_requests_are_used() -> None:
    """Of more requests than are needed, those in the middle."""
    many = RecordedEnds({f"r{number}": number * MS for number in range(2_000)}, (0, 1), (0, 1))
    nearest = many.nearest()
    assert len(nearest) == 512 and min(nearest.values()) >= 740 * MS and max(nearest.values()) <= 1_260 * MS
