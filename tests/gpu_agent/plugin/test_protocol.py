"""The datagram format: decoding returns the encoded records, and no bytes break the decoder."""

from __future__ import annotations

import random
import time
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato_gpu_agent.plugin.model import EVENT_KINDS, Engine, FinishedRequest, SchedulerEvent, Step
from legato_gpu_agent.plugin.protocol import (
    DATAGRAM_BYTES_MAX,
    FINISHED,
    SCHEDULER,
    BadDatagram,
    Datagram,
    decode,
    decode_all,
    finished_entry,
    pack_entries,
    scheduler_entry,
    split_datagrams,
    step_packer,
)

NAMES = st.text(min_size=1, max_size=60)
NS, COUNT = st.integers(1, 2**63 - 1), st.integers(0, 2**32 - 1)
ENGINES = st.builds(Engine, NAMES, st.integers(0, 2**63 - 1))
STEPS = st.builds(Step, NS, NS, *[st.none() | COUNT for _ in range(13)])
REQUESTS = st.builds(FinishedRequest, NS, NAMES, NAMES, COUNT, COUNT, COUNT, NS, NS, NS)
EVENTS = st.builds(SchedulerEvent, NS, NAMES, st.sampled_from(EVENT_KINDS), COUNT, NS)
ENGINE = Engine("gpu-1:8000", 1_700_000_000_000_000_000)


def step_datagram(engine: Engine, step: Step, dropped: int = 0) -> bytes:
    """Return a step's datagram as the plugin sends it."""
    number, recorded_ns, *values = astuple(step)
    return step_packer(engine)(number, recorded_ns, dropped, *(-1 if value is None else value for value in values))


@given(ENGINES, STEPS, NS)
def test_a_step_is_decoded_unchanged(engine: Engine, step: Step, dropped: int) -> None:
    """Every field, unknown ones included, with its engine and the losses."""
    assert decode(step_datagram(engine, step, dropped)) == Datagram(engine, step, dropped)


@given(ENGINES, st.lists(REQUESTS, min_size=1, max_size=200), st.lists(EVENTS, min_size=1, max_size=200))
def test_lists_are_decoded_unchanged(engine: Engine, requests: list[FinishedRequest], events: list[SchedulerEvent]) -> None:
    """In order, across as many datagrams as the bound requires."""
    finished = list(pack_entries(FINISHED, engine, map(finished_entry, requests)))
    scheduled = list(pack_entries(SCHEDULER, engine, map(scheduler_entry, events)))
    assert max(map(len, finished + scheduled)) <= DATAGRAM_BYTES_MAX
    assert [each for datagram in finished for each in decode(datagram).finished] == requests
    assert [each for datagram in scheduled for each in decode(datagram).events] == events


def test_long_lists_are_split() -> None:
    """A thousand finished requests need several datagrams within the bound, and none is lost."""
    requests = [FinishedRequest(1, f"chatcmpl-{i:040}", "length") for i in range(1000)]
    datagrams = list(pack_entries(FINISHED, ENGINE, map(finished_entry, requests)))
    assert len(datagrams) > 1 and max(map(len, datagrams)) <= DATAGRAM_BYTES_MAX
    assert sum(len(decode(datagram).finished) for datagram in datagrams) == 1000


def test_texts_are_shortened_at_character_boundaries() -> None:
    """An id of 400 bytes keeps whole characters."""
    long = decode(next(pack_entries(FINISHED, ENGINE, [finished_entry(FinishedRequest(1, "ü" * 200))]))).finished[0].response_id
    assert long == "ü" * 127


@given(st.binary(max_size=600))
def test_random_bytes_are_rejected_or_decoded(data: bytes) -> None:
    """No error other than `BadDatagram` is raised."""
    try:
        assert decode(data).engine.id
    except BadDatagram as error:
        assert error.reason in ("noise", "truncated", "version", "engine", "kind", "range", "text")


@given(STEPS, st.integers(0, 200), st.integers(1, 255))
def test_damaged_datagrams_are_rejected_or_decoded(step: Step, place: int, change: int) -> None:
    """One changed byte at any position."""
    data = bytearray(step_datagram(ENGINE, step))
    data[place % len(data)] ^= change
    try:
        decode(bytes(data))
    except BadDatagram as error:
        assert error.reason in ("noise", "truncated", "version", "engine", "kind", "range", "text")


GOOD = step_datagram(ENGINE, Step(1, 2))


