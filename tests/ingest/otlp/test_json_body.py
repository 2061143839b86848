"""OTLP/JSON bodies: the rows of the same request in protobuf, faults that cost one item, and hostile text."""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.converted import convert_body
from helpers.builders.json_otlp import json_of
from helpers.builders.points import gauge, histogram, metrics_request
from helpers.builders.spans import native_span, request
from helpers.platform.examples import examples
from legato_ingest.errors import BadRequest, TooLarge
from legato_ingest.otlp import json_body
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.json_body import to_protobuf
from legato_ingest.otlp.json_message import REFUSED_MAX
from legato_ingest.otlp.signals import LOGS, POINTS, SPANS, Signal

NOW_NS = time.time_ns()


def rows(content: bytes, signal: Signal = SPANS) -> Batch:
    """Return the rows of a body in protobuf."""
    return convert_body(content, tenant="", now_ns=NOW_NS, limits=Limits(), on_fault=lambda error: pytest.fail(repr(error)), signal=signal)


def span_json(**fields: Any) -> dict[str, Any]:
    """Return a request with two good spans around one with these fields."""
    body = request()
    for _ in range(3):
        native_span(body, start_ns=NOW_NS)
    document: dict[str, Any] = json.loads(json_of(body))
    document["resourceSpans"][0]["scopeSpans"][0]["spans"][1].update(fields)
    return document


@given(
    st.lists(st.sampled_from([{}, {"legato.stream.ttfb": -1.0}, {"legato.stream.timeline": b"\xff"}, {"gen_ai.request.model": "ü\n\0"}]))
)
@examples(15)
def test_spans_in_json_have_the_rows_of_protobuf(attributes: list[dict[str, Any]]) -> None:
    """Every table is equal, that of rejections included."""
    body = request()
    for each in attributes:
        native_span(body, each, start_ns=NOW_NS)
    content, refused = to_protobuf(json_of(body), SPANS, "")
    assert rows(content) == rows(body.SerializeToString()) and refused == Batch()


def test_points_in_json_have_the_rows_of_protobuf() -> None:
    """Numbers and histograms, with an exemplar that has ids."""
    body = metrics_request({"host.name": "h"})
    gauge(body, "a", 1.5, NOW_NS, attributes={"k": True})
    gauge(body, "b", 7, NOW_NS).exemplars.add(trace_id=b"t" * 16, span_id=b"s" * 8)
    histogram(body, "c", [0.1, 0.2], [1, 2, 3], NOW_NS)
    content, refused = to_protobuf(json_of(body), POINTS, "")
    assert rows(content, POINTS) == rows(body.SerializeToString(), POINTS) and refused == Batch()
    assert rows(content, POINTS).samples.num_rows == 3


def test_a_bad_span_costs_only_itself() -> None:
    """It becomes a row of rejections with its ids, its size and the place of the fault; a retry is the same row."""
    document = span_json(endTimeUnixNano="later")
    content, refused = to_protobuf(json.dumps(document).encode(), SPANS, "shop")
    assert rows(content).revs.num_rows == 2 and refused.spans == 1
    (row,) = refused.rejected.to_pylist()
    span = document["resourceSpans"][0]["scopeSpans"][0]["spans"][1]
    assert (row["reason"], row["tenant"], row["trace_id"].hex(), row["span_id"].hex()) == ("json", "shop", span["traceId"], span["spanId"])
    assert row["detail"] == "endTimeUnixNano: expected an integer of at most 64 bits, found a text of 5 characters"
    assert to_protobuf(json.dumps(document, indent=1).encode(), SPANS, "shop")[1] == refused


def test_a_bad_point_costs_only_itself() -> None:
    """Its row names the metric; points of two metrics that are otherwise equal are two rows."""
    points = {"dataPoints": [{"asInt": "x"}, {"asInt": "5", "timeUnixNano": str(NOW_NS)}]}
    metrics = [{"name": name, "gauge": points} for name in ("a", "b")] + [{"name": "c", "gauge": []}, {"name": 5}]
    content, refused = to_protobuf(json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}).encode(), POINTS, "")
    assert rows(content, POINTS).samples["metric"].to_pylist() == ["a", "b"] and refused.points == 4
    details, digests = (refused.rejected[column].to_pylist() for column in ("detail", "span_sha256"))
    assert [each.split(":")[0] for each in details] == ["metric 'a'", "metric 'b'", "metric 'c'", "name"] and len(set(digests)) == 4


def test_log_records_are_counted_and_not_stored() -> None:
    """Also one that is malformed, which is rejected."""
    records = [{"body": {"stringValue": "x"}, "traceId": "0" * 32}, {"body": "x"}]
    content, refused = to_protobuf(json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}).encode(), LOGS, "")
    assert (rows(content, LOGS).logs, rows(content, LOGS).ignored, refused.logs) == (1, 1, 1)


