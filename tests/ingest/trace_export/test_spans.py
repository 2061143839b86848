"""The spans of a stalled stream: their ids, their places in the trace, and what they say."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from helpers.builders.stalled_streams import STREAM
from helpers.repo.repository import ROOT
from legato_ingest.causes import PARTS
from legato_ingest.trace_export.spans import request_of, stream_spans

Value = str | int | float | list[str]


def said(span: Span) -> dict[str, Value]:
    """The attributes of a span."""
    found: dict[str, Value] = {}
    for each in span.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, str(kind))
        found[each.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


def test_a_stream_and_each_of_its_stalls_have_a_span() -> None:
    """At their exact times, each stall named by its cause."""
    whole, *stalls = stream_spans(STREAM, "", under_stream=False)
    assert (whole.name, whole.start_time_unix_nano, whole.end_time_unix_nano) == ("legato stalls", 10**18, 10**18 + 2 * 10**9)
    assert [(each.name, each.start_time_unix_nano - 10**18, each.end_time_unix_nano - 10**18) for each in stalls] == [
        ("stall: scheduling", 400_000_000, 1_020_000_000),
        ("stall: host", 1_500_000_000, 1_800_000_000),
    ]
    assert {each.parent_span_id for each in stalls} == {whole.span_id} and {each.trace_id for each in (whole, *stalls)} == {STREAM.trace_id}
    assert not any(each.status.code for each in (whole, *stalls)), "a stall is no error of the application"


def test_the_attributes_have_the_verdict() -> None:
    """The share is that of the time beyond the healthy step; negative parts and unknown values are left out of it."""
    whole, first, second = (said(each) for each in stream_spans(STREAM, "https://legato.example/", under_stream=False))
    assert whole == {
        "legato.stall.count": 2,
        "legato.stall.time_ms": 920.0,
        "legato.stall.longest_ms": 620.0,
        "legato.stall.cause": "scheduling",
        "legato.stall.share": 0.6629,
        "legato.stall.part.base_ms": 40.0,
        "legato.stall.part.connection_ms": -10.0,
        "legato.stall.part.host_ms": 300.0,
        "legato.stall.part.scheduling_ms": 590.0,
        "legato.stream.vantage": "client",
        "legato.stream.service": "shop",
        "legato.stream.span_id": (b"s" * 8).hex(),
        "gen_ai.request.model": "model-a",
        "legato.url": f"https://legato.example/stream/{(b't' * 16).hex()}",
    }
    assert first["legato.stall.cause"] == "scheduling" and first["legato.stall.share"] == 0.9877
    assert (first["legato.engine.id"], first["legato.stall.root_step"], first["legato.stall.missing"]) == ("engine-1", 200, ["server"])
    assert "legato.stall.root_step" not in second and second["legato.url"] == whole["legato.url"]


def test_ids_follow_from_the_stall_alone() -> None:
    """Another verdict on the same gap has the same id; an earlier stall that is withdrawn changes no other id."""
    ids = [each.span_id for each in stream_spans(STREAM, "", under_stream=False)]
    assert len(set(ids)) == 3 and {len(each) for each in ids} == {8} and STREAM.span_id not in ids
    judged_again = replace(STREAM, count=1, stalls=(replace(STREAM.stalls[1], cause="connection", parts_ns={}),))
    assert [each.span_id for each in stream_spans(judged_again, "", under_stream=True)] == [ids[0], ids[2]]
    other = stream_spans(replace(STREAM, span_id=b"S" * 8), "", under_stream=False)
    assert not {each.span_id for each in other} & set(ids)


@pytest.mark.parametrize(
    ("emitter", "parent", "under_stream", "expected"),
    [
        ("legato-python/0.1.0", b"p" * 8, False, b"p" * 8),
        ("legato-python/0.1.0", b"p" * 8, True, b"s" * 8),
        ("legato-python/0.1.0", bytes(8), False, b""),
        ("legato-python/0.1.0", bytes(8), True, b"s" * 8),
        ("openllmetry/1.0", b"p" * 8, False, b"s" * 8),
    ],
)
def test_the_parent_is_a_span_that_the_backend_has(emitter: str, parent: bytes, under_stream: bool, expected: bytes) -> None:
    """Legato's own stream spans are usually not in the trace backend; those of other libraries are."""
    stream = replace(STREAM, emitter=emitter, parent_span_id=parent)
    assert stream_spans(stream, "", under_stream=under_stream)[0].parent_span_id == expected


def test_a_request_names_the_tenant() -> None:
    """So that a Collector can route the spans; the service is Legato's."""
    found = {each.key: each.value.string_value for each in request_of("acme", []).resource_spans[0].resource.attributes}
    assert found == {"service.name": "legato", "legato.tenant": "acme"}
    assert len(request_of("", []).resource_spans[0].resource.attributes) == 1


def test_the_page_on_the_export_names_causes_that_are_exported() -> None:
    """A search that the page suggests finds spans: each cause on it is one that a stall may have."""
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    section = page.split("\n## Verdicts in a trace backend\n")[1].split("\n## ")[0]
    named = re.findall(r"`stall: (\w+)`|legato\.stall\.cause ?= ?\"?(\w+)|\.part\.([a-z_]+)_ms", section)
    causes = {cause for each in named for cause in each if cause}
    assert causes and causes <= set(PARTS)
    assert {stall.cause for stall in STREAM.stalls} | set(STREAM.parts_ns) <= set(PARTS)
