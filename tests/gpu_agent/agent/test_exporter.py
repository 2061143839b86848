"""The exporter: retries send the same bytes, the queue stays within its bound, and every result is counted."""

from __future__ import annotations

import http.server
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from helpers.servers.http_server import serve_handler
from helpers.servers.ports import free_port
from legato_gpu_agent.agent.exporter import METRICS, Body, Exporter, parse_retry_after
from legato_gpu_agent.agent.self_metrics import SelfMetrics

Answer = tuple[int, dict[str, str], bytes]
OK: Answer = (200, {}, b"")


class Receiver:
    """An HTTP server that sends the given answers in order, and then answers 200."""

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.bodies, self.times = list(answers), list[bytes](), list[float]()
        self.metrics_status = 404


@contextmanager
def receiving(receiver: Receiver, port: int = 0) -> Iterator[str]:
    """Run the receiver; yield its URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            receiver.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            receiver.times.append(time.monotonic())
            status, headers, body = receiver.answers.pop(0) if receiver.answers else OK
            self.send_response(status if self.path == "/v1/traces" else receiver.metrics_status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with serve_handler(Handler, port) as url:
        yield url


def body(number: int, size: int = 10) -> Body:
    """Return a flush of one step."""
    return Body(b"%d" % number * size, {"step": 1})


def value(metrics: SelfMetrics, name: str, **labels: str) -> float:
    """Return the value of a counter, or 0."""
    return metrics.registry.get_sample_value(name, labels) or 0.0


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, at most 10 s."""
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_bodies_arrive_in_order_and_are_counted() -> None:
    """Each flush is sent once and unchanged."""
    metrics, receiver = SelfMetrics(), Receiver()
    with receiving(receiver) as url:
        exporter = Exporter(url, metrics)
        exporter.start()
        for number in range(5):
            exporter.export(body(number))
        assert exporter.shutdown(5)
    assert receiver.bodies == [body(number).content for number in range(5)]
    assert value(metrics, "legato_agent_sent_records_total", kind="step") == 5
    assert value(metrics, "legato_agent_queue_bytes") == 0


@pytest.mark.parametrize("status", [429, 503])
def test_it_retries_after_the_requested_time(status: int) -> None:
    """With the same bytes, and not before Retry-After."""
    metrics, receiver = SelfMetrics(), Receiver((status, {"Retry-After": "1"}, b""))
    with receiving(receiver) as url:
        exporter = Exporter(url, metrics)
        exporter.start()
        exporter.export(body(1))
        eventually(lambda: len(receiver.bodies) == 2)
        assert exporter.shutdown(5)
    assert receiver.bodies[0] == receiver.bodies[1] and receiver.times[1] - receiver.times[0] >= 0.95
    assert value(metrics, "legato_agent_send_errors_total", type=f"status_{status}") == 1
    assert value(metrics, "legato_agent_sent_records_total", kind="step") == 1


def waits_of(monkeypatch: pytest.MonkeyPatch, exporter: Exporter, asked_s: float | None) -> list[float]:
    """Return the waits before each of nine retries, with a receiver that answers 503 and requests the same wait each time."""
    waits: list[float] = []

    def pause(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) < 9

    monkeypatch.setattr(exporter, "_attempt", lambda _: (503, asked_s))
    monkeypatch.setattr(exporter, "_pause", pause)
    assert not exporter._deliver(body(1))
    return waits


