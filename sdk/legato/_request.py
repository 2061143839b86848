"""A request that a client sends, as far as it shows whether a stream of a model is wanted.

That is its address, and ``model`` and ``stream`` in its body, which is looked through for these two and not kept. What the body contains
is not looked at: the inputs of tools may have fields of the same names. A request that asks for a stream carries the trace context, and
its failure is a row: an exception before the headers, or a status of the server's side (429, and from 500). Other statuses, and requests
that cannot be sent, are the caller's errors and have none. A GET or a call of JSON-RPC (MCP) asks for none: its event stream is a row only
in a known format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from urllib.parse import unquote

from opentelemetry import trace

from legato._body import OPENAI_PATHS, PLAIN_TEXT, Body, is_streamed, media_type
from legato._clock import now_ns
from legato._context import began, carried_by, parent_context
from legato._errors import guard
from legato._hosts import provider_at
from legato._recorder import Origin, StreamRecorder
from legato._spans import start_span
from legato._state import recording_settings
from legato._stream import begin

__all__ = ["SentRequest", "asked", "is_callers_error"]

# A larger body is searched instead of parsed: prompts with pictures have megabytes.
_PARSED_BYTES_MAX = 1 << 16
# One of the two fields, any other string, a bracket, or the start of a string that does not end.
_TOKEN = re.compile(rb'"(model|stream)"\s*:\s*(?:"([^"\\]{1,200})"|(true))|"[^"\\]*+(?:\\.[^"\\]*+)*+"|([{\[])|([}\]])|(")', re.DOTALL)
# A library writes the mark of JSON-RPC first or last.
_RPC, _RPC_WITHIN = b'"jsonrpc"', 200
# Gemini and Bedrock have both in the address. Bedrock's names have colons, and its inference profiles slashes. Elsewhere the address may
# have only the first part of a name with a slash.
_MODEL_IN_PATH = re.compile(r"/model/(.+)/(?:converse-stream|invoke-with-response-stream)$|/models?/([^/:]+):|/models?/([^/:]+)/")
_STREAM_IN_PATH = re.compile(r":streamGenerateContent$|:streamRawPredict$|/converse-stream$|/invoke-with-response-stream$")
_SCHEMES = ("http", "https")
# Errors before anything is sent that are no ValueErrors, or OSErrors as well. Those of the scheme are the caller's if the request's own
# address has a wrong one; otherwise a server redirects to it.
_UNSENT, _WRONG_SCHEME = ("InvalidURL", "InvalidProxyURL"), ("InvalidSchema", "NonHttpUrlClientError", "UnsupportedProtocol")


def is_callers_error(error: BaseException, scheme: str) -> bool:
    """Whether a request raised by a fault of the caller's, which is no row: one that cannot be sent, or a status of the client's side.

    ``scheme``: that of the request's address.
    """
    if status := _status_of(error):
        return _is_callers_status(status)
    causes = list(_causes(error))
    # aiohttp's, if a server redirects to an address that is invalid or not of HTTP.
    if any(type(cause).__name__.endswith("RedirectClientError") for cause in causes):
        return False
    return any(_is_callers_fault(cause, scheme) for cause in causes)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, each once: an application that tries again may raise an error from itself."""
    seen = set[int]()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        yield cause
        seen.add(id(cause))
        cause = cause.__cause__


def _is_callers_fault(cause: BaseException, scheme: str) -> bool:
    kind = type(cause)
    if kind.__name__ in _UNSENT or (kind.__name__ in _WRONG_SCHEME and scheme not in _SCHEMES):
        return True
    # A header. What a server sends over HTTP/2 raises the same error of httpcore, which names no cause; but there it is none of h11's.
    if kind.__name__ == "LocalProtocolError" and type(cause.__context__).__module__.startswith("h11."):
        return True
    # Arguments, URLs and headers. A certificate that is wrong is a ValueError, too.
    return isinstance(cause, (TypeError, ValueError)) and not isinstance(cause, OSError)


def _is_callers_status(status: int) -> bool:
    return 400 <= status < 500 and status != 429


def _status_of(error: BaseException) -> int:
    """Return the status of the response that a client raised as an error; 0 if it is none.

    aiohttp raises a response that it cannot parse with the status 400, and what is wrong with it as the cause.
    """
    of_response = getattr(getattr(error, "response", None), "status_code", None)
    status = getattr(error, "status", None) if of_response is None and error.__cause__ is None else of_response
    return status if isinstance(status, int) and status >= 400 else 0


def asked(path: str, content: bytes) -> tuple[str, bool]:
    """Return the model that a request asks for, and whether it asks for a stream."""
    model, is_stream = _in_body(content)
    in_path = _MODEL_IN_PATH.search(path)
    whole, first_part = (unquote(in_path[1] or in_path[2] or ""), unquote(in_path[3] or "")) if in_path else ("", "")
    return whole or model or first_part, is_stream or bool(_STREAM_IN_PATH.search(path))


def _in_body(content: bytes) -> tuple[str, bool]:
    if not content.startswith(b"{"):
        return "", False
    if len(content) > _PARSED_BYTES_MAX:
        return _searched(content)
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return "", False
    given = body.get("model")
    return given[:200] if isinstance(given, str) else "", body.get("stream") is True


