"""The delivery of streams against an HTTP server: one stream, one limit or one fault holds up no other stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from helpers.builders.stalled_streams import STALL, STREAM
from helpers.servers.trace_backend import Answer, TraceBackend, trace_backend
from legato_ingest.metrics import Metrics
from legato_ingest.settings import load
from legato_ingest.trace_export import delivery as delivery_module
from legato_ingest.trace_export.delivery import Delivery
from legato_ingest.trace_export.endpoint import Endpoint
from legato_ingest.trace_export.replies import Failed, TryLater
from legato_ingest.trace_export.spans import StalledStream, stream_spans

Make = Callable[[], tuple[Delivery, Metrics]]


@pytest.fixture
def backend() -> Iterator[TraceBackend]:
    """A trace backend."""
    with trace_backend() as running:
        yield running


@pytest.fixture
def deliveries(backend: TraceBackend) -> Iterator[Make]:
    """Makes deliveries to the backend."""
    made: list[Endpoint] = []

    def make() -> tuple[Delivery, Metrics]:
        metrics = Metrics()
        made.append(Endpoint(load(traces_export_endpoint=backend.url)))
        return Delivery(made[-1], lambda stream: stream_spans(stream, "", under_stream=False), metrics), metrics

    yield make
    for each in made:
        each.close()


def streams(*numbers: int, tenant: str = "") -> list[StalledStream]:
    """Streams with one stall, so two spans each."""
    return [replace(STREAM, tenant=tenant, span_id=b"%08d" % number, stalls=(STALL,)) for number in numbers]


def sent(backend: TraceBackend) -> list[int]:
    """The numbers of the streams that arrived, in order, repeated ones included."""
    return [number(span) for span in backend.copies if span.name == "legato stalls"]


def number(span: Span) -> int:
    """The number of a span's stream."""
    (text,) = (each.value.string_value for each in span.attributes if each.key == "legato.stream.span_id")
    return int(bytes.fromhex(text))


def answer_at(answer: Answer, *numbers: int) -> Callable[[list[Span]], Answer | None]:
    """Answer so if one of these streams is in the request."""
    return lambda spans: answer if any(number(span) in numbers for span in spans if span.name == "legato stalls") else None


def counted(metrics: Metrics) -> tuple[float, float]:
    """The spans exported and refused."""
    exported, refused = (metrics.trace_export_spans.labels(outcome)._value.get() for outcome in ("exported", "refused"))
    return exported, refused


def run(delivery: Delivery, page: Sequence[StalledStream]) -> TryLater | None:
    """A run of the worker: send a page."""
    delivery.begin()
    try:
        delivery.send(page)
    except TryLater as failure:
        return failure
    return delivery.doubt


