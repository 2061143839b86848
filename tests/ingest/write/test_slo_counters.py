"""SLO counters: the result of each stream that ended, by service and vantage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from helpers.builders.spans import SECOND_NS, native_span, request
from legato._timeline import pack
from legato_ingest.objectives import Objective
from legato_ingest.otlp.batch import Limits
from legato_ingest.otlp.convert import convert_spans
from legato_ingest.write.slo_counters import count_results

NOW_NS = 1_795_240_000 * SECOND_NS


def results(
    *streams: tuple[dict[str, Any], dict[str, Any]], service: str = "shop", objectives: Sequence[Objective] = ()
) -> list[tuple[str, str, str, int]]:
    """Return the counts of streams with these attributes and other fields of their span."""
    body = request({"service.name": service})
    for attributes, more in streams:
        native_span(body, attributes, start_ns=NOW_NS - 60 * SECOND_NS, **more)
    batch = convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits())
    assert batch.rejected.num_rows == 0
    return sorted(count_results(batch.revs, objectives))


def timeline(*times_ms: int) -> dict[str, bytes]:
    """Return the attribute of a timeline with text at these times."""
    return {"legato.stream.timeline": pack([time * 1000 for time in times_ms], [4] * len(times_ms))}


@pytest.mark.parametrize(
    ("attributes", "result"),
    [
        (timeline(100, 500), "good"),
        (timeline(100, 501), "gap"),
        (timeline(2000, 2100), "good"),
        (timeline(2001, 2100), "late"),
        ({**timeline(2001, 2100), "legato.stream.start_unknown": True}, "good"),
        ({**timeline(100, 501), "legato.stream.outcome": "timeout"}, "gap"),
        ({**timeline(1900, 2000), "legato.stream.outcome": "timeout"}, "error"),
        ({**timeline(1900, 2000), "legato.stream.outcome": "client_cancel"}, "good"),
        ({**timeline(100, 200), "legato.stream.outcome": "client_cancel"}, "gap"),
    ],
    ids=["400 ms", "401 ms", "2000 ms", "2001 ms", "unknown start", "gap before error", "error", "cancel", "cancel after a wait"],
)
def test_a_stream_has_the_first_result_that_applies(attributes: dict[str, Any], result: str) -> None:
    """Gap, error, late, good, in this order; the time before a cancel is a gap."""
    assert results((attributes, {"duration_ns": 2_200_000_000})) == [("shop", "client", result, 1)]


def test_a_stream_without_content_is_judged_by_its_duration() -> None:
    """Its first output would come after its end."""
    empty = {"legato.stream.timeline": pack([])}
    assert results((empty, {"duration_ns": 2 * SECOND_NS}), (empty, {"duration_ns": 2 * SECOND_NS + 1_000})) == [
        ("shop", "client", "good", 1),
        ("shop", "client", "late", 1),
    ]


def test_running_streams_and_those_without_a_timeline_are_not_counted() -> None:
    """Only an end with a timeline can be judged; the others are counted by service and vantage."""
    snapshot = {"legato.stream.outcome": "running", "legato.stream.span_id": "00f067aa0ba902b7", "legato.stream.rev": 1}
    server = {"legato.stream.vantage": "server"}
    found = results(
        (snapshot, {"name": "legato.stream.snapshot"}),
        ({}, {"drop": ["legato.stream.timeline"]}),
        ({}, {}),
        (server, {}),
        (server, {}),
    )
    assert found == [("shop", "client", "good", 1), ("shop", "server", "good", 2)]
    assert results() == []
