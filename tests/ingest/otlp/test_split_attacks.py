"""Bodies that ask for more than their size: the memory of a conversion, the days of the rows, and the neighbours of what is rejected."""

from __future__ import annotations

import contextlib
import time
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from helpers.builders.converted import convert_body
from helpers.builders.spans import native_span, request
from helpers.builders.worst_bodies import CASES, DAY_NS, ENGINE, NATIVE, finished, point, points, span, spans, steps, text
from helpers.platform.allocations import peak_bytes
from legato_ingest.errors import TooLarge
from legato_ingest.otlp import bodies, structure
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.protobuf import message
from legato_ingest.otlp.signals import POINTS, SPANS, Signal

MIB = 2**20
# The floor and the limit of the memory of one conversion (`budget`), and how many times its body it may take in between.
FLOOR, MOST, TIMES = 48 * MIB, 128 * MIB, 8
NOW_NS = time.time_ns()


def batch(content: bytes, signal: Signal = SPANS, limits: Limits | None = None) -> Batch:
    """Return the rows of a body that arrives now."""
    fail = pytest.fail
    return convert_body(
        content, tenant="shop", now_ns=NOW_NS, limits=limits or Limits(), on_fault=lambda error: fail(repr(error)), signal=signal
    )


def peak_of(content: bytes, signal: Signal) -> int:
    """Return the largest memory of a conversion. A body may be refused as a whole."""

    def convert() -> None:
        with contextlib.suppress(TooLarge):
            batch(content, signal)

    return peak_bytes(convert)


