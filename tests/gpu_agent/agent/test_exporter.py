"""The queue before the receiver: what is sent again is the same bytes, the bound holds, and every fate is counted."""

from __future__ import annotations

import http.server
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from helpers.servers.answering import answering
from helpers.servers.ports import free_port
from legato_gpu_agent.agent.exporter import METRICS, Body, Post, wait_of
from legato_gpu_agent.agent.self_metrics import Metrics

Answer = tuple[int, dict[str, str], bytes]
OK: Answer = (200, {}, b"")


class Receiver:
    """An HTTP server that answers as it is told, in order, and then with 200."""

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.bodies, self.times = list(answers), list[bytes](), list[float]()


@contextmanager
def receiving(receiver: Receiver, port: int = 0) -> Iterator[str]:
    """The receiver's URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            receiver.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            receiver.times.append(time.monotonic())
            status, headers, body = receiver.answers.pop(0) if receiver.answers else OK
            self.send_response(status if self.path == "/v1/traces" else 404)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Not here."""

    with answering(Handler, port) as url:
        yield url


def body(number: int, size: int = 10) -> Body:
    """A flush of one step."""
    return Body(b"%d" % number * size, {"step": 1})


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """A counter, or 0."""
    return metrics.registry.get_sample_value(name, labels) or 0.0


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for it, ten seconds at most."""
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_bodies_arrive_in_order_and_are_counted() -> None:
    """Each once, as it was."""
    metrics, receiver = Metrics(), Receiver()
    with receiving(receiver) as url:
        post = Post(url, metrics)
        post.start()
        for number in range(5):
            post.put(body(number))
        assert post.close(5)
    assert receiver.bodies == [body(number).content for number in range(5)]
    assert value(metrics, "legato_agent_sent_records_total", kind="step") == 5
    assert value(metrics, "legato_agent_queue_bytes") == 0


@pytest.mark.parametrize("status", [429, 503])
def test_it_tries_again_when_the_receiver_says_when(status: int) -> None:
    """The same bytes, not before Retry-After."""
    metrics, receiver = Metrics(), Receiver((status, {"Retry-After": "1"}, b""))
    with receiving(receiver) as url:
        post = Post(url, metrics)
        post.start()
        post.put(body(1))
        eventually(lambda: len(receiver.bodies) == 2)
        assert post.close(5)
    assert receiver.bodies[0] == receiver.bodies[1] and receiver.times[1] - receiver.times[0] >= 0.95
    assert value(metrics, "legato_agent_send_errors_total", type=f"status_{status}") == 1
    assert value(metrics, "legato_agent_sent_records_total", kind="step") == 1


def waits_of(monkeypatch: pytest.MonkeyPatch, post: Post, asked_s: float | None) -> list[float]:
    """How long it waits before each of nine more attempts, with a receiver that answers 503 and asks for so long each time."""
    waits: list[float] = []

    def pause(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) < 9

    monkeypatch.setattr(post, "_attempt", lambda _: (503, asked_s))
    monkeypatch.setattr(post, "_pause", pause)
    assert not post._deliver(body(1))
    return waits


@pytest.mark.parametrize("header", ["0", "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_a_receiver_that_says_now_is_not_asked_without_a_pause(monkeypatch: pytest.MonkeyPatch, header: str) -> None:
    """It waits as long as it would have by itself, and longer each time."""
    post = Post("http://127.0.0.1:9", Metrics())
    waits = waits_of(monkeypatch, post, wait_of(header, time.time()))
    assert all(most / 2 <= wait <= most for wait, most in zip(waits, (0.5, 1, 2, 4, 8, 16, 30, 30, 30), strict=True))


def test_a_receiver_that_says_when_is_not_waited_for_longer_and_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it says so."""
    post = Post("http://127.0.0.1:9", Metrics())
    assert waits_of(monkeypatch, post, 2.0) == [2.0] * 9


