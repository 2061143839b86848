"""Decompression of a response's body, read by read: gzip, deflate, and br and zstd where a package for them is installed.

What a read becomes is returned in pieces, so that a body made to exhaust memory costs that of a piece. A body that is not what its header
claims, or that grows beyond all text, is broken from then on; nothing here raises.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

__all__ = ["Decoder", "decoder_of"]

_PIECE_BYTES = 1 << 16
# A text that repeats itself in each event becomes a hundredth. Beyond the first bytes a body that grows by more is none.
_FREE_BYTES, _RATIO_MAX = 1 << 23, 100
# The rest of a read is copied after each member of the body, so that many small ones would take long.
_MEMBERS_MAX = 1_000
# What a server may ask for as the window of zstd, by RFC 9659.
_ZSTD_WINDOW_LOG = 23
# So many bytes of zstd become at most some blocks of 128 KiB.
_ZSTD_SLICE_BYTES = 16


class _Stream(Protocol):
    """Decompresses one member of a body."""

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield what these bytes become."""

    def rest(self) -> bytes | None:
        """Return the bytes after the end of the member; ``None`` before its end."""


class Decoder:
    """Decompresses the reads of one body. ``make`` returns a stream for each of its members. ``is_broken``: nothing more comes of it."""

    __slots__ = ("_given", "_make", "_stream", "_taken", "is_broken")

    def __init__(self, make: Callable[[], _Stream]) -> None:
        self._make = make
        self._stream: _Stream | None = None
        self._taken = self._given = 0
        self.is_broken = False

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield what this read adds to the body, in pieces; some may be empty."""
        try:
            yield from self._decode(data)
        except Exception:
            # Each package has its own exceptions.
            self.is_broken = True

    def _decode(self, data: bytes) -> Iterator[bytes]:
        self._taken += len(data)
        members = 0
        while data:
            members += 1
            if members > _MEMBERS_MAX:
                raise ValueError("a read has too many members")
            stream = self._stream = self._stream or self._make()
            for piece in stream.pieces(data):
                self._given += len(piece)
                if self._given > _FREE_BYTES + _RATIO_MAX * self._taken:
                    raise ValueError("the body grows too much")
                yield piece
            rest = stream.rest()
            data = rest or b""
            if rest is not None:
                self._stream = None


class _Zlib:
    """Of gzip; of deflate, HTTP's: zlib's format, but some servers send it without the header."""

    def __init__(self, window_bits: int | None) -> None:
        self._stream: Any = None if window_bits is None else zlib.decompressobj(window_bits)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        if self._stream is None:
            self._stream = zlib.decompressobj(zlib.MAX_WBITS if data[0] & 0x0F == 8 else -zlib.MAX_WBITS)
        piece = b""
        # A full piece may not be all of the output.
        while data or len(piece) == _PIECE_BYTES:
            piece = self._stream.decompress(data, _PIECE_BYTES)
            data = self._stream.unconsumed_tail
            yield piece

    def rest(self) -> bytes | None:
        return self._stream.unused_data if self._stream.eof else None


class _Zstd:
    """Of Python's package or its backport."""

    def __init__(self, package: Any) -> None:
        self._stream = package.ZstdDecompressor(options={package.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})

    def pieces(self, data: bytes) -> Iterator[bytes]:
        yield self._stream.decompress(data, _PIECE_BYTES)
        while not (self._stream.eof or self._stream.needs_input):
            yield self._stream.decompress(b"", _PIECE_BYTES)

    def rest(self) -> bytes | None:
        return self._stream.unused_data if self._stream.eof else None


class _Zstandard:
    """Of the package `zstandard`, which has no limit for the output: it gets a few bytes at a time."""

    def __init__(self, package: Any) -> None:
        self._stream = package.ZstdDecompressor(max_window_size=1 << _ZSTD_WINDOW_LOG).decompressobj()
        self._rest: bytes | None = None

    def pieces(self, data: bytes) -> Iterator[bytes]:
        for at in range(0, len(data), _ZSTD_SLICE_BYTES):
            yield self._stream.decompress(data[at : at + _ZSTD_SLICE_BYTES])
            if self._stream.eof:
                self._rest = self._stream.unused_data + data[at + _ZSTD_SLICE_BYTES :]
                return

    def rest(self) -> bytes | None:
        return self._rest


class _Brotli:
    """Of a package for brotli. One without a limit for the output, as `brotli` before 1.2, raises: a few bytes may become gigabytes."""

    def __init__(self, package: Any) -> None:
        self._stream = package.Decompressor()

    def pieces(self, data: bytes) -> Iterator[bytes]:
        piece = self._stream.process(data, output_buffer_limit=_PIECE_BYTES)
        yield piece
        # It accepts more data although a full piece is not all of the output.
        while piece and (len(piece) >= _PIECE_BYTES or not self._stream.can_accept_more_data()):
            piece = self._stream.process(b"", output_buffer_limit=_PIECE_BYTES)
            yield piece

    def rest(self) -> bytes | None:
        return None


def decoder_of(encoding: str) -> Decoder | None:
    """Return a decoder for a content encoding; ``None`` if no installed package supports it, or for several encodings at once."""
    if encoding in ("gzip", "x-gzip"):
        return Decoder(lambda: _Zlib(16 + zlib.MAX_WBITS))
    if encoding == "deflate":
        return Decoder(lambda: _Zlib(None))
    if encoding == "br":
        package = _first("brotli", "brotlicffi")
        return Decoder(lambda: _Brotli(package)) if package else None
    if encoding == "zstd":
        package = _first("compression.zstd", "backports.zstd")
        if package is not None:
            return Decoder(lambda: _Zstd(package))
        package = _first("zstandard")
        return Decoder(lambda: _Zstandard(package)) if package else None
    return None


def _first(*names: str) -> Any:
    """Return the first of these packages that is installed; ``None`` if none is."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None