@pytest.mark.parametrize("length", range(len(GOOD)))
def test_each_truncation_is_rejected(length: int) -> None:
    """At any position."""
    with pytest.raises(BadDatagram, match="truncated" if length > 3 else "noise"):
        decode(GOOD[:length])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (GOOD[:4] + b"\x03" + GOOD[5:], "version"),
        (GOOD[:7] + b"\x09" + GOOD[8:], "kind"),
        (b"\xfe" + GOOD[1:], "noise"),
        (step_datagram(Engine("", 1), Step(1, 2)), "engine"),
        (step_datagram(ENGINE, Step(0, 2)), "range"),
        (step_datagram(ENGINE, Step(2**64 - 1, 2)), "range"),
        (step_datagram(ENGINE, Step(1, 2**63)), "range"),
        (GOOD.replace(b"gpu-1", b"gpu\xff1"), "text"),
        (GOOD + b"\0", "truncated"),
        (next(pack_entries(FINISHED, ENGINE, [finished_entry(FinishedRequest(1, "abc", "stop"))[:-1]])), "truncated"),
    ],
)
def test_each_error_has_a_reason(data: bytes, reason: str) -> None:
    """A newer version is rejected as such, and not misread."""
    with pytest.raises(BadDatagram) as caught:
        decode(data)
    assert caught.value.reason == reason


SOME = st.lists(REQUESTS, min_size=1, max_size=9)
FINISHES = st.builds(lambda engine, requests: next(pack_entries(FINISHED, engine, map(finished_entry, requests))), ENGINES, SOME)
DATAGRAMS = st.builds(step_datagram, ENGINES, STEPS) | FINISHES


@given(st.lists(DATAGRAMS, max_size=20))
def test_a_pipe_is_split_into_its_datagrams(written: list[bytes]) -> None:
    """Each datagram once, complete and in order."""
    assert split_datagrams(b"".join(written)) == written


LONG = next(pack_entries(SCHEDULER, Engine("noise", 1), [bytes(4_000)]))
NOISE = st.binary(max_size=300) | st.integers(0, 300).map(lambda length: LONG[:length])


@given(st.lists(st.tuples(NOISE, DATAGRAMS), max_size=9))
def test_noise_costs_no_datagram(written: list[tuple[bytes, bytes]]) -> None:
    """Arbitrary bytes and truncated datagrams before valid ones: the valid ones are decoded, the others rejected."""
    whole = b"".join(noise + datagram for noise, datagram in written)
    found = split_datagrams(whole)
    assert b"".join(found) == whole
    decoded = [each for piece in found for each in decode_all(piece)]
    assert [each for each in decoded if isinstance(each, Datagram)] == [decode(datagram) for _, datagram in written]


def test_damage_of_another_writer_costs_no_step() -> None:
    """Thousands of datagrams of another writer, truncated or with flipped bits at any position, between steps that are all decoded once."""
    rng, whole = random.Random(3), bytearray()
    for number in range(1, 4_001):
        unrelated = bytearray(step_datagram(Engine(f"other-{rng.randrange(200)}", rng.randrange(1, 2**62)), Step(number, number)))
        for place in rng.choices(range(len(unrelated)), k=rng.randrange(4)):
            unrelated[place] ^= 1 << rng.randrange(8)
        whole += rng.choice((unrelated, unrelated[: rng.randrange(len(unrelated))], unrelated[:-3], rng.randbytes(rng.randrange(500))))
        whole += step_datagram(ENGINE, Step(number, 2))
    decoded = [each for piece in split_datagrams(bytes(whole)) for each in decode_all(piece) if isinstance(each, Datagram)]
    assert [each.step and each.step.number for each in decoded if each.engine == ENGINE] == [*range(1, 4_001)]


@pytest.mark.parametrize("noise", [LONG[:4] * 1_000, LONG[:20] * 200, (LONG[:4] + b"\x02\xff\x0f" + bytes(11)) * 220])
def test_noise_that_resembles_datagrams_is_cheap(noise: bytes) -> None:
    """One datagram's length of noise in which another datagram seems to begin at every position."""
    started = time.monotonic()
    for size in range(0, 4_000, 100):
        found = [each for piece in split_datagrams(LONG[:20] + noise[size:] + GOOD) for each in decode_all(piece)]
        assert found[-1] == decode(GOOD) and len(found) < 1_100
    assert time.monotonic() - started < 10
