"""Begins streams: by hand, and for the instrumentations.

One idea: one function makes a recorder with its span and gives it to the worker; everybody begins a stream by it.
"""

from __future__ import annotations

from typing import Any

from legato._clock import now_ns
from legato._context import client_hash, current_client, current_conversation
from legato._recorder import Origin, StreamRecorder
from legato._spans import start_span
from legato._state import settings
from legato._worker import worker

__all__ = ["begin", "stream"]


def begin(origin: Origin, *, start_ns: int | None = None, context: Any = None, sse: bool = False) -> StreamRecorder:
    """A recorder for a stream that began at ``start_ns`` (monotonic; now). ``context``: the parent's, else the current one."""
    chosen = settings()
    origin.conversation_id = origin.conversation_id or current_conversation()
    origin.client_hash = origin.client_hash or client_hash(current_client(), chosen.client_hash_key)
    start = now_ns() if start_ns is None else start_ns
    watcher = worker()
    recorder = StreamRecorder(origin, start_span(origin, start, context), start, watcher.finish, sse=sse)
    watcher.watch(recorder)
    return recorder


def stream(*, model: str = "", provider: str = "", vantage: str = "client", transport: str = "iterator") -> StreamRecorder:
    """Record a stream by hand.

    >>> with legato.stream(model="m", provider="p") as recorder:
    ...     for text in answer:
    ...         recorder.record(len(text.encode()))

    The block's exceptions decide the outcome: a cancel, a time-out, or an error; none is ``complete``. ``transport="iterator"`` (the
    default) says that reads and TTFB are unknown.
    """
    return begin(Origin(vantage=vantage, model=model, provider=provider, transport=transport, engine_id=settings().engine_id))