def _searched(content: bytes) -> tuple[str, bool]:
    """Return what the outermost object has as ``model`` and ``stream``. Inside it may be text of a prompt, which must not be taken."""
    model, is_stream, depth = "", False, 0
    for token in _TOKEN.finditer(content):
        key, name, _, opening, closing, unended = token.groups()
        if unended:
            break
        if opening:
            depth += 1
        elif closing:
            depth -= 1
        elif key and depth == 1:
            model = name.decode("utf-8", "replace") if key == b"model" and name else model
            is_stream = is_stream or (key == b"stream" and not name)
    return model, is_stream


def _is_rpc(content: bytes) -> bool:
    """Whether this is a call of JSON-RPC, such as one of a tool: its response is no model's, also as an event stream."""
    return _RPC in content[:_RPC_WITHIN] or _RPC in content[-_RPC_WITHIN:]


class SentRequest:
    """One request from before it is sent until its headers arrive. ``start_ns``: monotonic time.

    One that names a stream has its recorder from the start, and is reported if it has to wait. One that only accepts events has it from the
    headers: its response may be anything. Each request is to be followed by `failed` or `answered`.
    """

    __slots__ = ("_headers", "_is_provisional", "_is_wanted", "_origin", "_path", "_recorder", "_scheme", "_span", "_start_ns", "body")

    def __init__(
        self, method: str, scheme: str, host: str, port: int | None, path: str, headers: Mapping[str, str], content: bytes, start_ns: int
    ) -> None:
        model, is_stream = asked(path, content)
        self._scheme, self._path, self._headers, self._start_ns = scheme, path, headers, start_ns
        # Browsers' event streams and calls of tools accept events, too.
        is_prompt = method == "POST" and not _is_rpc(content)
        self._is_wanted = is_stream or (is_prompt and "text/event-stream" in headers.get("accept", ""))
        self._is_provisional = not is_stream and not is_prompt
        self._origin = Origin(
            model=model,
            provider=provider_at(host),
            transport="http/1.1",
            engine_id=recording_settings().engine_id,
            server_address=host,
            server_port=port or (443 if scheme == "https" else 80),
        )
        self._recorder: StreamRecorder | None = None
        self._span: trace.Span | None = None
        self.body: Body | None = None
        """That of the response, if it is recorded."""
        if is_stream:
            self._recorder = begin(self._origin, start_ns=start_ns)
            self._recorder.awaits_headers, self._span = True, self._recorder.span
        elif self._is_wanted:
            self._span = start_span(self._origin, start_ns, parent_context())

    def trace_headers(self) -> dict[str, str]:
        """Return the headers that carry the trace context; none if the request asks for no stream or has one already."""
        return carried_by(self._span) if self._span is not None and "traceparent" not in self._headers else {}

    @contextmanager
    def carried(self, headers: MutableMapping[str, str]) -> Iterator[None]:
        """Inside, the headers of the request carry the trace context. A request that is sent again is another stream, with its context."""
        carrier, given = dict[str, str](), dict[str, str]()
        with guard("instrumentation"):
            carrier = self.trace_headers()
            given = {name: headers[name] for name in carrier if name in headers}
            headers.update(carrier)
        try:
            yield
        finally:
            with guard("instrumentation"):
                for name in carrier:
                    headers.pop(name, None)
                headers.update(given)

    def failed(self, error: BaseException) -> None:
        """The request raised before its response had headers, or its client raised the status of the response."""
        with guard("instrumentation"):
            if status := _status_of(error):
                self.answered(status, {})
            elif self._is_wanted and not is_callers_error(error, self._scheme):
                self._begin(Body()).end(error=error)
            elif self._recorder is not None:
                self._recorder.discard()

    def answered(
        self, status: int, headers: Mapping[str, str], *, is_decoded: bool = False, is_read: bool = False
    ) -> StreamRecorder | None:
        """Return the recorder for the response's body; ``None`` if it is no stream, or ``is_read``: it was read before.

        ``is_decoded``: the reads will be decompressed.
        """
        recorder = None
        try:
            if status >= 400:
                if self._is_wanted and not _is_callers_status(status):
                    self._begin(Body()).end("upstream_error", error_type=f"http_{status}")
            elif not is_read:
                recorder = self._stream_of(headers, is_decoded)
        finally:
            if recorder is None and self._recorder is not None and not self._recorder.ended:
                self._recorder.discard()
        return recorder

    def _stream_of(self, headers: Mapping[str, str], is_decoded: bool) -> StreamRecorder | None:
        kind = media_type(headers.get("content-type", ""))
        is_array = kind == "application/json" and self._path.endswith(":streamGenerateContent")
        if not (is_streamed(kind) or is_array or (kind == PLAIN_TEXT and self._is_wanted)):
            return None
        encoding = "" if is_decoded else headers.get("content-encoding", "")
        self.body = Body(kind, encoding, expects_end=self._path.endswith(OPENAI_PATHS), is_array=is_array)
        recorder = self._begin(self.body)
        recorder.provisional, recorder.asked = self._is_provisional, self._is_wanted
        recorder.ttfb_ns = now_ns()
        return recorder

    def _begin(self, body: Body) -> StreamRecorder:
        recorder = self._recorder
        if recorder is None:
            recorder = begin(self._origin, start_ns=self._start_ns, body=body, span=self._span)
        else:
            recorder.opened(body)
        return began(recorder)
