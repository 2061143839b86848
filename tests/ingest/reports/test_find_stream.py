"""Tests of finding a stream by an id, with the answers of a store given. `tests/ingest/cli/test_read.py` finds streams in a real one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from legato_ingest.quoting import Value
from legato_ingest.reports.find_stream import RECORDINGS_MAX, NoSuchStream, Recordings, find_stream, requests_of

MINUTE_NS = 60 * 10**9
FULL = "4bf92f3577b34da6a3ce929d0e0e4736"


class Answers:
    """A store with these matches and recordings; it keeps the parameters that it was asked with."""

    def __init__(self, matches: list[dict[str, Any]], rows: list[dict[str, Any]] | None = None) -> None:
        self.matches, self.rows = matches, rows or []
        self.asked: list[Mapping[str, Value]] = []

    def __call__(self, sql: str, parameters: Mapping[str, Value]) -> list[dict[str, Any]]:
        """Answer a query."""
        self.asked.append(parameters)
        return self.matches if "FROM stream_revs" in sql else self.rows


def match(trace: str, response: str = "", at_ns: int = 0, is_one: int = 0, tenant: str = "t") -> dict[str, Any]:
    """A trace and response that the id matches."""
    return {"tenant": tenant, "trace": trace, "response_id": response, "is_one": is_one, "first_ns": str(at_ns), "last_ns": str(at_ns)}


def row(trace: str, response: str = "", at_ns: int = 0) -> dict[str, Any]:
    """A recording."""
    return {"tenant": "t", "trace": trace, "span": "s", "response_id": response, "start_ns": str(at_ns), "outcome": "complete"}


def test_a_trace_id_is_looked_up_by_its_index_first() -> None:
    """In either case and with hyphens; a name that is no hexadecimal number is no part of a trace id."""
    answers = Answers([match(FULL, "r")], [row(FULL, "r")])
    assert find_stream(answers, f" {FULL.upper()} ") == Recordings([{**row(FULL, "r"), "silence": None}], is_cut=False, earlier_traces=[])
    assert answers.asked[0] == {"id": FULL}
    assert answers.asked[1] == {"tenant": "t", "traces": [FULL], "responses": ["r"], "first_ns": 0, "last_ns": 0}
    for given, is_hex in (("4BF9-2f35", 1), ("resp_1", 0), ("4bf92f3", 0)):
        answers = Answers([match("t")], [row("t")])
        find_stream(answers, given)
        assert answers.asked[0] == {"id": given.lower().replace("-", ""), "given": given, "hex": is_hex}


def test_ids_of_no_or_several_streams() -> None:
    """The message has the id, or the first five traces."""
    with pytest.raises(NoSuchStream, match="no stream has the id 'x'"):
        find_stream(Answers([]), "x")
    with pytest.raises(NoSuchStream, match=r"6 traces start with abcdabcd: 0, 1, 2, 3, 4 …; give more digits"):
        find_stream(Answers([match(str(number)) for number in range(6)]), "abcdabcd")


def test_a_response_id_selects_the_newest_stream_and_recordings_without_one() -> None:
    """Other calls of the trace, and the same id a minute earlier, are left out; their traces are named."""
    rows = [row("a", "r"), row("a", "other"), row("a"), row("b", "r", MINUTE_NS), row("c", "r", MINUTE_NS + 1)]
    matches = [match("a", "r", 10 * MINUTE_NS, 1), match("old", "r", 0, 1)]
    answers = Answers(matches, [{**each, "start_ns": int(each["start_ns"]) + 10 * MINUTE_NS} for each in rows])
    found = find_stream(answers, "r")
    assert [(each["trace"], each["response_id"]) for each in found.rows] == [("a", "r"), ("a", ""), ("b", "r")]
    assert found.earlier_traces == ["old"] and answers.asked[-1]["traces"] == ["a"]


def test_of_several_tenants_with_an_id_the_reader_chooses_one() -> None:
    """The others may have copied it, with any times and earlier or later; a tenant before the id is no part of it."""
    matches = [match("a", "r", MINUTE_NS, tenant="honest"), *(match("a", f"q{at}", at, tenant="copy") for at in range(9))]
    for given in (matches, matches[::-1], [{**each, "is_one": 1} for each in matches]):
        with pytest.raises(
            NoSuchStream, match=r"2 tenants have recordings with the id abcd: 'copy', 'honest'; give one of them, as copy:abcd"
        ):
            find_stream(Answers(given), "abcd")
    answers = Answers(matches, [row("a", "r", MINUTE_NS)])
    assert len(find_stream(answers, "honest:abcd").rows) == 1
    assert answers.asked[0]["id"] == "abcd"
    assert answers.asked[-1]["tenant"] == "honest" and answers.asked[-1]["responses"] == ["r"]
    with pytest.raises(NoSuchStream, match="2 traces start with abcdabcd"):
        find_stream(Answers([match("a"), match("b", tenant="other")]), "abcdabcd")


def test_recordings_that_expire_meanwhile_are_named() -> None:
    """Between the search for the id and the reading of its recordings."""
    with pytest.raises(NoSuchStream, match="the recordings of a expired while they were read"):
        find_stream(Answers([match("a")]), "a")


def test_a_long_trace_is_cut() -> None:
    """There may be more than the query returns."""
    found = find_stream(Answers([match("a")], [row("a")] * RECORDINGS_MAX), "a")
    assert found.is_cut and len(found.rows) == RECORDINGS_MAX


def test_requests_are_by_response() -> None:
    """Without a response id there is nothing to ask for."""
    answers = Answers([], [{"response_id": "r", "queued_us": 7}])
    assert requests_of(answers, [row("a", "r"), row("b", "r"), row("c")]) == {"r": {"response_id": "r", "queued_us": 7}}
    assert answers.asked == [{"tenant": "t", "responses": ["r"]}] and requests_of(answers, [row("c")]) == {} and len(answers.asked) == 1
