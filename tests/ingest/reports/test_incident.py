"""Tests of the page about an incident, with the answers of a store given; a real one is in `tests/ingest/cli/test_time_range.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from legato_ingest.quoting import Value
from legato_ingest.reports.incident import BAD, CHANGES, CHUNKING, WORST, IncidentQuery, fetch, render
from legato_ingest.reports.queries import BLAME, ENGINE_EVENTS, FIRST_TOKENS, JUDGED_STALLS

FROM_NS = 1_795_000_000 * 10**9
QUERY = IncidentQuery(FROM_NS, FROM_NS + 60 * 10**9, service="chat")
NONE: dict[str, list[dict[str, Any]]] = {JUDGED_STALLS: [{"stalls": 0, "judged": 0, "elsewhere": 0}], FIRST_TOKENS: [{}]}
BAD_ROW = {
    "service": "chat", "vantage": "client", "streams": "200", "bad": "50", "before": "40", "bad_before": "0", "since": "14:05",
    "minutes": "3", "users": "0", "gap_limits_us": ["400000"], "first_limits_us": ["2000000"],
}  # fmt: skip


def page(answers: dict[str, list[dict[str, Any]]]) -> str:
    """The page with these answers of a store."""

    def run(sql: str, parameters: Mapping[str, Value]) -> list[dict[str, Any]]:
        assert parameters["from_ns"] == FROM_NS and parameters["service"] == "chat"
        return {**NONE, **answers}.get(sql, [])

    return render(fetch(run, QUERY))


def test_a_time_without_streams() -> None:
    """A sentence instead of empty tables, and nothing changed."""
    text = page({})
    assert text.startswith("# Incident 2026-11-18 11:06:40 to 2026-11-18 11:07:40 UTC, chat\n")
    assert "No stream was recorded in this time." in text and "no new release" in text and "|" not in text and "Bad:" not in text
    assert "No stream was bad in this time." in page({BAD: [{**BAD_ROW, "bad": 0}]})


def test_the_page_has_what_broke_and_what_changed() -> None:
    """Shares with their numbers, the causes from 1 % of the time, changes of traffic and chunking, and the worst streams."""
    parts = {"host": 990_000_000, "kv_pressure": 1_000}
    blamed = {
        "cause": "host", "parts": parts, "stalls": 7, "streams": 5, "excess_us": 1, "caught_up_us": 0, "confidences": {}, "missing": {},
    }  # fmt: skip
    event = {
        "happened": "2026-11-18 11:07:00.123456",
        "engine_id": "e",
        "cause": "host",
        "responses": [],
        "step": 4,
        "streams": 5,
        "excess_us": 1,
    }
    worst = {
        "trace": "ab", "start": "11:07", "service": "chat", "vantage": "client", "model": "m", "outcome": "complete",
        "gap_max_us": "900000", "ttft_us": None,
    }  # fmt: skip
    chunking = {"service": "chat", "model": "m", "provider": "p", "changed": "11:00", "share_before": 0, "share_after": 0.5}
    changes = [{"what": "release", "service": "chat", "value": "2 | 3\x1b", "first_at": "11:06", "streams": 9}]
    text = page({BAD: [BAD_ROW], BLAME: [blamed], ENGINE_EVENTS: [event], WORST: [worst], CHUNKING: [chunking], CHANGES: changes})
    assert "Bad: a gap above 400 ms, a first output after 2.00 s, or an error." in text
    assert "| chat · client | 50 of 200 | 25.0 % | 0 % | unknown | 14:05 | 3 |" in text
    assert "| `host` |" in text and "| 990 ms | 99.99 % | 7 |" in text and "kv_pressure" not in text
    assert "no verdict" not in text
    assert "| 2026-11-18 11:07:00.123 | e | step 4 took longer than its work explains | 5 | 1 µs |" in text
    assert "| `ab` | 11:07 | chat · client | m | 900 ms | – | complete |" in text
    assert "- 11:06: new release `2 | 3\\u001b` of chat" in text and "- chat · client: 200 streams, 40 before" in text
    assert "- 11:00: chunking of p m, chunks with several tokens 0 % to 50 %" in text


def test_stalls_without_a_verdict_are_counted() -> None:
    """The shares of the causes are those of the judged stalls alone; also where none is judged."""
    blamed = {
        "cause": "host", "parts": {"host": 990_000_000}, "stalls": 3, "streams": 3, "excess_us": 1, "caught_up_us": 0, "confidences": {},
        "missing": {},
    }  # fmt: skip
    counts = {JUDGED_STALLS: [{**NONE[JUDGED_STALLS][0], "stalls": 40, "judged": 3}]}
    shares, _, rest = page({BAD: [BAD_ROW], BLAME: [blamed], **counts}).partition("37 of 40 stalls of 250 ms or more have no verdict: ")
    assert "| 990 ms | 100 % | 3 |" in shares and rest.startswith("open at the stream's end")
    counts = {JUDGED_STALLS: [{**NONE[JUDGED_STALLS][0], "stalls": 9, "judged": 0}]}
    text = page({BAD: [BAD_ROW], **counts})
    assert "9 of 9 stalls of 250 ms or more have no verdict: " in text and "## Causes" not in text


@pytest.mark.parametrize("name", ["https://evil.example/x", "WWW.evil.example", "@everyone", "fix #12", "a@b.example `c`"])
def test_a_hostile_name_is_no_link_and_no_mention(name: str) -> None:
    """GitHub and GitLab find addresses and mentions also where they are escaped, so such a name is code; others stay as they are."""
    code = f"`{name.replace('`', '´')}`"
    assert f"| {code} · client |" in page({BAD: [{**BAD_ROW, "service": name}]})


def test_an_entity_in_a_name_is_text() -> None:
    """Else Markdown makes a mention of it."""
    assert r"| \&commat;everyone \[x\] · client |" in page({BAD: [{**BAD_ROW, "service": "&commat;everyone [x]"}]})
