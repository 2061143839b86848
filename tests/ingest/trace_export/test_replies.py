"""What each reply of a trace backend means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from legato_ingest.trace_export.replies import Accepted, Failed, Refused, TryLater, meaning, retry_after_s

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
PARTIAL = ExportTraceServiceResponse()
PARTIAL.partial_success.rejected_spans = 3
PARTIAL.partial_success.error_message = "too old"
PROTOBUF, JSON, HTML = "application/x-protobuf", "application/json", "text/html; charset=utf-8"


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


@pytest.mark.parametrize(
    ("content", "accepted"),
    [
        (b"", Accepted()), (PARTIAL.SerializeToString(), Accepted(3, "too old")), (b"{}", Accepted()), (b'{"status": "ok"}', Accepted()),
        (b'{"partialSuccess": {"rejectedSpans": "3", "errorMessage": "too\\n old\\u0007"}}', Accepted(3, "too old")),
        (b'{"partialSuccess": {"rejectedSpans": -1}}', Accepted()), (b'{"partialSuccess": 7}', Accepted()), (b"[]", Accepted()),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [PROTOBUF, JSON, ""])
def test_accepted(kind: str, content: bytes, accepted: Accepted) -> None:
    """Protobuf and JSON, whatever the header of the type; JSON of another form says only that all is well."""
    assert meaning(200, {"Content-Type": kind}, content, NOW) == accepted


def test_a_web_server_is_no_trace_backend() -> None:
    """A wrong port that answers each POST with 200 and a page accepted nothing. A compressed reply cannot be read, and is none."""
    for kind, content in ((HTML, b""), (HTML, PARTIAL.SerializeToString()), ("", b"<!doctype html><p>"), ("text/plain", b"OK\n")):
        with pytest.raises(TryLater, match="NotOtlp"):
            meaning(200, {"Content-Type": kind}, content, NOW)
    assert meaning(202, {"Content-Type": JSON, "Content-Encoding": "gzip"}, b"\x1f\x8b\xff", NOW) == Accepted()


def test_statuses() -> None:
    """Content that is refused must not be sent again; everything about the endpoint may change."""
    for status, divisible in ((400, True), (413, True), (415, False), (422, True)):
        with pytest.raises(Refused, match=str(status)) as refused:
            meaning(status, {}, b"", NOW)
        assert refused.value.divisible == divisible
    for status in (302, 401, 403, 404, 408, 429, 500, 501, 503):
        with pytest.raises(TryLater, match=f"Http{status}") as later:
            meaning(status, {"Retry-After": "7"}, b"", NOW)
        assert later.value.after_s == 7.0 and isinstance(later.value, Failed) == (status in (500, 501))


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        (PROTOBUF, Status(code=3, message="span 7:\n\x1b[31m too long").SerializeToString(), "span 7: [31m too long"),
        (PROTOBUF, b"\xff\xff", ""), (JSON, b'{"code": 3, "message": "bad"}', "bad"), (JSON, b'{"error": {"message": "bad"}}', "bad"),
        (JSON, b'{"errors": ["bad"]}', '{"errors":["bad"]}'),
        (JSON, b"{", "{"), ("text/plain", b"no \xff token-1 " * 50, ("no \ufffd \u2026 " * 50)[:200]),
    ],
)  # fmt: skip
def test_the_backends_own_words(kind: str, content: bytes, message: str) -> None:
    """The first 200 printable characters, without the secrets."""
    for status in (400, 500):
        with pytest.raises((Refused, Failed)) as caught:
            meaning(status, {"Content-Type": kind}, content, NOW, ["token-1"])
        assert isinstance(caught.value, Refused | Failed) and caught.value.message == message


@given(
    st.integers(200, 599),
    st.sampled_from([PROTOBUF, JSON, ""]),
    st.binary(max_size=60) | st.text('{["message:error1}]', max_size=60).map(str.encode),
)
def test_no_reply_fails_otherwise(status: int, kind: str, content: bytes) -> None:
    """Whatever the endpoint sends."""
    try:
        assert meaning(status, {"Content-Type": kind}, content, NOW).rejected >= 0
    except (TryLater, Refused) as error:
        assert len(getattr(error, "message", "")) <= 200
