"""The model on simulated worlds with known causes: every cause is named, parts add up, and clock offsets change no verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.builders.world import MS, World
from legato_ingest.attribution.model.charge import charge
from legato_ingest.attribution.model.clock_offset import clock_offset
from legato_ingest.attribution.model.corroborate import corroborate
from legato_ingest.attribution.model.gaps import Gaps, gaps_of
from legato_ingest.attribution.model.matching import server_from_steps
from legato_ingest.attribution.model.step_model import charge_steps
from legato_ingest.attribution.model.vantage import SocketSamples, Vantage
from legato_ingest.attribution.model.verdicts import Verdicts
from legato_ingest.causes import index_of

GAP_NS = 100 * MS


def judged(
    world: World, stream: int = 0, *, server: bool = True, engine: bool = True, offset_ns: int = 0, drift_ppm: float = 0.0
) -> Verdicts:
    """Return the verdicts on one stream of a world."""
    client = world.client(stream, offset_ns, drift_ppm)
    gaps = gaps_of(client, world.server(stream) if server else None, 0, GAP_NS // world.speed)
    verdicts = charge(gaps, charge_steps(world.records()) if engine else None)
    assert (verdicts.parts.sum(axis=1) == gaps.end_ns - gaps.start_ns).all()
    return verdicts


def causes(verdicts: Verdicts) -> list[str]:
    """Return the names of the causes."""
    return verdicts.names()


def part(verdicts: Verdicts, name: str, row: int = 0) -> float:
    """Return one part of a verdict in ms."""
    return float(verdicts.parts[row, index_of(name)]) / MS


WORLDS = {
    "scheduling": World(prefill={n: 1500 for n in range(40, 400, 60)}),
    "host": World(slow={200: 300 * MS}),
    "front_end": World(frozen=(200, 400 * MS)),
    "kv_pressure": World(preempted=(200, 230)),
    "connection": World(held=(200, 500 * MS)),
}


@pytest.mark.parametrize("cause", WORLDS)
@pytest.mark.parametrize("speed", [1, 20])
def test_each_cause_is_named(cause: str, speed: int) -> None:
    """All vantages are recorded; the second world is 20 times as fast."""
    world = World(**{**{key: value for key, value in vars(WORLDS[cause]).items() if key in World.__dataclass_fields__}, "speed": speed})
    verdicts = judged(world)
    assert len(verdicts.cause) >= 1 and set(causes(verdicts)) == {cause}


def test_the_parts_are_right() -> None:
    """The part equals the duration of the injected fault, within a few ms."""
    assert part(judged(WORLDS["host"]), "host") == pytest.approx(300, abs=3)
    assert part(judged(WORLDS["front_end"]), "front_end") == pytest.approx(380, abs=4)
    assert part(judged(WORLDS["connection"]), "connection") == pytest.approx(480, abs=25)
    assert part(judged(WORLDS["scheduling"]), "scheduling") == pytest.approx(300, abs=8)
    assert part(judged(WORLDS["kv_pressure"]), "kv_pressure") == pytest.approx(30 * 20 + 120 + 20, abs=3)


def test_an_interval_longer_than_its_step_moves_no_other_step() -> None:
    """The preempted stream resumed alone, so the interval of its step is its whole pause. The stalls before keep their cause."""
    world = World(prefill={n: 1500 for n in range(40, 180, 30)}, preempted=(200, 230))
    records = world.records()
    records.interval_ns[230] = world.ends[230] - world.ends[199]
    verdicts = charge(gaps_of(world.client(0), world.server(0), 0, GAP_NS), charge_steps(records))
    assert causes(verdicts) == ["scheduling"] * 5 + ["kv_pressure"]
    assert part(verdicts, "kv_pressure", 5) == pytest.approx(30 * 20 + 120 + 20, abs=3)


def test_the_recompute_of_another_stream_is_kv_pressure() -> None:
    """The other streams wait for one long step with the recompute of the preempted stream."""
    verdicts = judged(WORLDS["kv_pressure"], stream=1)
    assert causes(verdicts) == ["kv_pressure"] and part(verdicts, "kv_pressure") == pytest.approx(120, abs=3)


@pytest.mark.parametrize("cause", WORLDS)
@pytest.mark.parametrize(("hours", "drift_ppm"), [(1, 0.0), (-1, 0.0), (0, 50.0), (1, -50.0)])
def test_the_clients_clock_changes_no_verdict(cause: str, hours: int, drift_ppm: float) -> None:
    """The client's clock differs by an hour, or drifts by 50 ppm."""
    plain, off = judged(WORLDS[cause]), judged(WORLDS[cause], offset_ns=hours * 3_600_000 * MS, drift_ppm=drift_ppm)
    assert causes(plain) == causes(off)
    assert np.abs(plain.parts - off.parts).max() <= 100_000


