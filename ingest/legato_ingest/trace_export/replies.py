"""What the reply of a trace backend means: accepted, refused for good, or to be tried later, with the backend's own words.

What may be sent again and what may not follows OTLP's specification, with one difference: a wrong address or token (3xx, 401, 403, 404, …)
is tried again as well, because its repair should not cost spans. The module is pure: it sends nothing, and decides no time of a retry.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import orjson
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

__all__ = ["Accepted", "Failed", "Refused", "TryLater", "meaning", "retry_after_s"]

_RETRY_AFTER_S_MAX = 3600.0
_MESSAGE_BYTES_MAX, _MESSAGE_MAX = 8_192, 200
# Statuses with which an endpoint refuses the content of a request. All others but 2xx are about the endpoint.
_CONTENT = frozenset((400, 406, 411, 413, 414, 415, 416, 417, 422, 431))
# Of these, the ones that one span alone, or the size, may be the reason of.
_DIVISIBLE = frozenset((400, 413, 422))
# Statuses of an endpoint that fails. One request that it cannot process may be the reason.
_FAILED = frozenset((500, 501))


@dataclass(frozen=True, slots=True)
class Accepted:
    """The endpoint accepted a request but for ``rejected`` spans. ``message``: why it rejected them."""

    rejected: int = 0
    message: str = ""


class TryLater(Exception):
    """The endpoint does not take spans now. ``reason`` is a short name for a counter; ``after_s``: the wait that it asked for."""

    def __init__(self, reason: str, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.after_s = reason, after_s


class Failed(TryLater):
    """The endpoint failed at a request (500, 501): either at every request, or at this one. ``message``: what it says."""

    def __init__(self, status: int, after_s: float | None, message: str) -> None:
        super().__init__(f"Http{status}", after_s)
        self.message = message


class Refused(Exception):
    """The endpoint refuses this request for good. ``divisible``: a part of it may be accepted. ``message``: why."""

    def __init__(self, status: int, message: str = "") -> None:
        super().__init__(f"status {status}")
        self.reason, self.divisible, self.message = f"Http{status}", status in _DIVISIBLE, message


def meaning(status: int, headers: Mapping[str, str], content: bytes, now: datetime, secrets: Collection[str] = ()) -> Accepted:
    """Return what the endpoint accepted. Raises ``TryLater``, ``Failed`` and ``Refused``.

    ``headers``: those of the reply, by names in any case. ``secrets``: words that no message may show.
    """
    kind = headers.get("Content-Type", "").lower()
    if 200 <= status < 300:
        return _accepted(kind, headers.get("Content-Encoding", "identity"), content, secrets)
    after_s = retry_after_s(headers.get("Retry-After", ""), now)
    if status in _CONTENT:
        raise Refused(status, _shown(_words(kind, content), secrets))
    if status in _FAILED:
        raise Failed(status, after_s, _shown(_words(kind, content), secrets))
    raise TryLater(f"Http{status}", after_s)


def retry_after_s(value: str, now: datetime) -> float | None:
    """Return the seconds of a Retry-After header, at most an hour; None without a valid one. It may be a number or a date."""
    seconds = math.nan
    with contextlib.suppress(ValueError, OverflowError):
        seconds = float(value)
    if math.isnan(seconds):
        with contextlib.suppress(ValueError, OverflowError, TypeError):
            seconds = (parsedate_to_datetime(value) - now).total_seconds()
    return None if math.isnan(seconds) else min(max(seconds, 0.0), _RETRY_AFTER_S_MAX)


def _accepted(kind: str, encoding: str, content: bytes, secrets: Collection[str]) -> Accepted:
    """Return what the reply says. A web server at a wrong port answers each POST with 200 and a page: ``TryLater``."""
    if "text/html" in kind:
        raise TryLater("NotOtlp")
    if encoding.strip().lower() not in ("", "identity"):
        # The request asked for none. What cannot be read accepted all spans.
        return Accepted()
    partial = _response(content).partial_success
    return Accepted(max(0, partial.rejected_spans), _shown(partial.error_message, secrets))


def _response(content: bytes) -> ExportTraceServiceResponse:
    response = ExportTraceServiceResponse()
    with contextlib.suppress(DecodeError):
        response.ParseFromString(content)
        return response
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise TryLater("NotOtlp") from None
    # JSON of another form, such as `{"status": "ok"}`, accepted all spans.
    read = ExportTraceServiceResponse()
    with contextlib.suppress(ParseError, TypeError, ValueError, AttributeError, RecursionError):
        ParseDict(value, read, ignore_unknown_fields=True)
    return read


def _words(kind: str, content: bytes) -> str:
    """Return the message of an error: of google.rpc.Status, of a JSON object, or the plain text."""
    if "protobuf" in kind:
        with contextlib.suppress(DecodeError):
            status = Status()
            status.ParseFromString(content)
            return str(status.message)
        return ""
    with contextlib.suppress(orjson.JSONDecodeError):
        return _message_in(orjson.loads(content))
    return content[:_MESSAGE_BYTES_MAX].decode("utf-8", "replace")


def _message_in(value: Any) -> str:
    """Return the message of a JSON value: `{"message": "…"}`, `{"error": "…"}`, `{"error": {"message": "…"}}`; else the value itself."""
    while isinstance(value, dict):
        inner = value.get("message", value.get("error"))
        if inner is None:
            break
        value = inner
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _shown(text: str, secrets: Collection[str]) -> str:
    """Return the first printable characters of a message, on one line."""
    text = text[:_MESSAGE_BYTES_MAX]
    for secret in secrets:
        text = text.replace(secret, "…")
    return "".join(each for each in " ".join(text.split()) if each.isprintable())[:_MESSAGE_MAX]
