"""Decompression of a response's body, read by read: gzip, deflate, and br and zstd where a package for them is installed.

A body that is not what its header claims, or that grows beyond a limit, gives ``None`` from then on; nothing here raises.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from typing import Any

__all__ = ["Decoder", "decoder_of"]

# A read of at most some hundred KB becomes at most this: a body made to exhaust memory is not decompressed further.
_OUTPUT_BYTES_MAX = 1 << 25


class Decoder:
    """Decompresses the reads of one body. ``make`` returns an object with ``decompress``, for a member of the body each."""

    __slots__ = ("_is_broken", "_make", "_stream")

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._stream: Any = None
        self._is_broken = False

    def decode(self, data: bytes) -> bytes | None:
        """Return what this read adds to the body, which may be nothing yet; ``None`` if the body cannot be decompressed."""
        if self._is_broken:
            return None
        try:
            return self._decode(data)
        except Exception:
            # Each package has its own exceptions.
            self._is_broken = True
            return None

    def _decode(self, data: bytes) -> bytes:
        parts: list[bytes] = []
        length = 0
        while data:
            if self._stream is None:
                self._stream = self._make()
            part = self._stream.decompress(data, _OUTPUT_BYTES_MAX)
            parts.append(part)
            length += len(part)
            if length >= _OUTPUT_BYTES_MAX:
                raise ValueError("the body grows too much")
            data = self._stream.unused_data if self._stream.eof else getattr(self._stream, "unconsumed_tail", b"")
            if self._stream.eof:
                self._stream = None
        return b"".join(parts)


class _Deflate:
    """HTTP's deflate: zlib's format, but some servers send it without the header."""

    def __init__(self) -> None:
        self._stream: Any = None

    def decompress(self, data: bytes, limit: int) -> bytes:
        """Decompress with the window that the first byte asks for."""
        if self._stream is None:
            self._stream = zlib.decompressobj(zlib.MAX_WBITS if data[0] & 0x0F == 8 else -zlib.MAX_WBITS)
        found: bytes = self._stream.decompress(data, limit)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Endless:
    """A decompressor of a package without a limit and without the end of a member."""

    eof, unused_data = False, b""

    def __init__(self, decompress: Callable[[bytes], bytes]) -> None:
        self._decompress = decompress

    def decompress(self, data: bytes, limit: int) -> bytes:
        """Decompress; ``limit`` is checked afterwards, by the caller."""
        return self._decompress(data)


def decoder_of(encoding: str) -> Decoder | None:
    """Return a decoder for a content encoding; ``None`` if no installed package supports it, or for several encodings at once."""
    if encoding in ("gzip", "x-gzip"):
        return Decoder(lambda: zlib.decompressobj(16 + zlib.MAX_WBITS))
    if encoding == "deflate":
        return Decoder(_Deflate)
    if encoding == "br":
        package = _first("brotli", "brotlicffi")
        return Decoder(lambda: _Endless(package.Decompressor().process)) if package else None
    if encoding == "zstd":
        package = _first("compression.zstd", "backports.zstd")
        if package is not None:
            return Decoder(package.ZstdDecompressor)
        package = _first("zstandard")
        return Decoder(lambda: _Endless(package.ZstdDecompressor().decompressobj().decompress)) if package else None
    return None


def _first(*names: str) -> Any:
    """Return the first of these packages that is installed; ``None`` if none is."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None
