"""Spans of Legato's own emitters: base64 timelines and snapshots."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from helpers.builders.spans import SECOND_NS, native_span, request, steady_timeline
from legato_ingest.otlp.attributes import Attributes, attribute_map
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_spans
from legato_ingest.otlp.emitters import native
from legato_ingest.otlp.model import REV_MAX

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


def test_the_highest_rev_has_a_next_one() -> None:
    """A stored row steps back with the next rev, so the last one of 32 bits is no rev of a sender."""
    assert only_row({"legato.stream.rev": REV_MAX})["rev"] == REV_MAX == 2**32 - 2
    body = request()
    native_span(body, {"legato.stream.rev": REV_MAX + 1}, start_ns=NOW_NS)
    batch = convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits())
    assert (batch.revs.num_rows, batch.rejected["reason"].to_pylist()) == (0, ["attribute"])


def test_reads_above_the_network_are_flagged_as_unknown() -> None:
    """A stream that was recorded at an iterator has chunks and no reads."""
    assert only_row({"legato.stream.transport": "iterator"})["flags"] == ["reads_unknown"]


def test_times_from_an_unknown_start_are_unknown() -> None:
    """A stream that starts after its request has gaps, and neither TTFB nor TTFT nor TTFO, whatever the span says."""
    known = only_row({"legato.stream.ttfb": 0.1})
    row = only_row({"legato.stream.start_unknown": True, "legato.stream.ttfb": 0.1, "gen_ai.response.time_to_first_chunk": 0.2})
    assert row["flags"] == ["start_unknown"] and (row["ttfb_us"], row["ttft_us"], row["ttfo_us"]) == (None, None, None)
    assert row["gaps"] == known["gaps"] and row["content_chunks"] == known["content_chunks"] and known["ttft_us"] is not None
    row = only_row({"legato.stream.start_unknown": False})
    assert row["flags"] == [] and (row["ttft_us"], row["ttfo_us"]) == (known["ttft_us"], known["ttfo_us"])


def test_a_span_without_a_vantage_is_not_of_this_family() -> None:
    """The vantage has to be an attribute of the span itself."""
    body = request(scope={"legato.stream.vantage": "client"})
    span = native_span(body, drop=["legato.stream.vantage"])
    outer = attribute_map(body.resource_spans[0].scope_spans[0].scope.attributes)
    assert native.convert(span, Attributes(attribute_map(span.attributes), outer)) is None


@pytest.mark.parametrize(
    ("resource", "column", "expected"),
    [
        ({"service.version": 1.2}, "service_version", "1.2"),
        ({"service.version": 7}, "service_version", "7"),
        ({"service.name": 42}, "service_name", "42"),
        ({"service.name": [1]}, "service_name", ""),
        ({"server.port": "8080"}, "server_port", 8080),
        ({"http.route": False}, "route", ""),
    ],
)
def test_no_value_of_the_resource_rejects_a_stream(resource: dict[str, Any], column: str, expected: Any) -> None:
    """A version without quotes in a Collector's YAML is a number, and would reject each stream of the service for good."""
    body = request(resource)
    native_span(body, drop=[next(iter(resource))], start_ns=NOW_NS - 60 * SECOND_NS)
    batch = convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits())
    assert batch.rejected.num_rows == 0
    assert [row[column] for row in batch.revs.to_pylist()] == [expected]


def test_a_report_about_a_silence_survives_a_number_in_its_resource() -> None:
    """Its service's name is read as that of the stream's row is."""
    body = request({"service.name": 42})
    span = native_span(body, {"legato.stream.silent_since": 9}, start_ns=NOW_NS - 60 * SECOND_NS)
    span.parent_span_id = b"p" * 8
    (row,) = convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits()).silences.to_pylist()
    assert row["service_name"] == "42"


def silence(attributes: dict[str, Any], **more: Any) -> Batch:
    """Return the rows of a report about a silent stream."""
    body = request({"service.name": "shop"})
    span = native_span(body, attributes, start_ns=NOW_NS - 60 * SECOND_NS, duration_ns=30 * SECOND_NS, name="legato.stream.silence")
    keep = {"gen_ai.request.model", *attributes}
    for attribute in [each for each in span.attributes if each.key not in keep]:
        span.attributes.remove(attribute)
    span.parent_span_id = more.pop("parent", b"p" * 8)
    for name, value in more.items():
        setattr(span, name, value)
    return convert_spans(body, tenant="t", now_ns=NOW_NS, limits=Limits())


def test_a_report_about_a_silent_stream_is_a_row() -> None:
    """It has the stream's ids and start; the kind of the span distinguishes client and server."""
    (row,) = silence({"legato.stream.silent_since": 28_000_000}).silences.to_pylist()
    assert (row["tenant"], row["span_id"], row["vantage"], row["service_name"], row["model"]) == (
        "t",
        b"p" * 8,
        "client",
        "shop",
        "model-a",
    )
    assert (row["gap_start_us"], row["silence_us"], row["resumed"], row["next_due_us"]) == (28_000_000, 2_000_000, False, 0)
    assert row["recorded_at"].value - row["start_time"].value == 30 * SECOND_NS
    (row,) = silence({"legato.stream.silent_since": 28_000_000, "legato.stream.next_due": 36.25}).silences.to_pylist()
    assert row["next_due_us"] == 36_250_000
    given = {"legato.stream.silent_since": 9, "legato.stream.resumed": True, "legato.engine.id": "e"}
    (row,) = silence(given, kind=Span.SPAN_KIND_SERVER).silences.to_pylist()
    assert (row["vantage"], row["resumed"], row["engine_id"]) == ("server", True, "e")
    (row,) = silence({"legato.stream.silent_since": 9, "legato.stream.vantage": "gateway"}, kind=Span.SPAN_KIND_SERVER).silences.to_pylist()
    assert row["vantage"] == "gateway"


@pytest.mark.parametrize(
    ("attributes", "more"),
    [
        ({"legato.stream.silent_since": -1}, {}),
        ({"legato.stream.silent_since": 30_000_001}, {}),
        ({"legato.stream.silent_since": "long"}, {}),
        ({"legato.stream.silent_since": 1, "legato.stream.resumed": "yes"}, {}),
        ({"legato.stream.silent_since": 1, "legato.stream.next_due": -0.5}, {}),
        ({"legato.stream.silent_since": 1, "legato.stream.next_due": "soon"}, {}),
        ({"legato.stream.silent_since": 1, "legato.stream.vantage": "moon"}, {}),
        ({"legato.stream.silent_since": 1}, {"parent": b""}),
        ({"legato.stream.silent_since": 1}, {"trace_id": b"short"}),
        ({"legato.stream.silent_since": 1}, {"end_time_unix_nano": 5}),
    ],
)
def test_a_wrong_report_is_rejected(attributes: dict[str, Any], more: dict[str, Any]) -> None:
    """It becomes a row of `rejected`, and nothing else."""
    batch = silence(attributes, **more)
    assert (batch.silences.num_rows, batch.revs.num_rows, batch.rejected.num_rows, batch.spans) == (0, 0, 1, 1)
