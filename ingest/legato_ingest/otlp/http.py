"""OTLP over HTTP: content types, decompression of request bodies, and the encoding of replies.

The size of a body is bounded before memory is allocated for it, both as received and after decompression, where bytes are counted as they
are produced. Every reply has the encoding of its request, as the OTLP specification 1.11 demands; an error is a google.rpc.Status.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator

import zstandard
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status

from legato_ingest.errors import BadRequest, TooLarge

__all__ = ["GRPC_CODES", "JSON", "PROTOBUF", "check_type", "decompress", "encoded", "error_message", "reply_type"]

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
# The gRPC status with the meaning of each HTTP status that Legato sends.
GRPC_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 413: 8, 415: 3, 429: 8, 503: 14}
# Bytes of one step of decompression: the most that is produced, and the input.
_OUTPUT_STEP = 256 * 1024
_INPUT_STEP = 1024
# Members of gzip, or frames of zstd, in one body. Senders write one; each takes microseconds, and an empty one nine bytes.
_PARTS_MAX = 1_024


def check_type(content_type: str) -> str:
    """Return the media type of a body, ``PROTOBUF`` or ``JSON``. Raises ``BadRequest`` (415) for any other."""
    found = _media_type(content_type)
    if found not in (PROTOBUF, JSON):
        raise BadRequest(f"content type {content_type[:100]!r} is not supported: send {PROTOBUF} or {JSON}", 415)
    return found


def reply_type(content_type: str) -> str:
    """Return the media type of the reply to a request with this content type. People can read an error in JSON."""
    return PROTOBUF if _media_type(content_type) == PROTOBUF else JSON


def _media_type(content_type: str) -> str:
    return content_type.split(";")[0].strip().lower()


def decompress(encoding: str, body: bytes, bytes_max: int) -> bytes:
    """Return the decompressed body. Raises ``BadRequest`` (400, 415) and ``TooLarge`` (413)."""
    encoding = encoding.strip().lower()
    if len(body) > bytes_max:
        raise TooLarge(f"a body of more than {bytes_max} bytes")
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "zstd"):
        raise BadRequest(f"content encoding {encoding[:40]!r} is not supported: send gzip, zstd or none", 415)
    # Its value is not copied when it is returned.
    content, size = io.BytesIO(), 0
    try:
        if encoding == "zstd":
            _check_zstd_size(body, bytes_max)
        for part in _gunzip(body) if encoding == "gzip" else _unzstd(body):
            size += len(part)
            if size > bytes_max:
                raise _too_large(bytes_max)
            content.write(part)
    except (zlib.error, zstandard.ZstdError, EOFError):
        raise BadRequest(f"the body is not a complete {encoding} stream") from None
    return content.getvalue()


def _gunzip(body: bytes) -> Iterator[bytes]:
    at = parts = 0
    while at < len(body):
        parts += 1
        _check_parts(parts)
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


def _check_parts(parts: int) -> None:
    if parts > _PARTS_MAX:
        raise TooLarge(f"a compressed body of more than {_PARTS_MAX} parts: send one")


def _too_large(bytes_max: int) -> TooLarge:
    return TooLarge(f"a body of more than {bytes_max} bytes after decompression")


def _zstd() -> zstandard.ZstdDecompressor:
    # A frame may demand a window of gigabytes. The format recommends that decoders support at least 8 MiB (RFC 8878, section 3.1.1.1.2).
    return zstandard.ZstdDecompressor(max_window_size=8 * 2**20)


def _check_zstd_size(body: bytes, bytes_max: int) -> None:
    """Raise ``TooLarge`` if the body has more than ``bytes_max`` bytes after decompression. Called before ``_unzstd``.

    A block of 4 bytes may stand for 128 KiB, so a step of ``_unzstd`` may produce 33 MB. The steps of a reader are bounded, but a reader
    accepts the end of the input inside a frame.
    """
    size = 0
    with _zstd().stream_reader(body, read_across_frames=True) as reader:
        while part := reader.read(min(_OUTPUT_STEP, bytes_max + 1)):
            size += len(part)
            if size > bytes_max:
                raise _too_large(bytes_max)


def _unzstd(body: bytes) -> Iterator[bytes]:
    """Decompress every frame to its end. A decoder that accepts the end of the input inside a frame would acknowledge half a body."""
    decompressor = _zstd()
    at = parts = 0
    while at < len(body):
        parts += 1
        _check_parts(parts)
        frame = decompressor.decompressobj()
        while not frame.eof:
            if at >= len(body):
                raise EOFError
            step = body[at : at + _INPUT_STEP]
            at += len(step)
            yield frame.decompress(step)
        at -= len(frame.unused_data)
    if not body:
        raise EOFError


def error_message(status: int, message: str) -> Message:
    """Return the google.rpc.Status of a 4xx or 5xx reply."""
    return Status(code=GRPC_CODES.get(status, 2), message=message)


def encoded(message: Message, media_type: str) -> bytes:
    """Return a message as the body of a reply."""
    if media_type == JSON:
        return bytes(MessageToJson(message, indent=None).encode())
    return bytes(message.SerializeToString())
