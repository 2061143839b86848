"""The answer to clients that speak HTTP/2 at the HTTP port, which are nearly always gRPC exporters with the wrong port.

Such a client begins with the preface of HTTP/2 (RFC 9113 §3.4). Each of its calls is answered with the status UNAVAILABLE and a sentence,
which exporters log; a Collector keeps what it could not send. The server logs what to change, too. Only the heads of frames are read. Over
TLS the client fails earlier, because the port offers no HTTP/2 (ALPN). The opposite mistake, HTTP at the gRPC port, is answered by gRPC's
own code with frames of HTTP/2.
"""

from __future__ import annotations

import asyncio
import logging
import time

from legato_ingest.http_protocol import HttpProtocol

__all__ = ["protocol_class"]

_log = logging.getLogger("legato")
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _SETTINGS = 1, 4
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_HEAD_BYTES = 9
_STATUS_200 = b"\x88"
_LOG_EVERY_S = 60.0
_CALLS_MAX, _FRAMES_MAX, _BUFFER_BYTES_MAX, _OPEN_S_MAX = 100, 1_000, 65_536, 60.0


def protocol_class(grpc_port: int) -> type[asyncio.Protocol]:
    """Return the HTTP protocol with this answer. ``grpc_port`` is the port for gRPC; 0 without one."""
    if grpc_port:
        todo = f"this is Legato's HTTP port: for gRPC use port {grpc_port}, or OTLP over HTTP (http/protobuf)"
    else:
        todo = "this is Legato's HTTP port, and gRPC is off (LEGATO_OTLP_GRPC_PORT): use OTLP over HTTP (http/protobuf)"
    last_log_s = float("-inf")

    class Protocol(HttpProtocol):
        """A connection that may begin with the preface."""

        is_first = True
        frames: _Frames | None = None

        def data_received(self, data: bytes) -> None:
            """Receive bytes of the connection."""
            nonlocal last_log_s
            if self.frames is None and not (self.is_first and data.startswith(_PREFACE)):
                self.is_first = False
                super().data_received(data)
                return
            if self.frames is None:
                self.frames, data = _Frames(todo), data[len(_PREFACE) :]
                self.expect("")
                self.transport.write(_frame(_SETTINGS, 0, 0))
                asyncio.get_running_loop().call_later(_OPEN_S_MAX, self.transport.close)
                if time.monotonic() - last_log_s >= _LOG_EVERY_S:
                    last_log_s = time.monotonic()
                    _log.warning("a client speaks HTTP/2, probably gRPC, and is refused: %s", todo)
            self.transport.write(self.frames.answer(data))
            # A client that does not read its answers, or that never ends, gets no more of them.
            if self.frames.is_over or self.transport.get_write_buffer_size() > _BUFFER_BYTES_MAX:
                self.transport.abort()

    return Protocol


class _Frames:
    """Answers the frames of one connection; ``sentence`` has less than 127 characters. Contents of frames are skipped."""

    def __init__(self, sentence: str) -> None:
        fields = {"content-type": "application/grpc", "grpc-status": "14", "grpc-message": sentence}
        self._answer = _STATUS_200 + b"".join(_field(name, value) for name, value in fields.items())
        self._head = b""
        self._skip = 0
        self._calls = self._frames = 0

    @property
    def is_over(self) -> bool:
        """Whether the client has sent as many calls, or frames, as are answered in one connection."""
        return self._calls > _CALLS_MAX or self._frames > _FRAMES_MAX

    def answer(self, data: bytes) -> bytes:
        """Return the answers to the frames that begin in these bytes: to settings, and to the headers of calls."""
        out, at = [], 0
        while at < len(data) and not self.is_over:
            step = min(self._skip or _HEAD_BYTES - len(self._head), len(data) - at)
            if self._skip:
                self._skip -= step
            else:
                self._head += data[at : at + step]
            at += step
            if len(self._head) == _HEAD_BYTES:
                out.append(self._to(self._head))
                self._skip, self._head = int.from_bytes(self._head[:3], "big"), b""
        return b"".join(out)

    def _to(self, head: bytes) -> bytes:
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
        self._frames += 1
        if kind == _SETTINGS and not flags & _ACK:
            return _frame(_SETTINGS, _ACK, 0)
        if kind != _HEADERS:
            return b""
        self._calls += 1
        return _frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, self._answer)


def _frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return len(content).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + content


def _field(name: str, value: str) -> bytes:
    """A header field as a literal without indexing (RFC 7541 §6.2.2). Lengths up to 126 take one byte."""
    return b"\0" + b"".join(bytes((len(text),)) + text.encode() for text in (name, value))
