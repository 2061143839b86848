"""Packs columns of integers as patched frames of reference (schema/TIMELINE.md, "A column's payload").

One sort of a column yields its cheapest width; numpy does the rest. The module does not depend on the meaning of the columns and does not
unpack.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["ROWS_MAX", "pack"]

ROWS_MAX = 65_536
_VALUE_MAX = 2**32 - 1
_HEAD, _ENTRY, _COLUMN = struct.Struct("<BBI"), struct.Struct("<BI"), struct.Struct("<BIH")
_EXCEPTION_BYTES = 6
_WIDTHS = (0, 1, 2, 4, 8, 16, 32)


def pack(columns: Mapping[int, NDArray[np.int64]], rows: int) -> bytes:
    """Return the packed columns, given by id with ``rows`` values each; values are clipped to 0 to 2**32 - 1.

    Raises ``ValueError`` for a column of another length, and for more than 65,536 rows.
    """
    if rows > ROWS_MAX:
        raise ValueError(f"{rows} rows: expected at most {ROWS_MAX}")
    for name, values in columns.items():
        if len(values) != rows:
            raise ValueError(f"column {name} has {len(values)} values: expected {rows}, one per row")
    payloads = {name: _pack_column(np.clip(values, 0, _VALUE_MAX)) for name, values in columns.items()}
    directory = b"".join(_ENTRY.pack(name, len(payload)) for name, payload in payloads.items())
    return _HEAD.pack(1, len(payloads), rows) + directory + b"".join(payloads.values())


def _pack_column(values: NDArray[np.int64]) -> bytes:
    if not len(values):
        return _COLUMN.pack(0, 0, 0)
    width, base = _choose(np.sort(values))
    odd = np.flatnonzero((values < base) | (values >= base + (1 << width)))
    usual = values - base
    usual[odd] = 0
    head = _COLUMN.pack(width, base, len(odd))
    return head + _pack_bits(usual, width) + odd.astype("<u2").tobytes() + values[odd].astype("<u4").tobytes()


def _choose(ordered: NDArray[np.int64]) -> tuple[int, int]:
    """Return the cheapest width in bits and its base for these ascending values."""
    count = len(ordered)
    best = (count * _EXCEPTION_BYTES + 1, 0, 0)
    for base in {int(ordered[0]), int(ordered[count >> 6]), int(ordered[count >> 4]), int(ordered[count // 2])}:
        for width in _WIDTHS:
            inside = int(np.searchsorted(ordered, base + (1 << width)) - np.searchsorted(ordered, base))
            exceptions = count - inside
            cost = -(-count * width // 8) + exceptions * _EXCEPTION_BYTES
            if exceptions < ROWS_MAX and cost < best[0]:
                best = (cost, width, base)
    return best[1], best[2]


def _pack_bits(values: NDArray[np.int64], width: int) -> bytes:
    if width >= 8:
        return values.astype(f"<u{width // 8}").tobytes()
    if not width:
        return b""
    lanes = 8 // width
    padded = np.zeros(-(-len(values) // lanes) * lanes, np.uint8)
    padded[: len(values)] = values
    shifted = padded.reshape(-1, lanes) << np.arange(0, 8, width, dtype=np.uint8)
    packed: bytes = np.bitwise_or.reduce(shifted, axis=1).astype(np.uint8).tobytes()
    return packed
