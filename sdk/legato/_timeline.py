"""Encoder of ``legato.stream.timeline``, the packed form of a stream's chunks (schema/TIMELINE.md).

Each column is packed by whole-sequence operations that run in C (sort, slice, big integers). Packing therefore takes well under a
microsecond per chunk without numpy. This module does not decode.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import compress, repeat
from operator import sub
from sys import byteorder
from typing import TypeVar

from legato._pace import breathe

__all__ = ["CHUNKS_MAX", "HOLD_STEP_US", "PART", "TIMELINE", "Kind", "pack", "parts_of"]

_Value = TypeVar("_Value")
TIMELINE = "legato.stream.timeline"
"""The attribute that has a packed timeline."""
CHUNKS_MAX = 65_536
PART = 1024
"""Columns are worked on in parts of so many values, which take some 0.1 ms."""
# A column of fewer values needs no pause after it.
_FEW = 512
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
    dts = _steps(times_us)
    if chunks and times_us[-1] > DT_MAX and max(dts) > DT_MAX:
        dts, columns = _split_long_gaps(dts, columns)
    payloads: dict[int, bytes] = {}
    for name, values in {_DT: dts, **columns}.items():
        payloads[name] = _pack_column(values)
        if chunks > _FEW:
            breathe()
    directory = b"".join(_DIRECTORY_ENTRY.pack(name, len(payload)) for name, payload in payloads.items())
    return _HEAD.pack(1, len(payloads), len(dts)) + directory + b"".join(payloads.values())


def _steps(times_us: Sequence[int]) -> list[int]:
    """Return the difference of each time to the one before, of the first to 0."""
    steps: list[int] = []
    for at, part in parts_of(times_us):
        found = list(map(sub, part, [times_us[at - 1] if at else 0, *part[:-1]]))
        if found and min(found) < 0:
            raise ValueError("times must not go backwards")
        steps += found
    return steps


def parts_of(values: Sequence[_Value]) -> Iterable[tuple[int, Sequence[_Value]]]:
    """Return the parts of a column, each with the place of its first value. Between them other threads may run."""
    return ((0, values),) if len(values) <= PART else _parts(values)


def _parts(values: Sequence[_Value]) -> Iterator[tuple[int, Sequence[_Value]]]:
    for at in range(0, len(values), PART):
        breathe()
        yield at, values[at : at + PART]


def _pack_column(values: Sequence[int]) -> bytes:
    count = len(values)
    if not count:
        return _COLUMN_HEAD.pack(0, 0, 0)
    first = values[0]
    if 0 <= first <= VALUE_MAX and _is_constant(values):
        return _COLUMN_HEAD.pack(0, first, 0)
    ordered = _ordered(values)
    least, greatest = (ordered[0], ordered[-1]) if count <= PART else _ends(values)
    if least < 0 or greatest > VALUE_MAX:
        values = [min(max(value, 0), VALUE_MAX) for value in values]
        ordered, least, greatest = _ordered(values), max(least, 0), min(greatest, VALUE_MAX)
    width, base, exceptions = _choose_width(ordered)
    places: list[int] = []
    if count > PART:
        width, base, places = _corrected(values, width, base, least, greatest)
    elif exceptions:
        low, high = bisect_left(ordered, base), bisect_left(ordered, base + (1 << width))
        unusual = {*ordered[:low], *ordered[high:]}
        places = list(compress(range(count), map(unusual.__contains__, values)))
    head = _COLUMN_HEAD.pack(width, base, len(places))
    if not places:
        return head + _pack_bits(values, width, base)
    usual, odd_values = list(values), list[int]()
    for _, part in parts_of(places):
        odd_values += [values[place] for place in part]
        for place in part:
            usual[place] = base
    return head + _pack_bits(usual, width, base) + _little("H", places) + _little("I", odd_values)


def _is_constant(values: Sequence[int]) -> bool:
    first = values[0]
    if len(values) <= PART:
        return values.count(first) == len(values)
    return all(part.count(first) == len(part) for _, part in parts_of(values))


def _ordered(values: Sequence[int]) -> list[int]:
    """Return the values in order; of a long column a sample: sorting is one step, in which no other thread runs."""
    return sorted(values if len(values) <= PART else values[:: -(-len(values) // PART)])


def _ends(values: Sequence[int]) -> tuple[int, int]:
    """Return the least and the greatest value."""
    ends = [(min(part), max(part)) for _, part in parts_of(values)]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _corrected(values: Sequence[int], width: int, base: int, least: int, greatest: int) -> tuple[int, int, list[int]]:
    """Return width, base and the places of the exceptions, where a sample of the values has chosen width and base.

    If the sample was unlike the rest, the width is one for all values, without exceptions.
    """
    places: list[int] = []
    high = base + (1 << width)
    for at, part in parts_of(values):
        places += [place for place, value in enumerate(part, at) if not base <= value < high]
    enough = next(each for each in (0, 1, 2, 4, 8, 16, 32) if greatest - least < 1 << each)
    if len(places) * _EXCEPTION_BYTES * 8 > len(values) * (enough - width):
        return enough, least, []
    return width, base, places


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
    if width >= 8:
        return _little(_ARRAY_CODE[width], values, base)
    lanes = 8 // width
    if len(values) <= PART:
        raw = bytes(list(map(sub, values, repeat(base))) if base else values)
    else:
        raw = b"".join([bytes(list(map(sub, part, repeat(base)))) for _, part in parts_of(values)])
    length = -(-len(raw) // lanes)
    packed = 0
    for lane in range(lanes):
        packed |= int.from_bytes(raw[lane::lanes], "little") << (lane * width)
    return packed.to_bytes(length, "little")


def _little(code: str, values: Sequence[int], base: int = 0) -> bytes:
    if len(values) <= PART:
        column = array(code, list(map(sub, values, repeat(base))) if base else values)
    else:
        column = array(code)
        for _, part in parts_of(values):
            column += array(code, list(map(sub, part, repeat(base))))
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
