"""The datagrams between plugin and agent: what goes in comes out, and no bytes break the reader."""

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
    cut,
    decode,
    finished_entry,
    join,
    scheduler_entry,
    step_packer,
    understood,
)

NAMES = st.text(min_size=1, max_size=60)
NS, COUNT = st.integers(1, 2**63 - 1), st.integers(0, 2**32 - 1)
ENGINES = st.builds(Engine, NAMES, st.integers(0, 2**63 - 1))
STEPS = st.builds(Step, NS, NS, *[st.none() | COUNT for _ in range(13)])
REQUESTS = st.builds(FinishedRequest, NS, NAMES, NAMES, COUNT, COUNT, COUNT, NS, NS, NS)
EVENTS = st.builds(SchedulerEvent, NS, NAMES, st.sampled_from(EVENT_KINDS), COUNT, NS)
ENGINE = Engine("gpu-1:8000", 1_700_000_000_000_000_000)


def step_datagram(engine: Engine, step: Step, dropped: int = 0) -> bytes:
    """A step as the plugin sends it."""
    number, recorded_ns, *values = astuple(step)
    return step_packer(engine)(number, recorded_ns, dropped, *(-1 if value is None else value for value in values))


@given(ENGINES, STEPS, NS)
def test_a_step_is_read_as_it_was_sent(engine: Engine, step: Step, dropped: int) -> None:
    """Every field, unknown ones included, with its engine and what was lost."""
    assert decode(step_datagram(engine, step, dropped)) == Datagram(engine, step, dropped)


@given(ENGINES, st.lists(REQUESTS, min_size=1, max_size=200), st.lists(EVENTS, min_size=1, max_size=200))
def test_lists_are_read_as_they_were_sent(engine: Engine, requests: list[FinishedRequest], events: list[SchedulerEvent]) -> None:
    """In order, over as many datagrams as the bound makes of them."""
    finished = list(join(FINISHED, engine, map(finished_entry, requests)))
    scheduled = list(join(SCHEDULER, engine, map(scheduler_entry, events)))
    assert max(map(len, finished + scheduled)) <= DATAGRAM_BYTES_MAX
    assert [each for datagram in finished for each in decode(datagram).finished] == requests
    assert [each for datagram in scheduled for each in decode(datagram).events] == events


def test_long_lists_are_cut() -> None:
    """A thousand ends of requests are several datagrams, none too long, and none is lost."""
    requests = [FinishedRequest(1, f"chatcmpl-{i:040}", "length") for i in range(1000)]
    datagrams = list(join(FINISHED, ENGINE, map(finished_entry, requests)))
    assert len(datagrams) > 1 and max(map(len, datagrams)) <= DATAGRAM_BYTES_MAX
    assert sum(len(decode(datagram).finished) for datagram in datagrams) == 1000


def test_texts_are_cut_between_characters() -> None:
    """An id of 400 bytes is shortened to whole characters."""
    long = decode(next(join(FINISHED, ENGINE, [finished_entry(FinishedRequest(1, "ü" * 200))]))).finished[0].response_id
    assert long == "ü" * 127


@given(st.binary(max_size=600))
def test_random_bytes_are_refused_or_understood(data: bytes) -> None:
    """Nothing but `BadDatagram` comes out."""
    try:
        assert decode(data).engine.id
    except BadDatagram as error:
        assert error.reason in ("noise", "truncated", "version", "engine", "kind", "range", "text")


@given(STEPS, st.integers(0, 200), st.integers(1, 255))
def test_damaged_datagrams_are_refused_or_understood(step: Step, place: int, change: int) -> None:
    """One changed byte anywhere."""
    data = bytearray(step_datagram(ENGINE, step))
    data[place % len(data)] ^= change
    try:
        decode(bytes(data))
    except BadDatagram as error:
        assert error.reason in ("noise", "truncated", "version", "engine", "kind", "range", "text")


GOOD = step_datagram(ENGINE, Step(1, 2))


@pytest.mark.parametrize("length", range(len(GOOD)))
def test_each_truncation_is_refused(length: int) -> None:
    """Cut anywhere, it is no step."""
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
        (next(join(FINISHED, ENGINE, [finished_entry(FinishedRequest(1, "abc", "stop"))[:-1]])), "truncated"),
    ],
)
def test_what_is_wrong_has_a_reason(data: bytes, reason: str) -> None:
    """A newer version first of all: it is skipped by name, not misread."""
    with pytest.raises(BadDatagram) as caught:
        decode(data)
    assert caught.value.reason == reason


SOME = st.lists(REQUESTS, min_size=1, max_size=9)
FINISHES = st.builds(lambda engine, requests: next(join(FINISHED, engine, map(finished_entry, requests))), ENGINES, SOME)
DATAGRAMS = st.builds(step_datagram, ENGINES, STEPS) | FINISHES


@given(st.lists(DATAGRAMS, max_size=20))
def test_a_pipe_is_cut_into_what_was_written(written: list[bytes]) -> None:
    """Each datagram, once, whole, in its order."""
    assert cut(b"".join(written)) == written


LONG = next(join(SCHEDULER, Engine("noise", 1), [bytes(4_000)]))
NOISE = st.binary(max_size=300) | st.integers(0, 300).map(lambda length: LONG[:length])


@given(st.lists(st.tuples(NOISE, DATAGRAMS), max_size=9))
def test_noise_costs_no_datagram(written: list[tuple[bytes, bytes]]) -> None:
    """Bytes of anything, and datagrams cut off, before the good: these come all the same, and the others are refused."""
    whole = b"".join(noise + datagram for noise, datagram in written)
    found = cut(whole)
    assert b"".join(found) == whole
    told = [each for piece in found for each in understood(piece)]
    assert [each for each in told if isinstance(each, Datagram)] == [decode(datagram) for _, datagram in written]


def test_a_strangers_damage_costs_no_step() -> None:
    """Thousands of a stranger's datagrams, cut off anywhere or with bits turned anywhere, between steps that all come, each once."""
    rng, whole = random.Random(3), bytearray()
    for number in range(1, 4_001):
        stranger = bytearray(step_datagram(Engine(f"stranger-{rng.randrange(200)}", rng.randrange(1, 2**62)), Step(number, number)))
        for place in rng.choices(range(len(stranger)), k=rng.randrange(4)):
            stranger[place] ^= 1 << rng.randrange(8)
        whole += rng.choice((stranger, stranger[: rng.randrange(len(stranger))], stranger[:-3], rng.randbytes(rng.randrange(500))))
        whole += step_datagram(ENGINE, Step(number, 2))
    told = [each for piece in cut(bytes(whole)) for each in understood(piece) if isinstance(each, Datagram)]
    assert [each.step and each.step.number for each in told if each.engine == ENGINE] == [*range(1, 4_001)]


@pytest.mark.parametrize("noise", [LONG[:4] * 1_000, LONG[:20] * 200, (LONG[:4] + b"\x02\xff\x0f" + bytes(11)) * 220])
def test_noise_that_looks_like_datagrams_costs_little(noise: bytes) -> None:
    """As much as fits one, made so that another seems to begin at every place."""
    started = time.monotonic()
    for size in range(0, 4_000, 100):
        found = [each for piece in cut(LONG[:20] + noise[size:] + GOOD) for each in understood(piece)]
        assert found[-1] == decode(GOOD) and len(found) < 1_100
    assert time.monotonic() - started < 10
