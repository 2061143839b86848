"""`legato.instrument_requests()`: records the streamed responses of the package requests.

The patched function is the session's ``send`` with ``stream=True``, and the response's reads are those of ``raw.stream``, which
``iter_content`` and ``iter_lines`` use. They wait for as many bytes as they were asked for, so small reads of the network may be seen
together.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from legato._clock import now_ns
from legato._context import is_recorded, recorded
from legato._errors import ConfigurationError, guard
from legato._patches import Patch, Patches
from legato._reads import Reads, attaching
from legato._request import SentRequest
from legato._state import settings, setup

__all__ = ["instrument_requests", "uninstrument_requests"]

_patches = Patches("send")


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
    _patches.install(session, _patched)


@setup
def uninstrument_requests() -> None:
    """Undo ``instrument_requests``. Streams that are running are still recorded to their end."""
    _patches.undo()


def _patched(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    def send(self: Any, request: Any, **more: Any) -> Any:
        sent = _sent(request) if patch.is_on and more.get("stream") and not is_recorded() else None
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
    """Record what the response's body yields, and its close. A body that does not yield parts by itself has no record."""
    if _record(reads, response.raw):
        response._legato = reads.recorder
    else:
        reads.recorder.discard()


def _record(reads: Reads, raw: Any) -> bool:
    """Give the body a class that records its ``stream`` and ``close``; return whether that is possible.

    A replacement in an attribute of the object would need the object. A strong reference is a cycle, which keeps the connection of a
    response that is dropped until the garbage collector runs; with a weak one the body is gone where nothing else has it, as in
    `requests.post(…).raw.stream()`.
    """
    kind = type(raw)
    if hasattr(kind, "_legato_reads"):
        raw._legato_reads = reads
        return True
    if not callable(getattr(kind, "stream", None)) or raw.__class__ is not kind or "stream" in getattr(raw, "__dict__", ()):
        return False
    try:
        raw._legato_reads = reads
        raw.__class__ = _recorded_class(kind)
    except (AttributeError, TypeError):
        # A class of C code, or with slots.
        return False
    return True


@functools.lru_cache(maxsize=64)
def _recorded_class(kind: Any) -> Any:
    """Return the class of recorded bodies of this kind. It has the same name. An object that an application makes of it has no record."""

    def stream(self: Any, *arguments: Any, **named: Any) -> Iterator[bytes]:
        reads: Reads | None = self._legato_reads
        parts = kind.stream(self, *arguments, **named)
        return parts if reads is None else reads.iterate(parts)

    def close(self: Any) -> Any:
        reads: Reads | None = self._legato_reads
        if reads is not None:
            reads.closing()
        return kind.close(self)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    methods = {"stream": functools.wraps(kind.stream)(stream)}
    if callable(getattr(kind, "close", None)):
        methods["close"] = functools.wraps(kind.close)(close)
    return type(kind)(kind.__name__, (kind,), {**names, **methods, "__slots__": (), "_legato_reads": None})
