"""Judgements of groups of streams from each kind of evidence, without a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers.builders.attribution import MS, ints, parts_ms, steps, vantage
from legato_ingest.attribution.model.cpu_wait import CpuSamples, CpuSeries
from legato_ingest.attribution.model.engine import EngineRecords
from legato_ingest.attribution.model.judge import Evidence, Judgement, Thresholds, judge
from legato_ingest.attribution.model.scraped import ScrapedMetrics
from legato_ingest.attribution.model.vantage import Stream, Vantage

ENGINE = ("", "e")
# A step every 20 ms, of which step 30 takes 300 ms longer. Each is recorded at its end.
TOOK = [20.0 + 300.0 * (n == 30) for n in range(60)]
ENDS = list(np.cumsum(TOOK))
RECORDS = EngineRecords(steps(TOOK, ENDS), server_offset=(0, None), client_offsets={"clock": 0}, last_step={"r": 59})


def stream(number: int = 0, **fields: Any) -> Stream:
    """Return a stream with a chunk of every step, sent 1 ms after the step's end and received 1 ms later."""
    client, server = (vantage(*(end + more for end in ENDS)) for more in (2, 1))
    known: dict[str, Any] = {"tenant": "", "start_ns": 0, "trace_id": b"t", "span_id": bytes([number]), "judged": client, "server": server}
    return Stream(**{**known, "engine_id": "e", "response_id": "r", "clock": "clock", **fields})


def judged(*streams: Stream, **evidence: Any) -> Judgement:
    """Return the judgement of a group; gaps of 100 ms or more are judged."""
    out = judge(Evidence(streams, **evidence), Thresholds(100.0, 50.0))
    assert (out.verdicts.parts.sum(axis=1) == out.gaps.length_ns).all()
    return out


def test_the_steps_of_a_streams_engine_explain_its_stall() -> None:
    """Two streams have one gap each."""
    out = judged(stream(), stream(1), engine=RECORDS)
    assert out.verdicts.names() == ["host", "host"] and out.owners.tolist() == [0, 1] and out.stalls.tolist() == [0, 1]
    # The gap begins 1 ms after a step's end, so 1 ms of the long step is before it, and 1 ms is the front end's.
    assert parts_ms(out.verdicts) == pytest.approx({"base": 20, "host": 299, "front_end": 1}, abs=1e-5)


def test_without_a_server_it_is_concluded_from_the_steps() -> None:
    """By the client's times and the offset of its clock, with an error of one step."""
    out = judged(stream(server=None), engine=RECORDS)
    assert out.verdicts.names() == ["host"] and out.gaps.server_error_ns.tolist() == [20 * MS]


def test_without_steps_it_is_generation() -> None:
    """With the server, and with the client alone if nothing arrived right behind."""
    for each in (stream(), stream(server=None)):
        out = judged(each)
        assert out.verdicts.names() == ["generation"] and not out.verdicts.aligned.any() and out.engine is None


def metrics(**fields: Any) -> Mapping[tuple[str, str], ScrapedMetrics]:
    """Return scrapes of the engine every second, without long times between tokens."""
    seen = ints(*range(-120_000, 120_000, 1_000))
    return {ENGINE: ScrapedMetrics({}, seen, seen, np.full(len(seen), 20 * MS), True, **fields)}


def test_scraped_metrics_name_what_they_leave() -> None:
    """The engine's core had no time half as long: it was the front end, and the reasons are kept. Other engines are not concerned."""
    out = judged(stream(), metrics=metrics())
    assert out.verdicts.names() == ["front_end"] and set(out.excluded[0]) == {"scheduling", "kv_pressure", "gpu_clock", "host"}
    assert judged(stream(engine_id="other"), metrics=metrics()).verdicts.names() == ["generation"]


@pytest.mark.parametrize(("boot", "name"), [("boot", "front_end"), ("", "generation"), ("other", "generation")])
def test_scrapes_are_near_only_on_the_servers_own_clock(boot: str, name: str) -> None:
    """With one clock a long time between tokens half a minute after the gap does not concern it."""
    longest = dict(metrics(boots=frozenset({"boot"})))
    scraped = longest[ENGINE]
    later = replace(scraped, interval_ns_max=np.where(scraped.scraped_ns == 30_000 * MS, 400 * MS, 20 * MS))
    assert judged(stream(server_boot=boot), metrics={ENGINE: later}).verdicts.names() == [name]


@pytest.mark.parametrize("known", [True, False])
def test_waits_of_the_host_are_evidence_of_its_stalls(known: bool) -> None:
    """The gap must be aligned with steps and have a part of the host."""
    waits = CpuSamples([CpuSeries("node", ints(0, 2000), np.array([0.0, 0.25]))])
    out = judged(stream(), engine=RECORDS if known else None, cpu={ENGINE: waits})
    assert out.cpu_waits == ({0: {"cpu_wait_us": 250_000, "cpu_wait_of_us": 2_000_000}} if known else {})


def test_an_unknown_gap_takes_the_side_of_streams_on_its_clock() -> None:
    """The stream ended with the gap; another stream had the same gap and continued."""
    ended = Vantage(stream().judged.times_ns[:31], ints(), ints())
    short = stream(judged=ended, server=None)
    assert judged(short).verdicts.names() == ["unknown"]
    other = stream(1, server=None)
    assert judged(short, other).verdicts.names() == ["generation", "generation"]
    assert judged(short, replace(other, clock="another")).verdicts.names()[0] == "unknown"
    assert judged(short, replace(other, tenant="another")).verdicts.names()[0] == "unknown"


def test_a_healthy_gap_is_withdrawn_where_the_store_has_it_as_a_stall() -> None:
    """A step with more requests takes longer, so its long gap is healthy. It is withdrawn only if the store has this very gap."""
    busy = [20.0 + 5 * (n % 3) + 200.0 * (n == 30) for n in range(60)]
    requests = [4.0 + (n % 3) + 40.0 * (n == 30) for n in range(60)]
    ends = list(np.cumsum(busy))
    records = replace(RECORDS, steps=steps(busy, ends, decode_requests=requests, decode_tokens=requests))
    full = stream(judged=vantage(*(end + 2 for end in ends)), server=vantage(*(end + 1 for end in ends)))
    start_us = round(1000 * (ends[29] + 2))
    for stored, rows in (({start_us}, [0]), (set(), []), ({start_us + 1}, [])):
        stalls = frozenset(("", b"t", bytes([0]), us) for us in stored)
        out = judged(full, engine=records, stored_stalls=stalls)
        assert out.stalls.tolist() == [] and out.withdrawn.tolist() == rows


def test_streams_without_a_long_gap_are_no_error() -> None:
    """The longest gap of a loaded stream may be its open gap."""
    out = judged(stream(judged=vantage(1, 2, 3), server=None), metrics=metrics(), cpu={ENGINE: CpuSamples()})
    assert len(out.gaps.start_ns) == 0 and out.stalls.tolist() == [] and out.cpu_waits == {}
