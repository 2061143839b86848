"""`legato.stream()` for manual recording, and `begin()`, which every instrumentation uses to start a stream."""

from __future__ import annotations

from typing import Any

from legato._arguments import check
from legato._body import Body
from legato._clock import now_ns
from legato._context import client_hash, current_client, current_conversation, parent_context
from legato._errors import is_test
from legato._items import Items
from legato._recorder import Origin, StreamRecorder
from legato._route import current_route
from legato._scan import Scan
from legato._spans import start_span
from legato._state import recording_settings
from legato._timeline import Kind
from legato._worker import worker

__all__ = ["begin", "stream"]


class CheckedRecorder(StreamRecorder):
    """A recorder that checks each call, as tests of an application should: in production a wrong argument must not raise."""

    __slots__ = ()

    def record(self, size_bytes: int, tokens: int | None = None, kind: int = int(Kind.TEXT)) -> None:
        """Record a chunk. Raises ``TypeError`` for a wrong argument."""
        if found := check(size_bytes, tokens, kind):
            what, expected = found.split("; ")
            raise TypeError(f"record() got {what}: expected {expected}")
        super().record(size_bytes, tokens, kind)


def begin(
    origin: Origin,
    *,
    start_ns: int | None = None,
    context: Any = None,
    sse: bool = False,
    body: Body | Items | Scan | None = None,
    span: Any = None,
) -> StreamRecorder:
    """Return a recorder for a new stream, with its span started and the worker tracking it.

    ``start_ns``: monotonic time at which the stream began; default now. ``context``: OpenTelemetry context of the parent span; default
    the current one. ``sse``: whether ``read`` will receive the bytes of a server-sent-event body of OpenAI's format; ``body``: of any body.
    ``span``: the stream's span, if it was started before.
    """
    chosen = recording_settings()
    origin.conversation_id = origin.conversation_id or current_conversation()
    origin.client_hash = origin.client_hash or client_hash(current_client(), chosen.client_hash_key)
    start = now_ns() if start_ns is None else start_ns
    if context is None and span is None:
        context = parent_context()
    tracker = worker()
    kind = CheckedRecorder if is_test() else StreamRecorder
    recorder = kind(origin, span or start_span(origin, start, context), start, tracker.finish, sse=sse, body=body)
    recorder.route = current_route()
    tracker.watch(recorder)
    return recorder


def stream(*, model: str = "", provider: str = "", vantage: str = "client", transport: str = "iterator") -> StreamRecorder:
    """Start recording a stream manually.

    >>> with legato.stream(model="m", provider="p") as recorder:
    ...     for text in answer:
    ...         recorder.record(len(text.encode()))

    An exception that leaves the block determines the outcome (cancel, time-out or error); without one it is ``complete``.
    ``transport="iterator"`` (the default) marks reads and TTFB as unknown.
    """
    return begin(Origin(vantage=vantage, model=model, provider=provider, transport=transport, engine_id=recording_settings().engine_id))
