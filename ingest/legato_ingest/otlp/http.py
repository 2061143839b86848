"""OTLP over HTTP: content types, decompression of request bodies, and the bodies of error replies.

The size of a body is bounded before memory is allocated for it, both as received and after decompression, where bytes are counted as they
are produced. Error replies are protobuf (google.rpc.Status), as the OTLP specification 1.11 demands.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import zstandard
from google.rpc.status_pb2 import Status

from legato_ingest.errors import BadRequest, TooLarge

__all__ = ["PROTOBUF", "check_type", "decompress", "error_body"]

PROTOBUF = "application/x-protobuf"
# Bytes of one step of decompression: the most that gzip produces, and the input of gzip and zstd.
_OUTPUT_STEP = 256 * 1024
_INPUT_STEP = 1024
_GRPC_CODES = {400: 3, 404: 5, 413: 8, 415: 3, 429: 8, 503: 14}


def check_type(content_type: str) -> None:
    """Raise ``BadRequest`` (415) for any content type but protobuf."""
    if content_type.split(";")[0].strip().lower() != PROTOBUF:
        raise BadRequest(f"content type {content_type[:100]!r} is not supported: send {PROTOBUF}", 415)


def decompress(encoding: str, body: bytes, bytes_max: int) -> bytes:
    """Return the decompressed body. Raises ``BadRequest`` (400, 415) and ``TooLarge`` (413)."""
    encoding = encoding.strip().lower()
    if len(body) > bytes_max:
        raise TooLarge(f"a body of more than {bytes_max} bytes")
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "zstd"):
        raise BadRequest(f"content encoding {encoding[:40]!r} is not supported: send gzip, zstd or none", 415)
    parts, size = [], 0
    try:
        for part in _gunzip(body) if encoding == "gzip" else _unzstd(body):
            size += len(part)
            if size > bytes_max:
                raise TooLarge(f"a body of more than {bytes_max} bytes after decompression")
            parts.append(part)
    except (zlib.error, zstandard.ZstdError, EOFError):
        raise BadRequest(f"the body is not a complete {encoding} stream") from None
    return b"".join(parts)


def _gunzip(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        stream = zlib.decompressobj(wbits=31)
        while not stream.eof:
            if at >= len(body):
                raise EOFError
            step = body[at : at + _INPUT_STEP]
            at += len(step)
            while step and not stream.eof:
                yield stream.decompress(step, _OUTPUT_STEP)
                step = stream.unconsumed_tail
        at -= len(stream.unused_data)


def _unzstd(body: bytes) -> Iterator[bytes]:
    """Decompress every frame to its end. A decoder that accepts the end of the input inside a frame would acknowledge half a body."""
    # A frame may demand a window of gigabytes. The format recommends that decoders support at least 8 MiB (RFC 8878, section 3.1.1.1.2).
    decompressor = zstandard.ZstdDecompressor(max_window_size=8 * 2**20)
    at = 0
    while at < len(body):
        frame = decompressor.decompressobj()
        while not frame.eof:
            if at >= len(body):
                raise EOFError
            # Small input steps bound each output step, because a zstd block holds at most 128 KiB.
            step = body[at : at + _INPUT_STEP]
            at += len(step)
            yield frame.decompress(step)
        at -= len(frame.unused_data)
    if not body:
        raise EOFError


def error_body(status: int, message: str) -> bytes:
    """Return the google.rpc.Status of a 4xx or 5xx reply."""
    return bytes(Status(code=_GRPC_CODES.get(status, 2), message=message).SerializeToString())