_SIZES = {"16 KiB": MIB // 64, "1.5 MiB": 3 * MIB // 2, "8 MiB": 8 * MIB}


@pytest.mark.parametrize("size", [pytest.param(n, id=name, marks=[pytest.mark.long] * (n > MIB)) for name, n in _SIZES.items()])
@pytest.mark.parametrize("case", CASES)
def test_the_memory_of_a_conversion_is_bounded_by_the_body(case: str, size: int) -> None:
    """At most eight times the body, or 48 MiB for a small one, and never more than 128 MiB: Python's, numpy's and Arrow's together."""
    signal, make = CASES[case]
    content = make(NOW_NS, size)
    assert peak_of(content, signal) <= min(max(FLOOR, TIMES * len(content)), MOST)


def days(rows: pa.Table, name: str) -> set[int]:
    """Return the days of some rows."""
    return set((rows[name].cast(pa.int64()).to_numpy() // DAY_NS).tolist()) if rows.num_rows else set()


def test_steps_that_are_hours_apart_touch_eight_days_at_most() -> None:
    """One flush of 65,536 steps, 71 minutes apart, would touch 3,259 days. It is rejected; steps within six days are stored."""
    far = steps(NOW_NS - 89 * DAY_NS, 65_536, 2**32 - 1)
    near = steps(NOW_NS - 7 * DAY_NS, 121, 3_600_000_000)
    found = batch(spans([far, near, steps(NOW_NS, 3, 1_000)]))
    assert found.steps.num_rows == 124 and len(days(found.steps, "recorded_at")) == 7
    (row,) = found.rejected.to_pylist()
    assert row["reason"] in ("partition_budget", "retention")
    within = steps(NOW_NS - 89 * DAY_NS, 2_000, 3_600_000_000)
    assert batch(spans([within])).rejected["reason"].to_pylist() == ["partition_budget"]


@pytest.mark.parametrize("table", ["stream_revs", "engine_steps", "engine_requests", "stream_silences", "node_samples"])
def test_a_request_has_rows_on_eight_days_of_each_table(table: str) -> None:
    """Today, yesterday and six others; of each other day the rows are rejected, also in another part of the body."""
    at = [NOW_NS - number % 80 * DAY_NS for number in range(2, 200)]
    since = [(b"legato.stream.silent_since", b"\x18\x00")]
    native = request()
    for time_ns in at:
        native_span(native, start_ns=time_ns, duration_ns=1_000)
    content = {
        "stream_revs": native.SerializeToString(),
        "engine_steps": spans(steps(time_ns, 2, 1) for time_ns in at),
        "engine_requests": spans(finished(time_ns, 2) for time_ns in at),
        "stream_silences": spans(span(since, time_ns, time_ns, b"\x22\x08parentid") for time_ns in at),
        "node_samples": points(point(time_ns) for time_ns in at),
    }[table]
    found = batch(content, POINTS if table == "node_samples" else SPANS)
    name, column = {
        "stream_revs": ("revs", "start_time"),
        "engine_steps": ("steps", "recorded_at"),
        "engine_requests": ("requests", "recorded_at"),
        "stream_silences": ("silences", "recorded_at"),
        "node_samples": ("samples", "recorded_at"),
    }[table]
    touched = days(getattr(found, name), column)
    assert len(touched) == 8 and {NOW_NS // DAY_NS, NOW_NS // DAY_NS - 1} <= touched
    assert Counter(found.rejected["reason"].to_pylist())["partition_budget"] == found.rejected.num_rows > 100


def test_late_rows_displace_none_of_now() -> None:
    """Rows of today and yesterday are stored behind any number of others."""
    late = [steps(NOW_NS - number * DAY_NS, 1, 0) for number in range(2, 80)]
    found = batch(spans([*late, steps(NOW_NS - DAY_NS, 3, 0), steps(NOW_NS, 5, 0)]))
    assert found.steps.num_rows == 6 + 3 + 5
    samples = batch(points([*(point(NOW_NS - number * DAY_NS) for number in range(2, 80)), point(NOW_NS - DAY_NS), point(NOW_NS)]), POINTS)
    assert samples.samples.num_rows == 6 + 2


@pytest.mark.parametrize("end_ns", [2**63 - 1, 2**63, NOW_NS + 2 * DAY_NS], ids=["2262", "beyond 2262", "in two days"])
def test_rows_with_the_time_of_an_end_are_not_in_the_future(end_ns: int) -> None:
    """Finished requests and reports of silences have the time of the end of their span, which is checked as the start is."""
    since = [(b"legato.stream.silent_since", b"\x18\x00")]
    ids = [*ENGINE, (b"legato.engine.finished.response_id", b"\x2a\x04\x0a\x02\x0a\x00"), (b"legato.engine.steps", b"\x3a\x16" + bytes(22))]
    empty = b"\x01\x01\x00\x00\x00\x00\x01\x07\x00\x00\x00" + bytes(7)
    ids[2] = (b"legato.engine.steps", b"\x3a" + bytes([len(empty)]) + empty)
    found = batch(spans([span(since, NOW_NS, end_ns, b"\x22\x08parentid"), span(ids, NOW_NS, end_ns)]))
    assert (found.silences.num_rows, found.requests.num_rows) == (0, 0)
    assert set(found.rejected["reason"].to_pylist()) == {"time" if end_ns > 2**63 - 1 else "retention"}


def test_declared_steps_and_chunks_beyond_the_memory_of_a_request_are_rejected() -> None:
    """Flushes of 65,536 steps in 150 bytes are rejected; the streams and steps of neighbours are stored before and behind them."""
    whole = steps(NOW_NS - DAY_NS, 65_536, 10)
    body = request()
    for _ in range(20):
        native_span(body, start_ns=NOW_NS - 5_000)
    honest = body.SerializeToString()
    found = batch(honest + spans([whole] * 8) + honest + spans([steps(NOW_NS, 40, 25_000)]))
    assert found.revs.num_rows == 40 and found.steps.num_rows == 40
    assert found.rejected["reason"].to_pylist() == ["budget"] * 8
    assert found.spans == 49


def test_a_hostile_item_takes_nothing_from_its_neighbours() -> None:
    """Steps that ask for more than a part of the request's memory come first; 2 MB of honest streams and steps behind them are stored."""
    body = request()
    for _ in range(1_500):
        native_span(body, start_ns=NOW_NS - 5_000)
    agents = spans(span([*ENGINE, (b"padding", text("x" * 400))], NOW_NS, NOW_NS) for _ in range(100))
    found = batch(spans([steps(NOW_NS - DAY_NS, 65_000, 10)]) + body.SerializeToString() + agents)
    assert found.revs.num_rows == 1_500 and found.rejected["reason"].to_pylist() == ["budget"]


@pytest.mark.parametrize("level", [0, 1, 2], ids=["request", "resource", "scope"])
def test_unknown_fields_are_bounded(monkeypatch: pytest.MonkeyPatch, level: int) -> None:
    """Unknown fields of two bytes take little more memory than their bytes, and a body with too many of them is refused."""
    monkeypatch.setattr(bodies, "UNSPLIT_BYTES_MAX", 0)
    monkeypatch.setattr(structure, "FIELDS_MAX", 50_000)
    around = (1, 2)[:level]

    def body(count: int) -> bytes:
        content = b"\x18\x01" * count + (spans([span(NATIVE, NOW_NS - 5_000, NOW_NS)]) if not level else b"")
        for number in reversed(around):
            content = message(number, content)
        return content

    # The memory of Arrow's pool is the largest that the process has had, so two bodies are compared.
    assert peak_of(body(40_000), SPANS) - peak_of(body(100), SPANS) < MIB
    with pytest.raises(TooLarge, match="fields"):
        batch(body(60_000))


def test_points_with_long_attributes_of_their_resource_are_stored() -> None:
    """8,192 points, each of a different series, with 2 KB of attributes of a Kubernetes resource in each row."""
    resource = [(b"k8s.attribute.%d" % number, text("v" * 80)) for number in range(20)]
    found = batch(points([point(NOW_NS - number, [(b"n", text(b"%d" % number))]) for number in range(8_192)], resource), POINTS)
    assert found.samples.num_rows == 8_192 and found.rejected_items == 0


def test_rejected_items_have_a_thousand_rows_and_are_all_counted() -> None:
    """A body of two-byte items has as many rows of `rejected` as one with a thousand; the reply counts all of them."""
    found = batch(points([b"\x0a\x00"] * 20_000), POINTS)
    assert found.points == found.rejected_items == 20_000 and found.rejected.num_rows == 1_024
    bad = batch(spans([b"\x12\x19\x4a\x17\x0a\x15legato.stream.vantage"] * 5_000))
    assert bad.spans == bad.rejected_items == 5_000 and bad.rejected.num_rows == 1_024


def test_senders_of_ignored_spans_are_named_up_to_a_limit() -> None:
    """A request with another scope for each span counts all of them, a thousand by name."""
    signal, make = CASES["scopes"]
    found = batch(make(NOW_NS, 100_000), signal)
    assert found.spans == found.ignored == found.senders.total() > 5_000 and len(found.senders) <= 1_025


def test_a_body_with_too_many_items_is_refused_before_any_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a minute of conversion would be for nothing."""
    converted = list[int]()
    monkeypatch.setattr("legato_ingest.otlp.convert.validate", lambda *given: converted.append(1))
    with pytest.raises(TooLarge):
        batch(spans([b"\x12\x00"] * 300_000))
    assert not converted


def test_the_times_of_a_timeline_decide_on_no_day() -> None:
    """A stream with chunks years apart is one row on the day of its start."""
    timeline = b"\x01\x01\x00\x00\x01\x00\x01\x07\x00\x00\x00" + b"\x00\xff\xff\xff\xff\x00\x00"
    body = request()
    native_span(body, {"legato.stream.timeline": timeline}, start_ns=NOW_NS - 5_000)
    found = batch(body.SerializeToString())
    assert found.revs.num_rows == 1 and days(found.revs, "start_time") == {(NOW_NS - 5_000) // DAY_NS}
    assert found.days == {("stream_revs", (NOW_NS - 5_000) // DAY_NS)}
    assert np.array(found.revs["chunks"].to_pylist()).tolist() == [65_536]