_SPANS = b'{"resourceSpans":[{"scopeSpans":[{"spans":[%s]}]}]}'


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "empty"),
        (b"null", "found null"),
        (b"[]", "found an array"),
        (b"1", "found an integer"),
        (b'{"resourceSpans":', "not JSON"),
        (b'{"resourceSpans":5}', "resourceSpans: expected an array"),
        (b'{"resourceSpans":[{"scopeSpans":{}}]}', r"resourceSpans\[0\].scopeSpans: expected an array"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"a":"\xff"}', "not JSON"),
        (b'{"a":"\xff\\u0041"}', "not JSON"),
        (b'{"a":NaN}', "not JSON"),
        (_SPANS % (b"9" * 10**6), "not JSON"),
        (_SPANS % (b"1e" + b"9" * 10**6), "not JSON"),
        (b"[" * 10**6, "expected an object"),
        (b"[" * 10**5, "not JSON"),
        (_SPANS % (b'{"a":' * 10**5 + b"1" + b"}" * 10**5), "not JSON"),
        (b"{}{}", "not JSON"),
        (b"\x0a\x03abc", "not JSON"),
    ],
)
def test_text_that_is_no_request_is_refused(content: bytes, found: str) -> None:
    """With what was found, and in a message of bounded length."""
    with pytest.raises(BadRequest, match=found) as error:
        to_protobuf(content, SPANS, "")
    assert error.value.status == 400 and len(str(error.value)) < 400


def test_unusual_text_is_accepted() -> None:
    """Single surrogates become U+FFFD and pairs stay; the last of two equal keys counts; a number of many digits fits a double."""
    document = json.dumps(span_json(name="emoji \ud83d cut, pair \ud83d\ude00, \\ud800 text")).encode()
    assert b"\\ud83d" in document
    content, refused = to_protobuf(document, SPANS, "")
    assert rows(content).revs.num_rows == 3 and refused == Batch()
    names = [span.name for span in SPANS.request.FromString(content).resource_spans[0].scope_spans[0].spans]
    assert names[1] == "emoji \ufffd cut, pair \U0001f600, \\ud800 text"
    assert to_protobuf(b'{"resourceSpans":7,"resourceSpans":[],"x":0.' + b"1" * 10**5 + b"}", SPANS, "")[0] == b""
    assert to_protobuf(b'{"resourceSpans":[],"x":0.' + b"1" * 10**6 + b"}", SPANS, "")[0] == b""


def test_an_item_that_is_too_deep_to_be_written_again_is_rejected() -> None:
    """Deeper than the parser's limit is no JSON; below it the item alone is rejected."""
    value: dict[str, Any] = {"intValue": "1"}
    for _ in range(150):
        value = {"arrayValue": {"values": [value]}}
    _, refused = to_protobuf(json.dumps(span_json(attributes=[{"key": "a", "value": value}])).encode(), SPANS, "")
    assert "nested deeper" in refused.rejected["detail"].to_pylist()[0]


def test_the_number_of_values_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it the body is refused before it is parsed, because small values take much memory."""
    document = json.dumps(span_json()).encode()
    monkeypatch.setattr(json_body, "VALUES_MAX", sum(map(document.count, (b",", b"{", b"["))))
    assert rows(to_protobuf(document, SPANS, "")[0]).revs.num_rows == 3
    with pytest.raises(TooLarge, match="values in one span"):
        to_protobuf(document + b"," * 2, SPANS, "")
    # Signs inside of texts are no values, whatever their number.
    text = json.dumps(span_json(name='{[,"' * 1_000)).encode()
    assert rows(to_protobuf(text, SPANS, "")[0]).revs.num_rows == 3
    with pytest.raises(TooLarge, match="values in one span"):
        to_protobuf(text[:-1] + b',"x":[' + b'"",' * 2 * json_body.VALUES_MAX + b'""]}', SPANS, "")


def test_the_number_of_bad_items_and_of_mended_escapes_is_bounded() -> None:
    """Beyond it the request is refused, with the fault of the first item."""
    spans = b"1," * (REFUSED_MAX + 1)
    with pytest.raises(BadRequest, match="the first: expected an object, found an integer") as error:
        to_protobuf(b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + spans + b"{}]}]}]}", SPANS, "")
    assert error.value.status == 400
    with pytest.raises(BadRequest, match="surrogate"):
        to_protobuf(_SPANS % (b'{"name":"' + b"\\ud800" * 300_000 + b'"}'), SPANS, "")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["NaN", "0" * 32, "é" * 32, "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
@examples(150)
def test_no_damage_to_a_document_is_an_internal_error(data: st.DataObject) -> None:
    """Any value in any place is stored, rejected or refused; the number of items stays the same if the request is accepted."""
    document: dict[str, Any] = {"root": span_json()}
    parent: Any = document
    key: Any = "root"
    while isinstance(place := parent[key], dict | list) and place and data.draw(st.integers(0, 5)):
        parent, key = place, data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
    parent[key] = data.draw(_VALUES)
    try:
        content, refused = to_protobuf(json.dumps(document["root"]).encode(), SPANS, "")
    except BadRequest as error:
        assert str(error)
        return
    batch = Batch.joined((rows(content), refused))
    assert isinstance(batch.rejected, pa.Table) and batch.spans >= refused.spans


@given(st.binary(max_size=200) | st.text(st.sampled_from('{}[]:,"\\ud8f0139e-+.'), max_size=60).map(str.encode))
@examples(150)
def test_any_bytes_are_accepted_or_refused(content: bytes) -> None:
    """No other error leaves the decoder."""
    try:
        assert isinstance(to_protobuf(content, SPANS, "")[0], bytes)
    except BadRequest as error:
        assert error.status == 400