def test_the_engines_clock_is_found_by_its_finished_requests() -> None:
    """The records' clock is an hour ahead. The offset is exact within half a millisecond; with many requests its error is known."""
    world = World()
    sends = np.array([world.server(stream).times_ns[-1 - stream] for stream in range(4)])
    records = np.array([world.recorded[-1 - stream] for stream in range(4)]) + 3_600_000 * MS
    shift = clock_offset(sends, records)
    assert shift is not None and abs(shift[0] - 3_600_000 * MS) < MS // 2 and shift[1] is None
    assert clock_offset(sends[:0], records[:0]) is None
    apart = np.arange(200) * 1_000
    assert clock_offset(apart, 2 * apart) == (180_000, 18_000)


@pytest.mark.parametrize("cause", WORLDS)
@pytest.mark.parametrize("short_ms", [0.4, 1.0, 3.0])
def test_an_offset_that_is_off_within_its_error_changes_no_verdict(cause: str, short_ms: float) -> None:
    """A chunk seems to be sent before the end of its step. It still belongs to that step, and the front end is not charged for it."""
    world, off_ns = WORLDS[cause], int(short_ms * MS)
    client, server, steps = world.client(0), world.server(0), charge_steps(world.records())
    right = charge(gaps_of(client, server, 0, GAP_NS), steps)
    off = charge(gaps_of(client, server, -off_ns, GAP_NS, clock_offset_error_ns=off_ns), steps)
    assert causes(off) == causes(right) and (off.parts.sum(axis=1) == right.parts.sum(axis=1)).all()
    assert np.abs(off.parts - right.parts).max() <= off_ns + MS


def test_a_chunk_that_is_sent_late_keeps_its_step() -> None:
    """It was sent nearer to the end of its step than to the next end, so a preemption in the next step does not concern it."""
    world = World(slow={200: 600 * MS}, preempted=(201, 230))
    steps, client = charge_steps(world.records()), world.client(1)
    times = world.server(1).times_ns.copy()
    times[200] = steps.end_ns[200] + 14 * MS
    late = Vantage(times, client.sizes, client.holds_ns)
    for error_ms in (0, 7):
        verdicts = charge(gaps_of(late, late, 0, GAP_NS, clock_offset_error_ns=error_ms * MS), steps)
        assert causes(verdicts)[0] == "host" and part(verdicts, "front_end") == pytest.approx(14, abs=1)


def test_a_missing_vantage_weakens_the_claim() -> None:
    """Without the engine: generation or the network path. From the client alone: generation or delivery. Never another cause."""
    for cause, world in WORLDS.items():
        on_path = cause == "connection"
        assert set(causes(judged(world, engine=False))) == {"connection" if on_path else "generation"}, cause
        for engine in (True, False):
            # The front end of this world merges no chunks: those that it kept arrive together, so they existed.
            kept = on_path or cause == "front_end"
            assert set(causes(judged(world, server=False, engine=engine))) == {"delivery" if kept else "generation"}, cause


def test_the_client_alone_abstains_where_the_stream_ends() -> None:
    """A gap before the last chunk: it is unknown whether more chunks would have followed."""
    times = World().server(0).times_ns.copy()
    times[-1] += 400 * MS
    verdicts = charge(gaps_of(Vantage(times, np.zeros(0, np.int64), np.zeros(0, np.int64)), None, 0, GAP_NS), None)
    assert causes(verdicts) == ["unknown"]


def _alone(streams: list[tuple[int, ...]]) -> tuple[Gaps, Verdicts, np.ndarray[Any, np.dtype[np.int64]]]:
    """Return client streams of a chunk every 20 ms, given as (index of the chunk after the gap, gap in ms, number of chunks)."""
    each = []
    for after, gap_ms, chunks in streams:
        times = 20 * MS * np.arange(1, chunks + 1)
        times[after:] += gap_ms * MS
        each.append(gaps_of(Vantage(times, np.zeros(0, np.int64), np.zeros(0, np.int64)), None, 0, GAP_NS))
    gaps = Gaps.joined(each)
    return gaps, charge(gaps, None), np.repeat(np.arange(len(each)), [len(one.start_ns) for one in each])


