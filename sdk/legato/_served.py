"""Which responses a server's middleware records, shared by the one for ASGI and the one for WSGI.

A response is a candidate by its content type. A stream of an unknown format is kept if a configured path names it, or if the request was a
POST, which carries a prompt: event streams of GET requests are often notifications. Streams in a known format are kept on any route.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import propagate, trace

from legato._body import OPENAI_PATHS, PLAIN_TEXT, Body, is_streamed, media_type
from legato._clock import now_ns
from legato._context import serving
from legato._errors import guard
from legato._http_route import Address
from legato._recorder import Origin, StreamRecorder
from legato._spans import start_span
from legato._stream import begin

__all__ = ["ServedStream"]


class ServedStream:
    """One request at a server. Its recorder is created once the response shows a stream; its start is the request's arrival.

    ``headers`` returns those of the request, with names in lower case; most requests are no streams and need none.
    """

    __slots__ = ("_address", "_body", "_first", "_headers", "_is_asked", "_origin", "_span", "_start_ns", "_wants_unknown", "recorder")

    def __init__(self, origin: Origin, headers: Callable[[], Mapping[str, str]], method: str, address: Address) -> None:
        self._start_ns = now_ns()
        self._origin, self._headers, self._address = origin, headers, address
        is_named = address.is_named
        self._wants_unknown = is_named or method == "POST"
        self._is_asked = is_named or address.path.endswith(OPENAI_PATHS)
        self._span: trace.Span | None = None
        self._body: Body | None = None
        self._first: tuple[int, bytes] | None = None
        self.recorder: StreamRecorder | None = None

    @property
    def is_candidate(self) -> bool:
        """Whether the response may be a stream, as far as its headers show."""
        return self.recorder is not None or self._body is not None

    def context(self) -> Any:
        """Return the context for what the server does for this request. Its span starts here if the response has not begun."""
        if self._span is None:
            self._span = start_span(self._origin, self._start_ns, propagate.extract(self._headers()))
        return trace.set_span_in_context(self._span)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Streams that begin inside belong to this request's trace, unless the application has a current span."""
        with serving(self.context):
            yield

    def started(self, headers: Callable[[str], str]) -> None:
        """The response's headers are known; ``headers`` returns one by its name in lower case, or an empty string."""
        if self.recorder is not None:
            return
        content_type, encoding = headers("content-type"), headers("content-encoding")
        has_events = is_streamed(content_type)
        may_be_text = media_type(content_type) == PLAIN_TEXT and self._wants_unknown and not headers("content-length")
        if not has_events and not may_be_text:
            return
        # The request was routed, and some frameworks forget that before the second part of the body.
        self._origin.route = self._address.route()
        if has_events:
            self._begin(Body(content_type, encoding, expects_end=self._address.path.endswith(OPENAI_PATHS)))
        else:
            self._body = Body(content_type, encoding)

    def sent(self, body: bytes) -> None:
        """A part of the body was handed to the server. Plain text counts as a stream from its second part on."""
        if self.recorder is not None:
            self.recorder.read((now_ns(), body))
        elif self._body is not None:
            if self._first is None:
                self._first = (now_ns(), body)
                return
            with guard("middleware"):
                self._begin(self._body)
            if self.recorder is not None:
                self.recorder.ttfb_ns = self._first[0]
                self.recorder.read(self._first)
                self.recorder.read((now_ns(), body))

    def _begin(self, body: Body) -> None:
        parent = None if self._span is not None else propagate.extract(self._headers())
        recorder = begin(self._origin, start_ns=self._start_ns, context=parent, body=body, span=self._span)
        recorder.provisional, recorder.asked = not self._wants_unknown, self._is_asked
        recorder.ttfb_ns = now_ns()
        self.recorder, self._span = recorder, recorder.span
