"""Tests of the text of a verdict."""

from __future__ import annotations

from typing import Any

from legato_ingest.cli.verdict_text import evidence_lines, why


def verdict(**more: Any) -> dict[str, Any]:
    """A verdict of a gap of 500 ms."""
    return {
        "gap_us": "500000", "parts": {"base": 10_000_000, "scheduling": 490_000_000}, "cause": "scheduling", "confidence": "strong",
        "step_first": "7", "step_last": "7", "missing": [], "culprit_responses": [], "evidence": {}, "excluded": {}, "error_us": 900,
        **more,
    }  # fmt: skip


def lines(**more: Any) -> list[str]:
    """The lines of its evidence."""
    return [line.plain for line in evidence_lines(verdict(**more))]


def test_the_line_has_parts_confidence_steps_and_requests() -> None:
    """Parts below 5 % of the gap are left out; one step, several, or none; the responsible request by its cause."""
    assert why(None) == "–"
    assert why(verdict()) == "scheduling 490 ms · strong · step 7"
    assert why(verdict(step_first=None, missing=["server", "engine"])) == "scheduling 490 ms · strong · without server and engine"
    assert why(verdict(step_last="9", culprit_responses=["a", "b", "c"])).endswith("steps 7 to 9 · prompt of a and 2 more")
    names = [f"{number}" for number in range(16)]
    assert why(verdict(step_last="9", culprit_responses=names)).endswith("prompt of 0 and at least 15 more")
    preempted = {"cause": "kv_pressure", "culprit_responses": ["a"]}
    assert why(verdict(**preempted)).endswith("recompute of a")
    assert why(verdict(**preempted, evidence={"preempted_step": "7"})).endswith("itself preempted")


def test_the_evidence_has_all_parts_and_facts() -> None:
    """One line of parts with the error, one of facts, one of exclusions; lines without contents are left out."""
    assert lines() == ["the longest (500 ms), in full:", "  parts: base 10.000 ms, scheduling 490.000 ms; each within 900 µs"]
    facts = {"hold_us": "1000", "throttled_us": "200000", "clock_mhz": "900", "clock_usual_mhz": "1700", "unread": "1", "buffered": "0"}
    found = lines(evidence={**facts, "caught_up_percent": "80", "coincident_stalls": "3"}, excluded={"host": "no wait", "base": "long"})
    assert found[2] == (
        "  evidence: the application held the chunk for 1.0 ms; 80 % of the missing chunks arrived right behind the gap; "
        "3 other streams had the same gap at the same moment with this cause; no usual release of a buffer ended the gap; "
        "data lay unread in the client's socket; the driver throttled a GPU for 200 ms, down to 900 MHz of 1,700 MHz"
    )
    assert found[3] == "  excluded: host: no wait; base: long"


def test_the_kernels_counters_have_their_period() -> None:
    """Waiting and stolen CPU time, each with the period that was counted."""
    found = lines(evidence={"cpu_wait_us": "500000", "cpu_wait_of_us": "1000000", "cpu_stolen_us": "20000", "cpu_stolen_of_us": "2000000"})
    assert "ready without a CPU for 500 ms in total in the 1.00 s around it" in found[2]
    assert "CPU time of 20 ms in total was stolen in the 2.00 s around it" in found[2]
