"""JSON to messages: the messages of protobuf's own mapping, the leniencies of OTLP/JSON, and faults that name a place and no value."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint, Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from helpers.builders.json_otlp import json_of, messages
from helpers.platform.examples import examples
from legato_ingest.otlp.json_message import DEPTH_MAX, Fault, Filler
from legato_ingest.otlp.signals import SIGNALS, Signal

SPAN, VALUE, POINT = Filler(Span.DESCRIPTOR, ()), Filler(AnyValue.DESCRIPTOR, ()), Filler(HistogramDataPoint.DESCRIPTOR, ())


def filled(filler: Filler, message: Message, value: Any) -> Any:
    """Fill a message that has no isolating fields, and return it."""
    assert filler.fill(message, value) == []
    return message


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.item)
@given(data=st.data())
@examples(60)
def test_any_request_survives_the_way_through_json(signal: Signal, data: st.DataObject) -> None:
    """The message is equal to the one that protobuf's own mapping wrote, for any fields of any signal."""
    message = data.draw(messages(signal.request.DESCRIPTOR))
    assert filled(Filler(signal.request.DESCRIPTOR, signal.isolating), signal.request(), json.loads(json_of(message))) == message


def test_what_senders_vary_is_accepted() -> None:
    """Integers as numbers or texts, ids in any case, enums by number or name, both spellings of a field, null and unknown fields."""
    span = filled(
        SPAN,
        Span(),
        {
            "traceId": "5B8EFFF798038103D269B633813FC60c",
            "parent_span_id": "eee19b7ec3c1b174",
            "startTimeUnixNano": 1544712660000000000,
            "end_time_unix_nano": "1544712661000000000",
            "kind": "SPAN_KIND_CLIENT",
            "status": {"code": 2, "message": None},
            "flags": 257.0,
            "events": [{"timeUnixNano": "1e3"[:1], "name": "x", "soon": {"a": [1]}}],
            "links": [{"spanId": "EEE19B7EC3C1B174"}],
            "attributes": [{"key": "empty", "value": {}}, {"key": "bytes", "value": {"bytesValue": "-_8"}}],
            "resource": "unknown",
        },
    )
    assert span.trace_id.hex() == "5b8efff798038103d269b633813fc60c" and span.parent_span_id == span.links[0].span_id
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (1544712660000000000, 1544712661000000000)
    assert (span.kind, span.status.code, span.flags) == (3, 2, 257)
    assert span.attributes[0].HasField("value") and span.attributes[1].value.bytes_value == b"\xfb\xff"
    assert filled(SPAN, Span(), {"kind": "SPAN_KIND_OF_THE_FUTURE"}).kind == 0
    point = filled(POINT, HistogramDataPoint(), {"explicitBounds": ["Infinity", 1, "2.5e0"], "bucketCounts": [1, "2"], "min": "NaN"})
    assert list(point.explicit_bounds) == [math.inf, 1, 2.5] and list(point.bucket_counts) == [1, 2] and math.isnan(point.min)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ([], "expected an object, found an array"),
        ({"name": 5}, "name: expected a text, found an integer"),
        ({"traceId": "Zm9vYmFy!"}, "traceId: expected hexadecimal digits, found a text of 9 characters"),
        ({"traceId": "é" * 32}, "traceId: expected hexadecimal digits, found a text of 32 characters"),
        ({"traceId": 12}, "traceId: expected hexadecimal digits, found an integer"),
        ({"startTimeUnixNano": -1}, "startTimeUnixNano: a number that is out of range"),
        ({"startTimeUnixNano": 2**64}, "startTimeUnixNano: a number that is out of range"),
        ({"startTimeUnixNano": 1e300}, "startTimeUnixNano: expected an integer of at most 64 bits, found a number"),
        (
            {"startTimeUnixNano": "9" * 10**6},
            "startTimeUnixNano: expected an integer of at most 64 bits, found a text of 1000000 characters",
        ),
        ({"startTimeUnixNano": "1_0"}, "startTimeUnixNano: expected an integer of at most 64 bits, found a text of 3 characters"),
        ({"startTimeUnixNano": "٣"}, "startTimeUnixNano: expected an integer of at most 64 bits, found a text of 1 characters"),
        ({"startTimeUnixNano": True}, "startTimeUnixNano: expected an integer of at most 64 bits, found a boolean"),
        ({"flags": 2**32}, "flags: a number that is out of range"),
        ({"kind": 2**31}, "kind: a number that is out of range"),
        ({"kind": []}, "kind: expected an integer of at most 64 bits, found an array"),
        ({"attributes": {"a": 1}}, "attributes: expected an array, found an object"),
        ({"attributes": [{}, None]}, "attributes[1]: expected an object, found null"),
        (
            {"attributes": [{"key": "a", "value": {"intValue": "secret"}}]},
            "attributes[0].value.intValue: expected an integer of at most 64 bits, found a text of 6 characters",
        ),
        (
            {"attributes": [{"value": {"doubleValue": "nan"}}]},
            "attributes[0].value.doubleValue: expected a number, found a text of 3 characters",
        ),
        (
            {"attributes": [{"value": {"bytesValue": "a b"}}]},
            "attributes[0].value.bytesValue: expected a text in base64, found another text of 3 characters",
        ),
        (
            {"attributes": [{"value": {"boolValue": "true"}}]},
            "attributes[0].value.boolValue: expected true or false, found a text of 4 characters",
        ),
    ],
)
def test_a_fault_names_place_and_kinds_and_no_value(value: Any, fault: str) -> None:
    """What was found, what was expected, and where; texts are described by their length."""
    with pytest.raises(Fault) as error:
        SPAN.fill(Span(), value)
    assert str(error.value) == fault


