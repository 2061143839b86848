"""The endpoint of a trace backend: its address and headers, and the limits of a request."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.servers.ports import free_port
from helpers.servers.slow_backend import slow_backend
from helpers.servers.trace_backend import Answer, trace_backend
from legato_ingest.errors import SettingsError
from legato_ingest.settings import load
from legato_ingest.trace_export import endpoint as endpoint_module
from legato_ingest.trace_export.endpoint import Endpoint, check, headers_of
from legato_ingest.trace_export.replies import Accepted, Refused, TryLater


def test_headers_are_those_of_opentelemetry() -> None:
    """Percent-encoded values, spaces around, and empty pairs."""
    assert headers_of("Authorization=Bearer%20a%2Cb, x-scope = 1 ,,") == {"Authorization": "Bearer a,b", "x-scope": "1"}
    assert headers_of("") == {}


@given(st.text(max_size=60))
def test_no_text_of_headers_fails_otherwise(text: str) -> None:
    """Bad headers are an error without the value, good ones can be sent."""
    try:
        found = headers_of(text + ",x=s3cr\x00et" if len(text) % 2 else text)
    except SettingsError as error:
        assert "s3cr" not in str(error)
    else:
        assert all(value.isascii() and value.isprintable() for value in found.values())


@pytest.mark.parametrize(
    "endpoint", ["localhost:4318", "ftp://a", "http://", "http://a?b=1", "http://a:99999", "http://me:s3cret@a:4318", "http://\x7f"]
)
def test_a_wrong_address_stops_the_start(endpoint: str) -> None:
    """With one line, without a password."""
    with pytest.raises(SettingsError, match="LEGATO_TRACES_EXPORT_ENDPOINT") as caught:
        check(load(traces_export_endpoint=endpoint))
    assert "s3cret" not in str(caught.value)


def test_replies_over_http() -> None:
    """The headers and the statuses; a message shows no token, although the endpoint repeats it."""
    with trace_backend() as backend:
        sender = Endpoint(load(traces_export_endpoint=backend.url, traces_export_headers="Authorization=Bearer%20t0ken-abc"))
        request = ExportTraceServiceRequest()
        assert sender.send(request) == Accepted()
        assert {headers["Authorization"] for headers in backend.headers} == {"Bearer t0ken-abc"}
        backend.answers.append(Answer(400, {}, b"Authorization: Bearer t0ken-abc,\n\x1bspan 7 is bad"))
        with pytest.raises(Refused) as refused:
            sender.send(request)
        assert refused.value.message == "Authorization: … …, span 7 is bad"
        backend.answers.append(Answer(503, {"retry-after": "7"}))
        with pytest.raises(TryLater, match="Http503") as later:
            sender.send(request)
        assert later.value.after_s == 7.0
        sender.close()


def test_a_request_has_a_total_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply would take 20 s, with a byte every 20 ms."""
    monkeypatch.setattr(endpoint_module, "_REQUEST_S", 0.2)
    with slow_backend(0.02) as (url, _):
        sender, started = Endpoint(load(traces_export_endpoint=url)), time.monotonic()
        with pytest.raises(TryLater, match="TimeoutError"):
            sender.send(ExportTraceServiceRequest())
        assert time.monotonic() - started < 10
        sender.close()


def test_a_request_that_hangs_ends_with_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """From another thread; and no further request begins."""
    monkeypatch.setattr(endpoint_module, "_STOP_S", 0.05)
    with slow_backend(3600) as (url, arrived):
        sender, started = Endpoint(load(traces_export_endpoint=url)), time.monotonic()

        def stop() -> None:
            arrived.wait()
            sender.stop()

        stopping = threading.Thread(target=stop)
        stopping.start()
        for _ in range(2):
            with pytest.raises(TryLater, match="Stopped"):
                sender.send(ExportTraceServiceRequest())
        assert time.monotonic() - started < 8, "the limit of a pause in a reply is 10 s"
        stopping.join()
        sender.close()
        sender.stop()


def test_an_endpoint_that_does_not_answer_is_tried_later() -> None:
    """Whatever the path in its address."""
    sender = Endpoint(load(traces_export_endpoint=f"http://127.0.0.1:{free_port()}/otlp/v1/traces/"))
    with pytest.raises(TryLater, match="ConnectError"):
        sender.send(ExportTraceServiceRequest())
    sender.close()