@pytest.mark.parametrize("host", ["a..b", f"{'x' * 64}.example"])
def test_a_host_that_is_no_name_is_a_failed_attempt(host: str) -> None:
    """Like one that is not there: counted, tried again, and the sender lives."""
    metrics = Metrics()
    post = Post(f"http://{host}:4318", metrics)
    post.start()
    post.put(body(1))
    # Newer Pythons have a kind of it for encoding alone.
    kinds = ("UnicodeError", "UnicodeEncodeError")
    eventually(lambda: sum(value(metrics, "legato_agent_send_errors_total", type=kind) for kind in kinds) >= 2)
    assert not post.close(0.2)
    assert value(metrics, "legato_agent_dropped_records_total", kind="step", reason="stopped") == 1


def test_a_receiver_that_is_down_is_waited_for() -> None:
    """What was queued meanwhile follows in order."""
    metrics, receiver, port = Metrics(), Receiver(), free_port()
    post = Post(f"http://127.0.0.1:{port}", metrics)
    post.start()
    post.put(body(1))
    eventually(lambda: value(metrics, "legato_agent_send_errors_total", type="ConnectionRefusedError") >= 1)
    post.put(body(2))
    with receiving(receiver, port):
        eventually(lambda: len(receiver.bodies) == 2)
        assert post.close(5)
    assert receiver.bodies == [body(1).content, body(2).content]


def test_what_is_refused_for_good_is_not_sent_again() -> None:
    """400, and a partial success without the span; the next one goes on."""
    partial = ExportTraceServiceResponse()
    partial.partial_success.rejected_spans = 1
    metrics, receiver = Metrics(), Receiver((400, {}, b"no"), (200, {}, partial.SerializeToString()))
    with receiving(receiver) as url:
        post = Post(url, metrics)
        post.start()
        for number in range(3):
            post.put(body(number))
        assert post.close(5)
    assert len(receiver.bodies) == 3
    assert value(metrics, "legato_agent_dropped_records_total", kind="step", reason="refused") == 1
    assert value(metrics, "legato_agent_dropped_records_total", kind="step", reason="rejected") == 1
    assert value(metrics, "legato_agent_sent_records_total", kind="step") == 1


def test_the_queue_is_bounded() -> None:
    """The oldest goes, and is counted; the newest are kept."""
    metrics, receiver = Metrics(), Receiver()
    with receiving(receiver) as url:
        post = Post(url, metrics, queue_bytes_max=35)
        for number in range(6):
            post.put(body(number))
        post.start()
        assert post.close(5)
    assert receiver.bodies == [body(number).content for number in (3, 4, 5)]
    assert value(metrics, "legato_agent_dropped_records_total", kind="step", reason="queue_full") == 3


def test_stopping_is_bounded_in_time() -> None:
    """With nobody there it gives up in time, and counts what it leaves."""
    metrics = Metrics()
    post = Post(f"http://127.0.0.1:{free_port()}", metrics)
    post.start()
    for number in range(3):
        post.put(body(number))
    started = time.monotonic()
    assert not post.close(0.5)
    assert time.monotonic() - started < 3
    assert value(metrics, "legato_agent_dropped_records_total", kind="step", reason="stopped") == 3


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
    """And anything else is nothing."""
    assert wait_of(header, 10.0) == seconds


def test_samples_are_given_up_before_steps() -> None:
    """However old the steps are: nobody can sample a step again."""
    metrics = Metrics()
    post = Post(f"http://127.0.0.1:{free_port()}", metrics, queue_bytes_max=100)
    post.put(body(1, 40))
    for number in range(20):
        post.put(Body(bytes([number]) * 30, {"sample": 3}, METRICS))
    post.put(body(2, 40))

    def dropped(kind: str) -> float:
        return metrics.registry.get_sample_value("legato_agent_dropped_records_total", {"kind": kind, "reason": "queue_full"}) or 0.0

    assert (dropped("step"), dropped("sample")) == (0, 60)
    post.put(body(3, 40))
    assert dropped("step") == 1