def test_an_unknown_gap_takes_the_side_of_simultaneous_ones() -> None:
    """A gap before the last chunk is unknown. Other streams with the same gap continued evenly: the chunk was generated late."""
    gaps, verdicts, owners = _alone([(50, 400, 51), (50, 400, 200), (50, 403, 200)])
    assert causes(verdicts) == ["unknown", "generation", "generation"]
    found = corroborate(gaps, verdicts, owners, np.zeros(3, np.int64))
    assert causes(found) == ["generation"] * 3 and found.corroborated_by.tolist() == [2, 0, 0]
    assert (found.parts.sum(axis=1) == gaps.end_ns - gaps.start_ns).all() and part(found, "unknown") == 0


@pytest.mark.parametrize(
    "others",
    [
        [(50, 700, 200)],  # ends later
        [(30, 800, 200)],  # begins earlier
        [(20, 400, 200)],  # another moment
        [(50, 400, 51)],  # is unknown, too
        [],
    ],
)
def test_gaps_that_are_not_simultaneous_corroborate_nothing(others: list[tuple[int, int, int]]) -> None:
    """Both ends must agree, and the other stream must have a side."""
    gaps, verdicts, owners = _alone([(50, 400, 51), *others])
    assert causes(corroborate(gaps, verdicts, owners, np.zeros(len(owners), np.int64)))[0] == "unknown"


def test_gaps_by_two_clocks_are_not_simultaneous() -> None:
    """Times of different clocks are not compared, and a gap with a side keeps it."""
    gaps, verdicts, owners = _alone([(50, 400, 51), (50, 400, 200)])
    assert causes(corroborate(gaps, verdicts, owners, np.array([0, 1]))) == ["unknown", "generation"]
    contrary = replace(verdicts, cause=np.array([index_of("delivery"), index_of("generation")]))
    assert causes(corroborate(gaps, contrary, owners, np.zeros(2, np.int64))) == ["delivery", "generation"]


def test_missing_records_are_no_evidence() -> None:
    """The records of the slow step are missing: the server's part is generation, and the front end is not charged."""
    world = WORLDS["host"]
    records = world.records()
    kept = np.r_[0:195, 205:400]
    holed = type(records)(**{name: getattr(records, name)[kept] for name in records.__dataclass_fields__})
    gaps = gaps_of(world.client(0), world.server(0), 0, GAP_NS)
    assert causes(charge(gaps, charge_steps(holed))) == ["generation"]


