"""OTLP over HTTP: bodies in, replies out.

One idea: what a body costs is bounded before it is spent: bytes on the wire, and bytes after decompression, counted while they come out.
Errors are protobuf too (google.rpc.Status), as the OTLP specification 1.11 asks. It judges no span and no point.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import zstandard
from google.rpc.status_pb2 import Status

from legato_ingest.errors import BadRequest, TooLarge

__all__ = ["PROTOBUF", "check_type", "decompress", "error_body"]

PROTOBUF = "application/x-protobuf"
_STEP = 256 * 1024
_STEP_IN = 1024
_GRPC_CODES = {400: 3, 404: 5, 413: 8, 415: 3, 429: 8, 503: 14}


def check_type(content_type: str) -> None:
    """Refuse anything but protobuf, before a byte of the body is read."""
    if content_type.split(";")[0].strip().lower() != PROTOBUF:
        raise BadRequest(f"content type {content_type[:100]!r} is not taken here: send {PROTOBUF}", 415)


def decompress(encoding: str, body: bytes, bytes_max: int) -> bytes:
    """A body's content. Raises ``BadRequest`` (400, 415) and ``TooLarge`` (413)."""
    encoding = encoding.strip().lower()
    if len(body) > bytes_max:
        raise TooLarge(f"a body of more than {bytes_max} bytes")
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "zstd"):
        raise BadRequest(f"content encoding {encoding[:40]!r} is not taken here: send gzip, zstd or none", 415)
    parts, size = [], 0
    try:
        for part in _gunzip(body) if encoding == "gzip" else _unzstd(body):
            size += len(part)
            if size > bytes_max:
                raise TooLarge(f"a body of more than {bytes_max} bytes after decompression")
            parts.append(part)
    except (zlib.error, zstandard.ZstdError, EOFError):
        raise BadRequest(f"the body is no whole {encoding} stream") from None
    return b"".join(parts)


def _gunzip(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        stream = zlib.decompressobj(wbits=31)
        while not stream.eof:
            if at >= len(body):
                raise EOFError
            step = body[at : at + _STEP_IN]
            at += len(step)
            while step and not stream.eof:
                yield stream.decompress(step, _STEP)
                step = stream.unconsumed_tail
        at -= len(stream.unused_data)


def _unzstd(body: bytes) -> Iterator[bytes]:
    """Each frame to its end: a reader that takes the end of the input for the end of a frame would acknowledge half a body."""
    # A frame may ask for a window of gigabytes: 8 MiB is what the format tells every reader to support.
    decompressor = zstandard.ZstdDecompressor(max_window_size=8 * 2**20)
    at = 0
    while at < len(body):
        frame = decompressor.decompressobj()
        while not frame.eof:
            if at >= len(body):
                raise EOFError
            # Small steps in, so that one step out is bounded: zstd's blocks hold at most 128 KiB.
            step = body[at : at + _STEP_IN]
            at += len(step)
            yield frame.decompress(step)
        at -= len(frame.unused_data)
    if not body:
        raise EOFError


def error_body(status: int, message: str) -> bytes:
    """The google.rpc.Status of a 4xx or 5xx."""
    return bytes(Status(code=_GRPC_CODES.get(status, 2), message=message).SerializeToString())