@pytest.mark.parametrize("header", ["0", "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_a_retry_after_of_zero_causes_no_busy_loop(monkeypatch: pytest.MonkeyPatch, header: str) -> None:
    """The exporter waits as long as without the header, with exponential back-off."""
    exporter = Exporter("http://127.0.0.1:9", SelfMetrics())
    waits = waits_of(monkeypatch, exporter, parse_retry_after(header, time.time()))
    assert all(most / 2 <= wait <= most for wait, most in zip(waits, (0.5, 1, 2, 4, 8, 16, 30, 30, 30), strict=True))


def test_a_requested_wait_does_not_increase(monkeypatch: pytest.MonkeyPatch) -> None:
    """With any number of retries."""
    exporter = Exporter("http://127.0.0.1:9", SelfMetrics())
    assert waits_of(monkeypatch, exporter, 2.0) == [2.0] * 9


@pytest.mark.parametrize("host", ["a..b", f"{'x' * 64}.example"])
def test_an_invalid_host_name_is_a_failed_attempt(host: str) -> None:
    """As with an unreachable host, the failure is counted and retried, and the thread survives."""
    metrics = SelfMetrics()
    exporter = Exporter(f"http://{host}:4318", metrics)
    exporter.start()
    exporter.export(body(1))
    # Newer Pythons raise a subclass of UnicodeError for encoding.
    kinds = ("UnicodeError", "UnicodeEncodeError")
    eventually(lambda: sum(value(metrics, "legato_agent_send_errors_total", type=kind) for kind in kinds) >= 2)
    assert not exporter.shutdown(0.2)
    assert value(metrics, "legato_agent_dropped_records_total", kind="step", reason="stopped") == 1


def test_a_receiver_that_is_down_is_retried() -> None:
    """Flushes queued in the meantime follow in order."""
    metrics, receiver, port = SelfMetrics(), Receiver(), free_port()
    exporter = Exporter(f"http://127.0.0.1:{port}", metrics)
    exporter.start()
    exporter.export(body(1))
    eventually(lambda: value(metrics, "legato_agent_send_errors_total", type="ConnectionRefusedError") >= 1)
    exporter.export(body(2))
    with receiving(receiver, port):
        eventually(lambda: len(receiver.bodies) == 2)
        assert exporter.shutdown(5)
    assert receiver.bodies == [body(1).content, body(2).content]


def test_rejected_flushes_are_not_sent_again() -> None:
    """After a 400, and after a partial success with a rejected span, the next flush is sent."""
    partial = ExportTraceServiceResponse()
    partial.partial_success.rejected_spans = 1
    metrics, receiver = SelfMetrics(), Receiver((400, {}, b"no"), (200, {}, partial.SerializeToString()))
    with receiving(receiver) as url:
        exporter = Exporter(url, metrics)
        exporter.start()
        for number in range(3):
            exporter.export(body(number))
        assert exporter.shutdown(5)
    assert len(receiver.bodies) == 3
    assert value(metrics, "legato_agent_dropped_records_total", kind="step", reason="refused") == 1
    assert value(metrics, "legato_agent_dropped_records_total", kind="step", reason="rejected") == 1
    assert value(metrics, "legato_agent_sent_records_total", kind="step") == 1


def test_the_queue_is_bounded() -> None:
    """The oldest flushes are dropped and counted; the newest are kept."""
    metrics, receiver = SelfMetrics(), Receiver()
    with receiving(receiver) as url:
        exporter = Exporter(url, metrics, queue_bytes_max=35)
        for number in range(6):
            exporter.export(body(number))
        exporter.start()
        assert exporter.shutdown(5)
    assert receiver.bodies == [body(number).content for number in (3, 4, 5)]
    assert value(metrics, "legato_agent_dropped_records_total", kind="step", reason="queue_full") == 3


def test_shutdown_is_bounded_in_time() -> None:
    """Without a receiver it returns in time, and counts the rest as dropped."""
    metrics = SelfMetrics()
    exporter = Exporter(f"http://127.0.0.1:{free_port()}", metrics)
    exporter.start()
    for number in range(3):
        exporter.export(body(number))
    started = time.monotonic()
    assert not exporter.shutdown(0.5)
    assert time.monotonic() - started < 10
    assert value(metrics, "legato_agent_dropped_records_total", kind="step", reason="stopped") == 3


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines of the log, each with the first word of its level."""
    return [f"{record.levelname} {record.getMessage()}" for record in caplog.records]


@pytest.mark.parametrize(("status", "advice"), [(401, "LEGATO_TOKEN"), (403, "may not write"), (404, "base URL")])
def test_a_refusal_is_logged_once_with_its_remedy(caplog: pytest.LogCaptureFixture, status: int, advice: str) -> None:
    """The records are lost: the log says so, and also when the receiver takes records again."""
    metrics, receiver = SelfMetrics(), Receiver((status, {}, b""), (status, {}, b""))
    with receiving(receiver) as url, caplog.at_level("INFO", "legato"):
        exporter = Exporter(url, metrics)
        exporter.start()
        for number in range(3):
            exporter.export(body(number))
        assert exporter.shutdown(5)
    failed, worked = logged(caplog)
    assert failed.startswith(f"WARNING {url}/v1/traces answers {status}, steps are dropped: ") and advice in failed
    assert worked == "INFO steps are sent again; dropped since the start: 2 step (refused)"


def test_a_receiver_that_is_down_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """And once when it is back; nothing was dropped."""
    metrics, receiver, port = SelfMetrics(), Receiver(), free_port()
    with caplog.at_level("INFO", "legato"):
        exporter = Exporter(f"http://127.0.0.1:{port}", metrics)
        exporter.start()
        exporter.export(body(1))
        eventually(lambda: value(metrics, "legato_agent_send_errors_total", type="ConnectionRefusedError") >= 2)
        with receiving(receiver, port):
            assert exporter.shutdown(5)
    failed, worked = logged(caplog)
    assert "cannot be reached (ConnectionRefusedError" in failed and "steps are kept and sent again: start `legato serve`" in failed
    assert worked == "INFO steps are sent again; dropped since the start: nothing"


def test_a_full_queue_and_rejected_records_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With the numbers of what was dropped."""
    partial = ExportTraceServiceResponse()
    partial.partial_success.rejected_spans = 1
    metrics, receiver = SelfMetrics(), Receiver((200, {}, partial.SerializeToString()))
    with receiving(receiver) as url, caplog.at_level("INFO", "legato"):
        exporter = Exporter(url, metrics, queue_bytes_max=35)
        for number in range(6):
            exporter.export(body(number))
        exporter.start()
        assert exporter.shutdown(5)
    full, rejected, *worked = logged(caplog)
    assert full == "WARNING the queue of 35 bytes is full: its oldest records are dropped"
    assert "rejects 1, steps are dropped in part" in rejected
    dropped = "dropped since the start: 4 step (queue_full, rejected)"
    assert worked == [f"INFO steps are sent again; {dropped}", f"INFO queued records are sent again; {dropped}"]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("soon", None),
        ("-1", None),
        ("Thu, 01 Jan 1970 00:00:30 GMT", 20.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    """Any other value counts as no header."""
    assert parse_retry_after(header, 10.0) == seconds


def test_measurements_are_dropped_before_steps() -> None:
    """Even if the steps are older, because a step cannot be measured again."""
    metrics = SelfMetrics()
    exporter = Exporter(f"http://127.0.0.1:{free_port()}", metrics, queue_bytes_max=100)
    exporter.export(body(1, 40))
    for number in range(20):
        exporter.export(Body(bytes([number]) * 30, {"sample": 3}, METRICS))
    exporter.export(body(2, 40))

    def dropped(kind: str) -> float:
        return metrics.registry.get_sample_value("legato_agent_dropped_records_total", {"kind": kind, "reason": "queue_full"}) or 0.0

    assert (dropped("step"), dropped("sample")) == (0, 60)
    exporter.export(body(3, 40))
    assert dropped("step") == 1


def test_refused_measurements_delay_no_steps() -> None:
    """A limit on series refuses a flush of measurements for up to an hour; steps are sent meanwhile, and it is sent when it may be."""
    metrics, receiver = SelfMetrics(), Receiver()
    receiver.metrics_status = 429
    samples = Body(b"samples", {"sample": 3}, METRICS)
    with receiving(receiver) as url:
        exporter = Exporter(url, metrics)
        for each in (samples, body(1), body(2)):
            exporter.export(each)
        exporter.start()
        eventually(lambda: body(2).content in receiver.bodies)
        assert receiver.bodies[:3] == [samples.content, body(1).content, body(2).content]
        exporter.export(body(3))
        eventually(lambda: body(3).content in receiver.bodies)
        receiver.metrics_status = 200
        assert exporter.shutdown(5)
    assert receiver.bodies[-1] == samples.content and value(metrics, "legato_agent_queue_bytes") == 0
    assert [each for each in receiver.bodies if each != samples.content] == [body(number).content for number in (1, 2, 3)]