def test_a_buffer_is_distinguished_from_an_outage() -> None:
    """A buffer releases several chunks all the time, an outage once."""
    world = World()
    server = world.server(0)
    released = -(-(server.times_ns - server.times_ns[0]) // (250 * MS)) * 250 * MS + server.times_ns[0]
    gaps = gaps_of(Vantage(released, server.sizes, server.holds_ns), server, 0, GAP_NS)
    verdicts = charge(gaps, charge_steps(world.records()))
    assert len(verdicts.cause) > 20 and set(causes(verdicts)) == {"coalescing"}


def test_the_applications_hold_is_consumer() -> None:
    """The application sleeps half a second after every tenth chunk, which the client records."""
    server = World().server(0)
    slept = np.where(np.arange(400) % 10 == 5, 500 * MS, 0)
    times = np.zeros(400, np.int64)
    free = 0
    for i, sent in enumerate(server.times_ns):
        times[i] = max(int(sent), free)
        free = times[i] + slept[i]
    for seen in (server, None):
        verdicts = charge(gaps_of(Vantage(times, server.sizes, slept), seen, 0, 400 * MS), None)
        assert len(verdicts.cause) and set(causes(verdicts)) == {"consumer"}


def test_the_holds_of_a_read_add_up_to_consumer() -> None:
    """The application sleeps after each chunk. Ten chunks arrived in one read, so the next read is ten sleeps late."""
    dt_us = np.array([0, 500_000, *[0] * 9, 5_000_000, 20_000])
    kinds = np.ones(13, np.int64)
    kinds[5] = 0
    seen = Vantage.of(0, dt_us, kinds, np.zeros(0, np.int64), np.full(13, 500_000 // 64))
    assert len(seen.times_ns) == 12
    verdicts = charge(gaps_of(seen, None, 0, GAP_NS), None)
    assert causes(verdicts) == ["consumer", "consumer"]
    assert part(verdicts, "consumer", 1) == pytest.approx(5_000, abs=1)


def test_chunks_are_matched_by_byte() -> None:
    """The client received in one chunk what the server sent in two; gaps are compared at the same byte."""
    server = Vantage(np.array([0, 10, 20, 500, 510]) * MS, np.array([3, 4, 5, 6, 7]), np.zeros(0, np.int64))
    client = Vantage(np.array([1, 21, 501]) * MS, np.array([7, 5, 13]), np.zeros(0, np.int64))
    gaps = gaps_of(client, server, 0, GAP_NS)
    assert gaps.has_server.tolist() == [True]
    assert (gaps.server_start_ns[0], gaps.server_end_ns[0]) == (20 * MS, 500 * MS)


def test_a_pause_of_the_server_is_charged_once() -> None:
    """The chunk after a pause of 600 ms reaches the client in two pieces, the second half a second late: that is the path's."""
    sent = np.array([*range(0, 200, 20), *range(780, 980, 20)])
    first, second = sent + 1, sent + 2
    first[11:], second[10:] = np.maximum(first[11:], 1_281), np.maximum(second[10:], 1_281)
    server = Vantage(sent * MS, np.full(20, 40), np.zeros(0, np.int64))
    client = Vantage(np.ravel([first, second], "F") * MS, np.full(40, 20), np.zeros(0, np.int64))
    verdicts = charge(gaps_of(client, server, 0, GAP_NS), None)
    assert causes(verdicts) == ["generation", "connection"]
    assert part(verdicts, "generation", 0) == 580 and part(verdicts, "connection", 1) == 500 == verdicts.excess_ns[1] / MS


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(0, 400), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=60)
def test_parts_always_add_up(seed: int, merge: int, at: int, server: bool, engine: bool) -> None:
    """For any merged, delayed or missing chunks: exact in ns, and only parts of the network path may be negative."""
    world = World(seed=seed, prefill={seed % 390: 900}, frozen=(seed % 380, 150 * MS), preempted=(seed % 300, seed % 300 + 1 + merge))
    times = world.client(0).times_ns
    merged = times[np.minimum((np.arange(len(times)) // merge + 1) * merge - 1, len(times) - 1)]
    gaps = gaps_of(Vantage(merged, np.zeros(0, np.int64), np.zeros(0, np.int64)), world.server(0) if server else None, at * MS, 50 * MS)
    verdicts = charge(gaps, charge_steps(world.records()) if engine else None)
    assert (verdicts.parts.sum(axis=1) == gaps.end_ns - gaps.start_ns).all()
    path = [index_of(name) for name in ("coalescing", "connection")]
    assert (np.delete(verdicts.parts, path, axis=1) >= 0).all()


def test_no_streams_and_no_steps_are_no_error() -> None:
    """Empty arrays in, empty arrays out."""
    nothing = Vantage(*[np.zeros(0, np.int64)] * 3)
    records = World().records()
    empty = type(records)(**{name: getattr(records, name)[:0] for name in records.__dataclass_fields__})
    assert len(charge(gaps_of(nothing, nothing, 0, GAP_NS), charge_steps(empty)).cause) == 0
    assert causes(charge(gaps_of(World(slow={9: 200 * MS}).client(1), World().server(1), 0, GAP_NS), charge_steps(empty))) == ["connection"]


@pytest.mark.parametrize("cause", WORLDS)
@pytest.mark.parametrize("hours", [0, -1])
def test_tokens_are_matched_to_steps_without_a_server(cause: str, hours: int) -> None:
    """Every cause is still named, from the client's times and the engine's records, for any offset of the client's clock."""
    world = WORLDS[cause]
    client, charges = world.client(0, hours * 3_600_000 * MS), charge_steps(world.records())
    recorded = charges.end_ns + charges.late_ns
    shift = int(recorded[-1] - client.times_ns[-1])
    made = server_from_steps(client, recorded, shift, len(recorded) - 1)
    gaps = gaps_of(client, made, 0, GAP_NS)
    verdicts = charge(gaps, charges)
    assert (verdicts.parts.sum(axis=1) == gaps.end_ns - gaps.start_ns).all()
    assert len(verdicts.cause) >= 1 and set(causes(verdicts)) == {cause}


def test_a_slow_reader_is_distinguished_from_a_loss() -> None:
    """The socket held old unread data before the read, or data that had just arrived."""
    dt_us = np.full(10, 500_000)
    sockets = SocketSamples(
        *(np.array(each) for each in ([2, 4, 6, 8, 99], [9_001, 801, 2_001, 0, 5], [2_001, 60_001, 0, 0, 1], [1, 1, 401, 0, 1]))
    )
    assert sockets.unread(dt_us).tolist() == [2, 6]
    world = WORLDS["connection"]
    client = world.client(0)
    for places, cause in (([200], "slow_reader"), ([], "connection")):
        seen = Vantage(client.times_ns, client.sizes, client.holds_ns, np.array(places, np.int64))
        assert causes(charge(gaps_of(seen, world.server(0), 0, GAP_NS), charge_steps(world.records()))) == [cause]
