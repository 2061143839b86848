"""The endpoint of a trace backend: its address and headers, and what each reply means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

from helpers.servers.ports import free_port
from helpers.servers.trace_backend import Answer, trace_backend
from legato_ingest.errors import SettingsError
from legato_ingest.settings import load
from legato_ingest.trace_export.endpoint import Endpoint, Refused, TryLater, check, headers_of, retry_after_s

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
PARTIAL = ExportTraceServiceResponse()
PARTIAL.partial_success.rejected_spans = 3


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
    ("value", "seconds"),
    [
        ("5", 5.0), ("0", 0.0), ("-3", 0.0), ("1e300", 3600.0), ("inf", 3600.0), ("nan", None), ("", None), ("soon", None),
        ("Mon, 23 Nov 2026 12:01:30 GMT", 90.0), ("Mon, 23 Nov 2020 12:01:30 GMT", 0.0), ("Mon, 23 Nov 2026 12:01:30 -0000", None),
        ("Fri, 31 Dec 9999 23:59:59 -2359", None),
    ],
)  # fmt: skip
def test_retry_after_is_bounded(value: str, seconds: float | None) -> None:
    """A number or a date, at most an hour."""
    assert retry_after_s(value, NOW) in (seconds, 3600.0 if seconds is None and "9999" in value else seconds)
    assert retry_after_s((NOW + timedelta(seconds=7)).strftime("%a, %d %b %Y %H:%M:%S GMT"), NOW) == 7.0


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://a", "http://", "http://a?b=1", "http://a:99999", "http://me:s3cret@a:4318"])
def test_a_wrong_address_stops_the_start(endpoint: str) -> None:
    """With one line, without a password."""
    with pytest.raises(SettingsError, match="LEGATO_TRACES_EXPORT_ENDPOINT") as caught:
        check(load(traces_export_endpoint=endpoint))
    assert "s3cret" not in str(caught.value)


def test_what_each_reply_means() -> None:
    """Content that is refused must not be sent again; everything about the endpoint may change."""
    with trace_backend() as backend:
        sender = Endpoint(load(traces_export_endpoint=backend.url, traces_export_headers="Authorization=Bearer%20abc"))
        request = ExportTraceServiceRequest()
        for content, rejected in ((b"", 0), (PARTIAL.SerializeToString(), 3), (b"<html>", 0), (b"\n" * 70_000, 0)):
            backend.answers.append(Answer(content=content))
            assert sender.send(request) == rejected
        assert {headers["Authorization"] for headers in backend.headers} == {"Bearer abc"}
        for status, is_size in ((400, False), (413, True), (415, False)):
            backend.answers.append(Answer(status))
            with pytest.raises(Refused, match=str(status)) as refused:
                sender.send(request)
            assert refused.value.is_size == is_size
        for status in (302, 401, 403, 404, 408, 429, 500, 503):
            backend.answers.append(Answer(status, {"Retry-After": "7"}))
            with pytest.raises(TryLater, match=f"Http{status}") as later:
                sender.send(request)
            assert later.value.after_s == 7.0
        sender.close()


def test_an_endpoint_that_does_not_answer_is_tried_later() -> None:
    """Whatever the path in its address."""
    sender = Endpoint(load(traces_export_endpoint=f"http://127.0.0.1:{free_port()}/otlp/v1/traces/"))
    with pytest.raises(TryLater, match="ConnectError"):
        sender.send(ExportTraceServiceRequest())
    sender.close()
