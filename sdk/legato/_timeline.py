"""Encoder of ``legato.stream.timeline``, the packed form of a stream's chunks (schema/TIMELINE.md).

Each column is packed by whole-sequence operations that run in C (sort, slice, big integers). Packing therefore takes well under a
microsecond per chunk without numpy. This module does not decode.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import compress, repeat
from operator import sub
from sys import byteorder

__all__ = ["CHUNKS_MAX", "HOLD_STEP_US", "Kind", "pack"]

CHUNKS_MAX = 65_536
HOLD_STEP_US = 64
DT_MAX = 2**32 - 1
VALUE_MAX = 2**32 - 1

_DT, _BYTES, _TOKENS, _KIND, _HOLD = 1, 2, 3, 4, 5
_COLUMN_HEAD = struct.Struct("<BIH")
_DIRECTORY_ENTRY = struct.Struct("<BI")
_HEAD = struct.Struct("<BBI")
_EXCEPTION_BYTES = 6
_ARRAY_CODE = {8: "B", 16: "H", 32: "I"}


class Kind(IntEnum):
    """What a chunk carried. Only TEXT, REASONING and TOOL carry content."""

    ROLE = 0
    TEXT = 1
    REASONING = 2
    TOOL = 3
    USAGE = 4
    HEARTBEAT = 5
    RETRACT = 6
    DONE = 7


def pack(
    times_us: Sequence[int],
    sizes: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
    kinds: Sequence[int] | None = None,
    holds: Sequence[int] | None = None,
    sockets: Mapping[int, Sequence[int]] | None = None,
) -> bytes:
    """Pack one stream's columns. Each has one value per chunk; ``None`` is an unknown column, which is left out.

    ``times_us``: microseconds from the stream's start to each chunk, ascending. ``sizes``: UTF-8 bytes of content.
    ``holds``: in units of 64 µs (``HOLD_STEP_US``), rounded down. ``sockets``: columns 10 to 12 by id.
    Sizes, tokens and holds above 2**32 - 1 are stored as 2**32 - 1.
    Raises ``ValueError`` if the columns differ in length, a time is less than the one before it, or there are more than 65,536 chunks.
    """
    chunks = len(times_us)
    if chunks > CHUNKS_MAX:
        raise ValueError(f"got {chunks} chunks: a timeline holds at most {CHUNKS_MAX}")
    given = ((_BYTES, sizes), (_TOKENS, tokens), (_KIND, kinds), (_HOLD, holds))
    columns: dict[int, Sequence[int]] = {name: values for name, values in given if values is not None}
    columns.update(sockets or {})
    for values in columns.values():
        if len(values) != chunks:
            raise ValueError(f"columns differ in length: {len(values)} values for {chunks} chunks")
    dts = list(map(sub, times_us, [0, *times_us[:-1]])) if chunks else []
    if chunks and times_us[-1] > DT_MAX and max(dts) > DT_MAX:
        dts, columns = _split_long_gaps(dts, columns)
    if dts and min(dts) < 0:
        raise ValueError("times must not go backwards")
    payloads = {name: _pack_column(values) for name, values in {_DT: dts, **columns}.items()}
    directory = b"".join(_DIRECTORY_ENTRY.pack(name, len(payload)) for name, payload in payloads.items())
    return _HEAD.pack(1, len(payloads), len(dts)) + directory + b"".join(payloads.values())


def _pack_column(values: Sequence[int]) -> bytes:
    count = len(values)
    if not count:
        return _COLUMN_HEAD.pack(0, 0, 0)
    first = values[0]
    if 0 <= first <= VALUE_MAX and values.count(first) == count:
        return _COLUMN_HEAD.pack(0, first, 0)
    ordered = sorted(values)
    if ordered[0] < 0 or ordered[-1] > VALUE_MAX:
        values = [min(max(value, 0), VALUE_MAX) for value in values]
        ordered = sorted(values)
    width, base, exceptions = _choose_width(ordered)
    places: list[int] = []
    if exceptions:
        low, high = bisect_left(ordered, base), bisect_left(ordered, base + (1 << width))
        odd = {*ordered[:low], *ordered[high:]}
        places = list(compress(range(count), map(odd.__contains__, values)))
    head = _COLUMN_HEAD.pack(width, base, len(places))
    if not places:
        return head + _pack_bits(values, width, base)
    usual = list(values)
    for place in places:
        usual[place] = base
    return head + _pack_bits(usual, width, base) + _little("H", places) + _little("I", [values[place] for place in places])


def _choose_width(ordered: list[int]) -> tuple[int, int, int]:
    """Return the (width, base, number of exceptions) with the shortest payload for these ascending values.

    The candidates for the base are the smallest value and two values that leave 1/64 and 1/16 of the values below them. The search
    therefore takes about two dozen binary searches for any number of chunks.
    """
    count = len(ordered)
    base = ordered[count // 2]
    exceptions = count - bisect_right(ordered, base) + bisect_left(ordered, base)
    best = (exceptions * _EXCEPTION_BYTES, 0, base, exceptions)
    for base in {ordered[0], ordered[count >> 6], ordered[count >> 4]} if exceptions else ():
        low = bisect_left(ordered, base)
        for width in (1, 2, 4, 8, 16, 32):
            exceptions = count - bisect_left(ordered, base + (1 << width)) + low
            cost = -(-count * width // 8) + exceptions * _EXCEPTION_BYTES
            if exceptions < CHUNKS_MAX and cost < best[0]:
                best = (cost, width, base, exceptions)
            if exceptions == low:
                break
    return best[1], best[2], best[3]


def _pack_bits(values: Sequence[int], width: int, base: int) -> bytes:
    """Pack each value minus ``base`` into ``width`` bits, lowest bits first. Every value must fit."""
    if not width:
        return b""
    if base:
        values = list(map(sub, values, repeat(base)))
    if width >= 8:
        return _little(_ARRAY_CODE[width], values)
    lanes = 8 // width
    raw = bytes(values)
    length = -(-len(raw) // lanes)
    packed = 0
    for lane in range(lanes):
        packed |= int.from_bytes(raw[lane::lanes], "little") << (lane * width)
    return packed.to_bytes(length, "little")


def _little(code: str, values: Sequence[int]) -> bytes:
    column = array(code, values)
    if byteorder == "big":
        column.byteswap()
    return column.tobytes()


def _split_long_gaps(dts: list[int], columns: dict[int, Sequence[int]]) -> tuple[list[int], dict[int, Sequence[int]]]:
    """Replace each dt of 2**32 µs (71 minutes) or more by heartbeats and a remainder (schema/TIMELINE.md, Limits)."""
    fillers = [max(0, dt - 1) // DT_MAX for dt in dts]
    room = CHUNKS_MAX - len(dts)
    if sum(fillers) > room:
        raise ValueError(f"pauses of over 71 minutes need {sum(fillers)} more chunks: only {room} are left of {CHUNKS_MAX}")
    columns.setdefault(_KIND, [Kind.TEXT] * len(dts))

    def spread(values: Sequence[int], filler: int) -> list[int]:
        return [v for value, count in zip(values, fillers, strict=True) for v in [filler] * count + [value]]

    out = {name: spread(values, Kind.HEARTBEAT if name == _KIND else 0) for name, values in columns.items()}
    rests = [dt - count * DT_MAX for dt, count in zip(dts, fillers, strict=True)]
    return spread(rests, DT_MAX), dict(out)
