"""Spans of Legato's own emitters: base64 timelines and snapshots."""

from __future__ import annotations

import base64
from typing import Any

from helpers.builders.spans import SECOND_NS, native_span, request, steady_timeline
from legato_ingest.otlp.attributes import Attributes, attribute_map
from legato_ingest.otlp.batch import Limits
from legato_ingest.otlp.convert import convert_spans
from legato_ingest.otlp.emitters import native

NOW_NS = 1_795_240_000 * SECOND_NS


def only_row(attributes: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the row of a native span with these attributes."""
    body = request()
    native_span(body, attributes, start_ns=NOW_NS - 60 * SECOND_NS, **more)
    (row,) = convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits()).revs.to_pylist()
    return dict(row)


def test_a_timeline_may_be_sent_as_base64() -> None:
    """An SDK that cannot send bytes sends the same bytes in base64."""
    assert only_row({"legato.stream.timeline": base64.b64encode(steady_timeline()).decode()})["chunks"] == 20


def test_a_snapshot_is_a_rev_of_its_stream() -> None:
    """Its row has the span id of the stream, is not ended, and holds the time until the next snapshot."""
    row = only_row(
        {
            "legato.stream.outcome": "running",
            "legato.stream.span_id": "00f067aa0ba902b7",
            "legato.stream.rev": 2,
            "legato.stream.next_due": 90.0,
        },
        name="legato.stream.snapshot",
    )
    assert row["span_id"].hex() == "00f067aa0ba902b7"
    assert (row["rev"], row["ended"], row["outcome"], row["next_due_us"]) == (2, False, "running", 90_000_000)
    assert row["gap_open_us"] is None


def test_reads_above_the_network_are_flagged_as_unknown() -> None:
    """A stream that was recorded at an iterator has chunks and no reads."""
    assert only_row({"legato.stream.transport": "iterator"})["flags"] == ["reads_unknown"]


def test_a_span_without_a_vantage_is_not_of_this_family() -> None:
    """The vantage has to be an attribute of the span itself."""
    body = request(scope={"legato.stream.vantage": "client"})
    span = native_span(body, drop=["legato.stream.vantage"])
    outer = attribute_map(body.resource_spans[0].scope_spans[0].scope.attributes)
    assert native.convert(span, Attributes(attribute_map(span.attributes), outer)) is None
