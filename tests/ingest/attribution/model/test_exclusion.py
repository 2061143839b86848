"""Causes that records exclude: each observation on one gap. A missing vantage excludes nothing."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from helpers.builders.attribution import MS, charged_steps, client_gap, gap, joined, throttling, verdict
from legato_ingest.attribution.model import exclusion
from legato_ingest.attribution.model.exclusion import excluded_by_records
from legato_ingest.attribution.model.gaps import Gaps
from legato_ingest.attribution.model.steps import ChargedSteps
from legato_ingest.attribution.model.verdicts import Verdicts
from legato_ingest.causes import CORE, Rule, excluded_when

BASE = {"base": 10}
ERROR = np.array([MS])
PATH = {"coalescing", "connection", "slow_reader"}


def excluded(gaps: Gaps, verdicts: Verdicts, steps: ChargedSteps | None = None) -> dict[str, str]:
    """Return the excluded causes of one gap, with an error of 1 ms."""
    (found,) = excluded_by_records(gaps, verdicts, ERROR, joined(steps))
    return found


def engine(*, state: Any = None, preempted: Any = (), **part: Any) -> tuple[Gaps, ChargedSteps]:
    """Return a gap over the second of three steps, which has this part in addition to its base."""
    steps = charged_steps(BASE, {"base": 10, **part}, BASE, preempted=preempted, state=state)
    return gap(10, 20 + sum(part.values()), 10, 20 + sum(part.values())), steps


def test_a_server_that_sent_in_time_excludes_the_engine() -> None:
    """All causes of the engine and its front end are excluded; the network path is left."""
    seen = gap(0, 400, 0, 20, buffered=False, socket_known=True)
    reasons = excluded(seen, verdict("connection", {"base": 20, "connection": 380}))
    assert {name for name, reason in reasons.items() if reason == "the server sent the chunk in time"} == {*CORE, "front_end"}
    assert reasons["coalescing"] == "no usual release of a buffer ended the gap"
    assert reasons["slow_reader"] == "no data lay unread in the socket"
    assert "connection" not in reasons


@pytest.mark.parametrize("cause", CORE)
def test_steps_exclude_what_they_did_not_contain(cause: str) -> None:
    """With samples of the GPUs all other causes of the core are excluded, and the front end, which sent at once."""
    seen, steps = engine(**{cause: 300}, state=throttling(3, known=True))
    reasons = excluded(seen, verdict(cause, {"base": 10, cause: 300}, step_first=1, step_last=1), steps)
    assert set(reasons) >= {*CORE, "front_end"} - {cause} and cause not in reasons
    assert reasons.get("front_end") == "the output was sent as soon as its step was over"


def test_clocks_are_excluded_only_where_samples_show_them() -> None:
    """Not without samples, and not with throttling in a step."""
    own = verdict("host", {"base": 10, "host": 300}, step_first=1, step_last=1)
    for state, is_excluded in ((None, False), (throttling(3, known=True, hard_ms=1), False), (throttling(3, known=True), True)):
        seen, steps = engine(host=300, state=state)
        assert ("gpu_clock" in excluded(seen, own, steps)) == is_excluded


def test_a_preemption_in_its_steps_excludes_no_preemption() -> None:
    """The preemption may be of another request. A preempted stream was in none of its steps, so they exclude nothing."""
    seen, steps = engine(host=300, preempted=(1,))
    reasons = excluded(seen, verdict("host", {"base": 10, "host": 300}, step_first=1, step_last=1), steps)
    assert "kv_pressure" not in reasons and reasons["scheduling"] == "no prefill in its steps"
    own = verdict("kv_pressure", {"kv_pressure": 310}, step_first=1, step_last=1, preempted=1)
    assert not set(CORE) & set(excluded(seen, own, steps))


def test_the_work_of_another_rank_excludes_no_work() -> None:
    """The step may have waited for the other rank."""
    seen, _ = engine(host=300)
    steps = charged_steps(BASE, {"base": 10, "host": 300}, BASE, unsure=[1])
    own = verdict("host", {"base": 10, "host": 300}, step_first=1, step_last=1)
    assert not {"scheduling", "kv_pressure"} & set(excluded(seen, own, steps))


def test_an_immediate_delivery_excludes_the_path() -> None:
    """Within the error, and not if the server's times were concluded from the steps."""
    own = verdict("generation", {"base": 20, "generation": 380})
    assert set(excluded(gap(0, 400, 0, 400), own)) == PATH
    assert excluded(gap(0, 400, 0, 400, server_error_ns=20), own) == {"coalescing": "no usual release of a buffer ended the gap"}
    late = verdict("generation", {"base": 20, "generation": 370, "connection": 10})
    assert set(excluded(gap(0, 400, 0, 390), late)) == {"coalescing"}


def test_a_buffer_and_unread_data_exclude_the_connection() -> None:
    """Each with its observation as the reason."""
    coalesced = verdict("coalescing", {"base": 20, "coalescing": 380})
    assert excluded(gap(0, 400, 0, 20, buffered=True), coalesced)["connection"] == "the stream passed through a buffer"
    unread = verdict("slow_reader", {"base": 20, "slow_reader": 380})
    reasons = excluded(gap(0, 400, 0, 20, unread=True, socket_known=True), unread)
    assert reasons["connection"] == "the data lay unread in the socket" and "slow_reader" not in reasons


@pytest.mark.parametrize(("hold_us", "known", "is_excluded"), [(0, True, True), (64, True, True), (65, True, False), (0, False, False)])
def test_an_application_without_a_hold_is_excluded(hold_us: int, known: bool, is_excluded: bool) -> None:
    """Up to the resolution of a hold. Without recorded holds nothing is excluded."""
    own = verdict("unknown", {"unknown": 400})
    assert ("consumer" in excluded(client_gap(400, hold_ns=hold_us / 1000, hold_known=known), own)) == is_excluded


@pytest.mark.parametrize(
    ("caught_up", "expected"), [(0.0, {"delivery"}), (0.25, {"delivery"}), (0.3, set()), (0.5, {"generation"}), (np.nan, set())]
)
def test_the_client_alone_excludes_a_side(caught_up: float, expected: set[str]) -> None:
    """The one that its own record contradicts."""
    assert set(excluded(client_gap(400, caught_up), verdict("unknown", {"unknown": 400}))) == expected


def test_a_cause_with_a_part_is_never_excluded() -> None:
    """A part beyond the error counts; a smaller part is noise."""
    own = {"base": 20, "connection": 379}
    assert "scheduling" not in excluded(gap(0, 400, 0, 20), verdict("connection", {**own, "scheduling": 2}))
    assert "scheduling" in excluded(gap(0, 400, 0, 20), verdict("connection", {**own, "scheduling": 1}))


def test_every_rule_of_the_table_is_observed_somewhere() -> None:
    """A rule without an observation would exclude nothing. Two rules are observed in scraped metrics."""

    nothing = (client_gap(400), verdict("unknown", {"unknown": 400}), ERROR)
    observed = {*exclusion._of_steps(*nothing, joined(None)), *exclusion._of_delivery(*nothing)}
    assert observed | {"counter still", "intervals short"} == set(get_args(Rule))
    assert all(excluded_when(rule) for rule in get_args(Rule))
