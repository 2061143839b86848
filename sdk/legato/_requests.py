"""`legato.instrument_requests()`: records the streamed responses of the package requests.

The patched function is the session's ``send`` with ``stream=True``, and the response's reads are those of ``iter_content`` and
``iter_lines``. They wait for as many bytes as they were asked for, so small reads of the network may be seen together.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from legato._clock import now_ns
from legato._context import is_recorded, recorded
from legato._errors import ConfigurationError, guard
from legato._reads import Reads, attaching
from legato._request import SentRequest
from legato._state import settings, setup

__all__ = ["instrument_requests", "uninstrument_requests"]

_originals: dict[type, Callable[..., Any]] = {}


def instrument_requests() -> None:
    """Record every response that requests streams from now on. Further calls have no effect.

    Raises ``ConfigurationError`` if requests is not installed.
    """
    if not importlib.util.find_spec("requests"):
        raise ConfigurationError("the package requests is not installed: pip install requests")
    if not settings().disabled:
        _install(importlib.import_module("requests").Session)


@setup
def _install(session: Any) -> None:
    if session not in _originals:
        _originals[session] = session.send
        session.send = _patched(session.send)


@setup
def uninstrument_requests() -> None:
    """Undo ``instrument_requests``. Streams that are running are still recorded to their end."""
    for session, original in _originals.items():
        session.send = original  # type: ignore[attr-defined]
    _originals.clear()


def _patched(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def send(self: Any, request: Any, **more: Any) -> Any:
        sent = _sent(request) if more.get("stream") and not is_recorded() else None
        if sent is None:
            return original(self, request, **more)
        try:
            with recorded():
                response = original(self, request, **more)
        except BaseException as error:
            sent.failed(error)
            raise
        with guard("instrument_requests"):
            # A hook of the application may have read it.
            is_read = getattr(response, "_content", False) is not False or getattr(response, "_content_consumed", False)
            recorder = sent.answered(response.status_code, response.headers, is_decoded=True, is_read=is_read)
            if recorder is not None:
                with attaching("instrument_requests", recorder):
                    _attach(Reads(recorder, response, holds=True), response)
        return response

    return send


def _sent(request: Any) -> SentRequest | None:
    with guard("instrument_requests"):
        url = urlsplit(request.url)
        body = request.body if isinstance(request.body, (bytes, str)) else b""
        content = body.encode("utf-8", "replace") if isinstance(body, str) else body
        port = url.port or (443 if url.scheme == "https" else 80)
        sent = SentRequest(request.method, url.hostname or "", port, url.path, request.headers, content, now_ns())
        request.headers.update(sent.trace_headers())
        return sent
    return None


def _attach(reads: Reads, response: Any) -> None:
    """Replace ``stream`` of the response's body and ``close`` of the response.

    Neither keeps what it is a method of: in a reference cycle a response that is dropped would keep its connection until the garbage
    collector runs.
    """
    raw_of, response_of = weakref.ref(response.raw), weakref.ref(response)

    def stream(*arguments: Any, **named: Any) -> Iterator[bytes]:
        raw = raw_of()
        return reads.iterate(type(raw).stream(raw, *arguments, **named)) if raw is not None else iter(())

    def close() -> None:
        reads.closing()
        found = response_of()
        if found is not None:
            type(found).close(found)

    response.raw.stream, response.close, response._legato = stream, close, reads.recorder