def test_depth_is_bounded() -> None:
    """Values nested up to the limit are accepted, and any depth beyond it is a fault."""

    def nested(levels: int) -> dict[str, Any]:
        value: dict[str, Any] = {"intValue": "1"}
        for _ in range(levels):
            value = {"arrayValue": {"values": [value]}}
        return value

    deep = filled(VALUE, AnyValue(), nested(DEPTH_MAX // 2 - 1))
    assert AnyValue.FromString(deep.SerializeToString()) == deep
    for levels in (DEPTH_MAX // 2, 300):
        with pytest.raises(Fault, match=f"nested deeper than {DEPTH_MAX} messages"):
            VALUE.fill(AnyValue(), nested(levels))


def test_a_bad_element_of_an_isolating_field_is_left_out() -> None:
    """With the elements around it; a fault outside of them refuses the message. An item that is refused as a whole counts once."""
    descriptor = ExportTraceServiceRequest.DESCRIPTOR
    filler, message = Filler(descriptor, ("opentelemetry.proto.trace.v1.ScopeSpans.spans",)), ExportTraceServiceRequest()
    scope = {"spans": [{"name": "a"}, {"name": 1}, {"name": "b", "attributes": [{"value": {"kvlistValue": {"values": 3}}}]}, {"name": "c"}]}
    refused = filler.fill(message, {"resourceSpans": [{"scopeSpans": [scope]}]})
    assert [each.name for each in message.resource_spans[0].scope_spans[0].spans] == ["a", "c"]
    assert [each.item["name"] for each in refused] == [1, "b"]
    assert refused[1].detail == "attributes[0].value.kvlistValue.values: expected an array, found an integer"
    with pytest.raises(Fault, match=r"resourceSpans\[0\].resource: expected an object, found a boolean"):
        filler.fill(ExportTraceServiceRequest(), {"resourceSpans": [{"resource": True}]})
    metrics = Filler(Metric.DESCRIPTOR, ("opentelemetry.proto.metrics.v1.Gauge.data_points",))
    assert [each.detail for each in metrics.fill(Metric(), {"gauge": {"dataPoints": [{"asInt": "x"}, {"asInt": "1"}]}})] == [
        "asInt: expected an integer of at most 64 bits, found a text of 1 characters"
    ]
