"""Tests of the sums and words of blame. `tests/ingest/cli/test_causes.py` has its queries on a real store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from legato_ingest.quoting import Value
from legato_ingest.reports.blame import BlameQuery, as_json, charged_us, event_of, fetch
from legato_ingest.reports.queries import BLAME, BUT_FOR, FIRST_TOKENS, JUDGED_STALLS

MS = 1_000_000


def cause(name: str, parts: dict[str, int | str], **more: Any) -> dict[str, Any]:
    """A row of a main cause."""
    return {
        "cause": name,
        "parts": parts,
        "stalls": 2,
        "streams": 1,
        "excess_us": 9,
        "caught_up_us": "0",
        "confidences": {},
        "missing": {},
        **more,
    }


ANSWERS: dict[str, list[dict[str, Any]]] = {
    JUDGED_STALLS: [{"stalls": None, "judged": "3", "elsewhere": None}],
    FIRST_TOKENS: [{"split_streams": 0}],
    BLAME: [cause("host", {"base": 50 * MS, "host": 3 * MS, "scheduling": str(4 * MS)}), cause("delivery", {})],
    BUT_FOR: [{"cause": "", "streams": 1, "stalls": 2, "stalled_us": 7}, {"cause": "host", "stalls": 1}],
}


def run(sql: str, parameters: Mapping[str, Value]) -> list[dict[str, Any]]:
    """The answers of a store."""
    assert parameters["since_s"] == 3_600 and parameters["vantage"] == ""
    return ANSWERS.get(sql, [])


def test_time_is_charged_to_all_causes_of_a_stall() -> None:
    """The healthy part is left out; the largest cause is first."""
    assert charged_us(fetch(run, BlameQuery())) == {"scheduling": 4_000, "host": 3_000}


def test_data_has_causes_without_a_stall_and_stalls_without_time() -> None:
    """Ordered by charged time, then those that charge nothing; the counterfactual where there is one."""
    found = as_json(fetch(run, BlameQuery()))
    assert [(each["cause"], each["charged_us"], each["stalls"]) for each in found["causes"]] == [
        ("scheduling", 4_000, 0),
        ("host", 3_000, 2),
        ("delivery", 0, 2),
    ]
    assert [each["without"] for each in found["causes"]] == [None, {"stalls": 1}, None]
    assert found["replayed"] == {"streams": 1, "stalls": 2, "stalled_us": 7}
    assert (found["stalls_250ms"], found["stalls_250ms_judged"], found["stalls"], found["excess_us"]) == (0, 3, 4, 18)


def test_events_are_in_words() -> None:
    """By cause, with the first two requests."""
    event = {
        "responses": ["a", "b", "c"],
        "cause": "scheduling",
        "prefill_tokens": 1_500,
        "stalls": 3,
        "own": 1,
        "recompute_tokens": 70,
        "step": 4,
    }
    assert event_of(event) == "1,500 prompt tokens prefilled: a, b and 1 more"
    assert event_of({**event, "cause": "kv_pressure"}) == "preempted: a, b and 1 more; recompute of 70 tokens"
    assert event_of({**event, "cause": "kv_pressure", "own": 0, "responses": ["a"]}) == "recompute of 70 tokens: a"
    assert event_of({**event, "cause": "front_end"}) == "the front end did not send after step 4"
    assert event_of({**event, "cause": "host"}) == "step 4 took longer than its work explains"
