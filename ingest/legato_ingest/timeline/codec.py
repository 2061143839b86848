"""Decoder of packed timelines (schema/TIMELINE.md), for all timelines of a request at once.

Python reads the few header bytes of each column; numpy decodes the chunks. Columns of equal width are concatenated and unpacked together.
No memory is allocated for chunks before all heads are read, so that a caller can compare the declared number of chunks with a budget. The
module is independent of spans, statistics and the store.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legato_ingest.timeline.ragged import Segments

__all__ = [
    "BYTES",
    "CHUNKS_MAX",
    "DT",
    "EMPTY",
    "HOLD",
    "IDLE",
    "KNOWN",
    "QUEUED",
    "TOKENS",
    "WINDOW",
    "ColumnHead",
    "TimelineError",
    "TimelineHead",
    "Timelines",
    "column_sum",
    "decode_columns",
    "decode",
    "read_head",
]

CHUNKS_MAX = 65_536
DT, BYTES, TOKENS, KIND, HOLD = 1, 2, 3, 4, 5
QUEUED, WINDOW, IDLE = 10, 11, 12
SOCKET = frozenset((QUEUED, WINDOW, IDLE))
_ALWAYS = frozenset((DT, BYTES, TOKENS, KIND, HOLD))
KNOWN = _ALWAYS | SOCKET
KIND_TEXT = 1
EMPTY = b"\x01\x01\x00\x00\x00\x00\x01\x07\x00\x00\x00" + bytes(7)
"""The timeline of a stream without chunks."""
WIDTHS = frozenset((0, 1, 2, 4, 8, 16, 32))

_HEAD = struct.Struct("<BBI")
_ENTRY = struct.Struct("<BI")
_COLUMN = struct.Struct("<BIH")
_EXCEPTION_BYTES = 6
_VALUE_END = 1 << 32


class TimelineError(ValueError):
    """A timeline that violates schema/TIMELINE.md. The message is the reason that the specification names."""


@dataclass(slots=True)
class ColumnHead:
    """The head of one column and the positions of its parts in the timeline, checked against the length of the timeline."""

    width: int
    base: int
    exceptions: int
    packed_at: int
    positions_at: int


@dataclass(slots=True)
class TimelineHead:
    """The declared number of chunks of one timeline, and the heads of its known columns by id."""

    chunks: int
    columns: dict[int, ColumnHead]


@dataclass(slots=True)
class Timelines:
    """The chunks of many streams, concatenated.

    ``streams`` holds the position of the chunks of each stream. ``dt_us``, ``sizes`` (bytes), ``tokens`` and ``holds`` (64 µs steps) are
    uint32 and ``kinds`` is uint8, each with one entry per chunk. ``sockets`` holds the packed socket columns by id; empty when no stream
    has any. ``has_*`` (one entry per stream) is True where the stream has the column; elsewhere the values are 0.
    """

    streams: Segments
    dt_us: NDArray[np.uint32]
    sizes: NDArray[np.uint32]
    tokens: NDArray[np.uint32]
    kinds: NDArray[np.uint8]
    holds: NDArray[np.uint32]
    has_sizes: NDArray[np.bool_]
    has_tokens: NDArray[np.bool_]
    has_holds: NDArray[np.bool_]
    sockets: dict[int, NDArray[np.uint32]]


def read_head(blob: bytes, known: frozenset[int] = KNOWN) -> TimelineHead:
    """Read and check the head of a timeline and of its columns in ``known``, without decoding chunks. Raises ``TimelineError``."""
    size = len(blob)
    if size < _HEAD.size:
        raise TimelineError("truncated")
    version, count, chunks = _HEAD.unpack_from(blob)
    if version != 1:
        raise TimelineError("version")
    if chunks > CHUNKS_MAX:
        raise TimelineError("chunks")
    at = _HEAD.size + count * _ENTRY.size
    if at > size:
        raise TimelineError("truncated")
    columns: dict[int, ColumnHead] = {}
    seen = set()
    for place in range(_HEAD.size, at, _ENTRY.size):
        name, length = _ENTRY.unpack_from(blob, place)
        if name in seen:
            raise TimelineError("duplicate")
        seen.add(name)
        if at + length > size:
            raise TimelineError("truncated")
        if name in known:
            columns[name] = _read_column(blob, at, length, chunks)
        at += length
    if at != size:
        raise TimelineError("trailing")
    if DT not in columns:
        raise TimelineError("missing")
    return TimelineHead(chunks, columns)


def _read_column(blob: bytes, at: int, length: int, chunks: int) -> ColumnHead:
    if length < _COLUMN.size:
        raise TimelineError("length")
    width, base, exceptions = _COLUMN.unpack_from(blob, at)
    if width not in WIDTHS:
        raise TimelineError("width")
    packed = (chunks * width + 7) // 8
    if length != _COLUMN.size + packed + exceptions * _EXCEPTION_BYTES:
        raise TimelineError("length")
    if exceptions > chunks:
        raise TimelineError("exceptions")
    return ColumnHead(width, base, exceptions, at + _COLUMN.size, at + _COLUMN.size + packed)


def column_sum(blob: bytes, head: TimelineHead, name: int) -> int:
    """Return the sum of a column without its first value, at little cost: a column of equal values is not decoded.

    Of an undecodable column the result is meaningless.
    """
    column = head.columns.get(name)
    if column is None or head.chunks < 2:
        return 0
    if column.width:
        _, columns, _ = decode_columns([blob], [head], frozenset((name,)))
        return int(columns[name][1:].sum(dtype=np.int64))
    places = np.frombuffer(blob, np.dtype("<u2"), column.exceptions, column.positions_at)
    values = np.frombuffer(blob, np.dtype("<u4"), column.exceptions, column.positions_at + 2 * column.exceptions)
    return (head.chunks - 1) * column.base + int((values[places != 0].astype(np.int64) - column.base).sum())


def decode(blobs: Sequence[bytes], heads: Sequence[TimelineHead]) -> tuple[Timelines, dict[int, str]]:
    """Decode timelines with heads from ``read_head``. Returns them, and the reasons for timelines that cannot be decoded by index.

    The chunks of such a timeline are meaningless: the caller has to drop it. Time is linear in the number of declared chunks.
    """
    socket = any(not SOCKET.isdisjoint(head.columns) for head in heads)
    streams, out, bad = decode_columns(blobs, heads, KNOWN if socket else _ALWAYS)

    def has(name: int) -> NDArray[np.bool_]:
        return np.fromiter((name in head.columns for head in heads), np.bool_, len(heads))

    has_kinds = has(KIND)
    kinds = np.minimum(out[KIND], 255).astype(np.uint8)
    if not has_kinds.all():
        kinds[np.repeat(~has_kinds, streams.lengths)] = KIND_TEXT
    sockets = {name: out[name] for name in SOCKET & out.keys()}
    timelines = Timelines(streams, out[DT], out[BYTES], out[TOKENS], kinds, out[HOLD], has(BYTES), has(TOKENS), has(HOLD), sockets)
    return timelines, bad


def decode_columns(
    blobs: Sequence[bytes], heads: Sequence[TimelineHead], names: frozenset[int]
) -> tuple[Segments, dict[int, NDArray[np.uint32]], dict[int, str]]:
    """Decode the named columns of all blobs, with zeros where a blob lacks a column.

    Returns the position of each blob's rows, the columns by id, and the reasons for undecodable blobs by index.
    """
    rows = Segments.of_lengths(np.fromiter((head.chunks for head in heads), np.int64, len(heads)))
    bad: dict[int, str] = {}
    return rows, {name: _decode_column(name, blobs, heads, rows, bad) for name in sorted(names)}, bad


def _decode_column(
    name: int, blobs: Sequence[bytes], heads: Sequence[TimelineHead], streams: Segments, bad: dict[int, str]
) -> NDArray[np.uint32]:
    """Return one column of all streams, concatenated; 0 where a stream lacks it. Adds the reasons of undecodable streams to ``bad``."""
    values = np.zeros(streams.total, np.uint32)
    by_width: dict[int, list[int]] = {}
    patched: list[int] = []
    bases = np.zeros(len(heads), np.uint32)
    for i, head in enumerate(heads):
        column = head.columns.get(name)
        if column is None or not head.chunks:
            continue
        by_width.setdefault(column.width, []).append(i)
        bases[i] = column.base
        if column.exceptions:
            patched.append(i)
    for width, members in by_width.items():
        if width:
            _unpack_width(width, members, [heads[i].columns[name] for i in members], blobs, streams, values)
    if bases.any():
        base = np.repeat(bases, streams.lengths)
        values += base
        for i in np.unique(streams.owners()[values < base]) if (values < base).any() else ():
            bad.setdefault(int(i), "overflow")
    if patched:
        _patch([heads[i].columns[name] for i in patched], patched, blobs, streams, values, bad)
    return values


def _unpack_width(
    width: int,
    members: list[int],
    columns: list[ColumnHead],
    blobs: Sequence[bytes],
    streams: Segments,
    values: NDArray[np.uint32],
) -> None:
    """Unpack the columns of one width into ``values``, at the positions of their streams."""
    packed = b"".join([blobs[i][c.packed_at : c.positions_at] for i, c in zip(members, columns, strict=True)])
    if width >= 8:
        flat = np.frombuffer(packed, np.dtype(f"<u{width // 8}"))
        slots = streams.lengths[members]
    else:
        raw = np.frombuffer(packed, np.uint8)
        shifts = np.arange(0, 8, width, dtype=np.uint8)
        flat = ((raw[:, None] >> shifts) & np.uint8((1 << width) - 1)).reshape(-1)
        lanes = 8 // width
        slots = -(-streams.lengths[members] // lanes) * lanes
    complete = len(members) == len(streams.lengths)
    if complete and flat.size == streams.total:
        values[:] = flat
        return
    lengths = streams.lengths[members]
    ranks = Segments.of_lengths(lengths).ranks()
    source = np.repeat(np.cumsum(slots) - slots, lengths) + ranks
    values[np.repeat(streams.starts[members], lengths) + ranks] = flat[source]


def _patch(
    columns: list[ColumnHead],
    members: list[int],
    blobs: Sequence[bytes],
    streams: Segments,
    values: NDArray[np.uint32],
    bad: dict[int, str],
) -> None:
    """Write the exceptions of one column into ``values``. Adds the reasons of undecodable streams to ``bad``."""
    counts = np.fromiter((c.exceptions for c in columns), np.int64, len(columns))
    where = [blobs[i][c.positions_at : c.positions_at + 2 * c.exceptions] for i, c in zip(members, columns, strict=True)]
    what = [
        blobs[i][c.positions_at + 2 * c.exceptions : c.positions_at + _EXCEPTION_BYTES * c.exceptions]
        for i, c in zip(members, columns, strict=True)
    ]
    positions = np.frombuffer(b"".join(where), np.dtype("<u2")).astype(np.int64)
    patches = Segments.of_lengths(counts)
    owners = np.asarray(members)[patches.owners()]
    wrong = positions >= streams.lengths[owners]
    unordered = np.zeros(len(positions), np.bool_)
    unordered[1:] = (positions[1:] <= positions[:-1]) & (owners[1:] == owners[:-1])
    wrong |= unordered
    for i in np.unique(owners[wrong]):
        bad.setdefault(int(i), "exceptions")
    good = ~wrong
    patched = np.frombuffer(b"".join(what), np.dtype("<u4"))
    values[(streams.starts[owners] + positions)[good]] = patched[good]
