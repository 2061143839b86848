"""`legato.instrument_requests()`: records the streamed responses of the package requests.

The patched function is the session's ``send`` with ``stream=True``, and the response's reads are those of ``raw``: of its ``stream``, which
``iter_content`` and ``iter_lines`` use, and of its ``read`` and the like. They wait for as many bytes as they were asked for, so small
reads of the network may be seen together.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from legato._body import Body
from legato._clock import now_ns
from legato._context import is_recorded, recorded
from legato._errors import ConfigurationError, guard
from legato._patches import Patch, Patches
from legato._reads import Reads, attaching
from legato._recorder import StreamRecorder
from legato._request import SentRequest
from legato._state import settings, setup

__all__ = ["instrument_requests", "uninstrument_requests"]

_patches = Patches("send")
_ITERATORS = ("stream", "read_chunked")


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
            with sent.carried(request.headers), recorded():
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
                    _attach(_BodyReads(recorder, response, sent.body), response)
        return response

    return send


def _sent(request: Any) -> SentRequest | None:
    with guard("instrument_requests"):
        url = urlsplit(request.url)
        body = request.body if isinstance(request.body, (bytes, str)) else b""
        content = body.encode("utf-8", "replace") if isinstance(body, str) else body
        return SentRequest(request.method, url.scheme, url.hostname or "", url.port, url.path, request.headers, content, now_ns())
    return None


def _attach(reads: _BodyReads, response: Any) -> None:
    """Record what the response's body yields, and its close. A body that does not yield parts by itself has no record."""
    if _record(reads, response.raw):
        response._legato = reads.recorder
    else:
        reads.recorder.discard()


def _record(reads: _BodyReads, raw: Any) -> bool:
    """Give the body a class that records its reads and ``close``; return whether that is possible.

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

    def close(self: Any) -> Any:
        reads: Reads | None = self._legato_reads
        if reads is not None:
            reads.closing()
        return kind.close(self)

    def recorded(name: str) -> Any:
        method = getattr(kind, name)
        wrapper = _iterating(method) if name in _ITERATORS else _reading(method, reads_all=name == "read")
        return functools.wraps(method)(wrapper)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    methods = {name: recorded(name) for name in (*_ITERATORS, "read", "read1") if callable(getattr(kind, name, None))}
    if callable(getattr(kind, "close", None)):
        methods["close"] = functools.wraps(kind.close)(close)
    return type(kind)(kind.__name__, (kind,), {**names, **methods, "__slots__": (), "_legato_reads": None})


def _iterating(method: Any) -> Any:
    """Return a recorded method that yields parts."""

    def parts(self: Any, *arguments: Any, **named: Any) -> Iterator[bytes]:
        reads: _BodyReads | None = self._legato_reads
        found = method(self, *arguments, **named)
        if reads is None or reads.is_within:
            return found  # type: ignore[no-any-return]
        reads.begin(self, arguments, named)
        return reads.iterate(reads.within(found))

    return parts


def _reading(method: Any, *, reads_all: bool) -> Any:
    """Return a recorded method that reads one part. ``reads_all``: without a size it reads all of them."""

    def read(self: Any, *arguments: Any, **named: Any) -> Any:
        reads: _BodyReads | None = self._legato_reads
        if reads is None or reads.is_within:
            return method(self, *arguments, **named)
        reads.begin(self, arguments, named)
        size = arguments[0] if arguments else named.get("amt", named.get("size"))
        return reads.take(lambda: method(self, *arguments, **named), size, reads_all=reads_all)

    return read


class _BodyReads(Reads):
    """The reads of a response's raw body. ``body``: where they are parsed. ``is_within``: one of them is running, and may make others."""

    def __init__(self, recorder: StreamRecorder, response: Any, body: Body | None) -> None:
        super().__init__(recorder, response, holds=True)
        self._body, self._encoding = body, response.headers.get("content-encoding", "")
        self._read_ns = self._handed_over_ns = 0
        self.is_within = False

    def begin(self, raw: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A read is asked for. The first decides whether urllib3 decompresses: a proxy passes on what is on the wire."""
        body, self._body = self._body, None
        chosen = arguments[1] if len(arguments) > 1 else named.get("decode_content")
        if body is not None and not (getattr(raw, "decode_content", True) if chosen is None else chosen):
            body.compressed(self._encoding)

    def within(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the parts. What the body reads for one of them is no other read."""
        while True:
            self.is_within = True
            try:
                part = next(parts)
            except StopIteration:
                return
            finally:
                self.is_within = False
            yield part

    def take(self, read: Callable[[], Any], size: int | None, *, reads_all: bool) -> Any:
        """Read one part of ``size`` bytes, or all of them, and record it."""
        recorder = self.recorder
        if self._handed_over_ns:
            recorder.held_read((self._read_ns, now_ns() - self._handed_over_ns))
        self._reader, self.is_within = self._current(), True
        try:
            data = read()
        except BaseException as error:
            recorder.end(error=error)
            raise
        finally:
            self._reader, self.is_within = None, False
        self._read_ns = now_ns()
        if data:
            recorder.read((self._read_ns, bytes(data)))
        is_all = reads_all and (size is None or size < 0)
        if is_all or (not data and size != 0):
            recorder.end()
        self._handed_over_ns = now_ns() if data else 0
        return data
