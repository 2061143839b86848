"""The numbers behind a verdict, and the possible error of its parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from helpers.builders.attribution import MS, charged_steps, client_gap, gap, joined, throttling, verdict
from legato_ingest.attribution.model.evidence import error_bounds_ns, evidence_of

BASE = {"base": 10}
NOTHING = verdict("unknown", {})


def test_the_error_of_a_client_is_drift_and_resolution() -> None:
    """50 ppm of 400 ms are 20 µs; four times with 1 µs each are 4 µs; a hold adds 64 µs."""
    assert error_bounds_ns(client_gap(400), NOTHING, joined(None)).tolist() == [24_000]
    assert error_bounds_ns(client_gap(400, hold_ns=5, hold_known=True), NOTHING, joined(None)).tolist() == [88_000]
    assert error_bounds_ns(client_gap(400, hold_known=True), NOTHING, joined(None)).tolist() == [24_000]


def test_the_error_of_steps_is_that_of_their_records_and_offset() -> None:
    """The median record is 2 ms late, the error of the offset is 3 ms, and that of a concluded server 10 ms."""
    steps = charged_steps(BASE, BASE, BASE, late_ms=[1, 2, 9])
    aligned = verdict("host", {}, step_first=1, step_last=1)
    assert error_bounds_ns(gap(0, 400, 0, 400, clock_offset_error_ns=3), aligned, joined(steps)).tolist() == [24_000 + 5 * MS]
    assert error_bounds_ns(gap(0, 400, 0, 400, clock_offset_error_ns=3), NOTHING, joined(steps)).tolist() == [24_000]
    assert error_bounds_ns(gap(0, 400, 0, 400, server_error_ns=10), NOTHING, joined(None)).tolist() == [24_000 + 10 * MS]


def test_only_known_numbers_are_evidence() -> None:
    """The client alone, with and without a share, and a server with a socket and a hold."""
    assert evidence_of(client_gap(400), NOTHING, joined(None)) == [{}]
    assert evidence_of(client_gap(400, 0.497), NOTHING, joined(None)) == [{"caught_up_percent": 49}]
    seen = gap(0, 400, 0, 25, hold_ns=7, hold_known=True, buffered=True, socket_known=True)
    assert evidence_of(seen, verdict("unknown", {}, corroborated_by=2), joined(None)) == [
        {"server_gap_us": 25_000, "hold_us": 7_000, "buffered": 1, "unread": 0, "coincident_stalls": 2}
    ]


def test_steps_are_evidence_by_their_numbers() -> None:
    """The number of the preempting step, and how late the last one was recorded. Numbers begin at 100 here."""
    steps = charged_steps(BASE, BASE, BASE, late_ms=[0, 0, 9])
    own = verdict("kv_pressure", {"kv_pressure": 20}, step_first=1, step_last=2, preempted=1)
    assert evidence_of(gap(10, 30, 10, 30), own, joined(steps))[0] == {
        "server_gap_us": 20_000,
        "preempted_step": 101,
        "record_late_us": 9_000,
    }


def test_work_of_other_ranks_is_evidence() -> None:
    """1: the step waited for it. 0: it may have, and the time counts as the host's. A preempted stream was in none of the steps."""
    steps, own = charged_steps(BASE, BASE, BASE, BASE, unsure=[2]), {"step_first": 1, "step_last": 2}
    waited = replace(steps, unsure=np.zeros(4, np.bool_))
    for cause, known, unknown in (("scheduling", 1, None), ("kv_pressure", 1, None), ("host", None, 0), ("front_end", None, None)):
        for charged, expected in ((waited, known), (steps, unknown)):
            found = evidence_of(gap(10, 30, 10, 30), verdict(cause, {cause: 20}, **own), joined(charged))[0]
            assert found.get("other_ranks") == expected
    evicted = verdict("kv_pressure", {"kv_pressure": 20}, **own, preempted=1)
    assert "other_ranks" not in evidence_of(gap(10, 30, 10, 30), evicted, joined(waited))[0]
    before = verdict("scheduling", {"scheduling": 20}, step_first=1, step_last=1)
    assert "other_ranks" not in evidence_of(gap(10, 30, 10, 30), before, joined(waited))[0]


def test_throttling_is_evidence_with_the_clock_that_was_seen() -> None:
    """The numbers are those of the step with the most throttling; without samples of the clock only the driver's time is known."""
    throttled = {"base": 10, "gpu_clock": 90}
    seen = throttling(3, known=True, hard_ms=5, mhz=900)
    seen.hard_ns[2] = 80 * MS
    seen.mhz[2] = 600
    steps = charged_steps(BASE, throttled, throttled, state=seen)
    own = verdict("gpu_clock", {"gpu_clock": 180}, step_first=1, step_last=2)
    numbers = evidence_of(gap(10, 210, 10, 210), own, joined(steps))[0]
    assert numbers["throttled_us"] == 80_000 and numbers["clock_mhz"] == 600 and "clock_usual_mhz" not in numbers
    blind = charged_steps(BASE, throttled, throttled, state=throttling(3, known=True, hard_ms=5))
    assert not {"clock_mhz", "clock_usual_mhz"} & set(evidence_of(gap(10, 210, 10, 210), own, joined(blind))[0])
    host = verdict("host", {"host": 1}, step_first=1, step_last=2)
    assert "throttled_us" not in evidence_of(gap(10, 210, 10, 210), host, joined(steps))[0]
    assert np.isnan(steps.usual_mhz)