def test_a_stream_that_cannot_be_encoded_is_left_out(backend: TraceBackend, deliveries: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Numbers beyond OTLP's, which a sender chose. It is counted, and logged once."""
    delivery, metrics = deliveries()
    hostile = [replace(each, stalls=(replace(STALL, step_first=2**63),)) for each in streams(1, 2)]
    assert run(delivery, [*hostile, *streams(3)]) is None and sent(backend) == [3]
    assert metrics.errors.labels("trace_export", "ValueError")._value.get() == 2
    assert len(caplog.records) == 1


def test_a_limited_rate_makes_progress(backend: TraceBackend, deliveries: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent is not sent again."""
    monkeypatch.setattr(delivery_module, "_SPANS_MAX", 2)
    delivery, metrics = deliveries()
    page = [*streams(*range(5)), *streams(5, 6, tenant="acme")]
    for _ in range(3):
        backend.answers += [Answer(), Answer(), Answer(429)]
        assert isinstance(run(delivery, page), TryLater)
    assert run(delivery, page) is None and sent(backend) == list(range(7)) and counted(metrics) == (14, 0)


def test_a_stream_is_known_until_the_progress_of_its_part_has_passed_it(backend: TraceBackend, deliveries: Make) -> None:
    """Parts are recorded at different times: what was recorded of one forgot what was sent of another, which was sent twice."""
    delivery, _ = deliveries()
    page = [replace(each, part=number // 2, received_ms=10 + number % 2) for number, each in enumerate(streams(*range(4)))]
    assert run(delivery, page) is None and sorted(sent(backend)) == [0, 1, 2, 3]
    for progress, again in (({0: 9, 1: 9}, []), ({0: 9, 1: 10}, [2]), ({0: 10, 1: 9}, [0]), ({0: 11, 1: 11}, [0, 1, 2, 3])):
        delivery.recorded(progress.__getitem__)
        before = len(sent(backend))
        assert run(delivery, page) is None and sorted(sent(backend)[before:]) == again


def test_the_failures_of_a_part_are_counted_whatever_is_recorded_of_others(backend: TraceBackend, deliveries: Make) -> None:
    """Else the stream at which the endpoint fails would hold up its part for as long as others go on."""
    delivery, _ = deliveries()
    backend.rule = answer_at(Answer(500), 4)
    for _ in range(5):
        assert isinstance(run(delivery, streams(*range(6))), Failed)
        delivery.recorded({0: 0, 1: 2**62}.__getitem__)
    # If the last one of them fails, one that was accepted is sent once more.
    assert run(delivery, streams(*range(6))) is None and set(sent(backend)) == {0, 1, 2, 3, 5} and len(sent(backend)) <= 6


@pytest.mark.parametrize("bad", [(), (4,), (0, 1, 2, 3)])
def test_a_request_that_always_fails_is_taken_apart(backend: TraceBackend, deliveries: Make, bad: Sequence[int]) -> None:
    """After five failures, and only streams that fail alone, while others are accepted, are refused."""
    delivery, metrics = deliveries()
    backend.rule = answer_at(Answer(500), *bad) if bad else lambda spans: Answer(500) if len(spans) > 2 else None
    for _ in range(5):
        assert isinstance(run(delivery, streams(*range(6))), Failed)
    assert run(delivery, streams(*range(6))) is None
    assert set(sent(backend)) == {each for each in range(6) if each not in bad} and len(sent(backend)) <= 7
    assert metrics.trace_export_spans.labels("refused")._value.get() == 2 * len(bad)


def test_nothing_is_refused_while_the_backend_is_away(
    backend: TraceBackend, deliveries: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it answers, however long. A stream that is alone waits for another one, which shows that the backend works."""
    monkeypatch.setattr(delivery_module, "_SUSPECTS_MAX", 3)
    delivery, metrics = deliveries()
    backend.rule = lambda spans: Answer(500)
    for _ in range(8):
        assert isinstance(run(delivery, streams(*range(20))), Failed)
    assert backend.requests == 5 + 3 * 3
    backend.rule = lambda spans: None
    assert run(delivery, streams(*range(20))) is None and counted(metrics) == (40, 0)
    backend.rule = answer_at(Answer(500, {}, b"panic"), 50)
    for _ in range(8):
        assert isinstance(run(delivery, streams(50)), Failed)
    assert counted(metrics) == (40, 0) and not caplog.records
    assert run(delivery, [*streams(50), *streams(51, tenant="other")]) is None
    assert counted(metrics) == (42, 2) and caplog.messages == ["the trace backend left out 2 spans about stalls (refused: panic)"]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_one_bad_stream_costs_no_other(backend: TraceBackend, deliveries: Make, status: int, caplog: pytest.LogCaptureFixture) -> None:
    """A request is halved until the stream is alone. The log has the backend's words."""
    delivery, metrics = deliveries()
    backend.rule = answer_at(Answer(status, {}, b"span 7: attribute too long"), 77)
    assert run(delivery, streams(*range(200))) is None
    assert sorted(sent(backend)) == [each for each in range(200) if each != 77] and counted(metrics) == (398, 2)
    assert caplog.messages == ["the trace backend left out 2 spans about stalls (refused: span 7: attribute too long)"]


def test_an_endpoint_that_refuses_all_is_asked_seldom(backend: TraceBackend, deliveries: Make) -> None:
    """As some other server behind a wrong address. After eight streams alone no request is halved, until one is accepted."""
    delivery, metrics = deliveries()
    backend.rule = lambda spans: Answer(400)
    assert run(delivery, streams(*range(500))) is None and run(delivery, streams(*range(500, 900))) is None
    assert counted(metrics) == (0, 1800) and backend.requests < 40
    backend.rule = answer_at(Answer(400), 1001)
    assert run(delivery, streams(1000)) is None and run(delivery, streams(1001, 1002)) is None
    assert sent(backend) == [1000, 1002]
