"""The reads and stalls of one recording, derived from a row of ``find_stream``.

They agree with the stored statistics: a gap of 250 ms between two content reads always lies between two epochs. Facts that the timeline
lacks are None. This module queries nothing and renders nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from legato_ingest.definitions import CONTENT_KINDS, HOLD_STEP_US, STALL_MS
from legato_ingest.reports.rows import Row

__all__ = ["EXPIRED", "STALL_US", "STORED", "UNKNOWN", "Read", "Stall", "content_reads", "has_known_stalls", "stalls_of", "timeline_of"]

STALL_US = int(STALL_MS * 1000)
STORED, EXPIRED, UNKNOWN = "stored", "expired", "unknown"


@dataclass(frozen=True, slots=True)
class Read:
    """Content chunks that arrived together: µs since the stream's start, index of the first chunk, chunks, bytes (None: unknown)."""

    at_us: int
    index: int
    chunks: int
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Stall:
    """A long gap: its start and length, the read that ended it, and the time in it during which the application held a chunk.

    ``chunks`` and ``bytes`` describe the read that ended the gap; both are None for the open gap, which ends with the stream.
    ``held_us`` is None where holds are unknown. The open gap of a running stream lasts.
    """

    start_us: int
    length_us: int
    open: bool
    chunks: int | None
    bytes: int | None
    held_us: int | None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


def timeline_of(row: Row) -> str:
    """Return whether the row has its timeline: ``STORED``, ``EXPIRED`` (deleted before its stream), or ``UNKNOWN`` (never recorded)."""
    if row["content_chunks"] is None:
        return UNKNOWN
    return EXPIRED if row["chunks"] and not row["dt_us"] else STORED


def has_known_stalls(row: Row, least_us: int = STALL_US) -> bool:
    """Return whether all gaps of at least ``least_us`` are known: from the timeline, or because the longest gap is shorter."""
    timeline = timeline_of(row)
    return timeline == STORED or (timeline == EXPIRED and int(row["gap_max_us"] or 0) < least_us)


def content_reads(row: Row) -> list[Read]:
    """Return the content reads of a row. Chunks without content are left out: a keep-alive does not end a stall."""
    sizes: Sequence[int] = row["chunk_bytes"]
    reads: list[Read] = []
    for index, (at, kind) in enumerate(zip(accumulate(row["dt_us"]), row["chunk_kind"], strict=True)):
        if kind not in CONTENT_KINDS:
            continue
        size = sizes[index] if sizes else None
        if reads and reads[-1].at_us == at:
            last = reads.pop()
            reads.append(Read(at, last.index, last.chunks + 1, None if size is None or last.bytes is None else last.bytes + size))
        else:
            reads.append(Read(at, index, 1, size))
    return reads


def stalls_of(row: Row, reads: Sequence[Read], least_us: int = STALL_US) -> list[Stall]:
    """Return the gaps of at least ``least_us`` in order of time, the open gap last."""
    holds: Sequence[int] = row["chunk_hold_64us"]
    stalls = [
        Stall(
            before.at_us,
            after.at_us - before.at_us,
            False,
            after.chunks,
            after.bytes,
            _held(holds, before.index, after.index, after.at_us - before.at_us),
        )
        for before, after in zip(reads, reads[1:], strict=False)
        if after.at_us - before.at_us >= least_us
    ]
    open_us = int(row["gap_open_us"] or 0)
    if reads and open_us >= least_us:
        stalls.append(Stall(reads[-1].at_us, open_us, True, None, None, _held(holds, reads[-1].index, len(holds), open_us)))
    silence = row.get("silence")
    # The wait for the first output is no gap.
    if silence and silence["gap_start_us"] and silence["silence_us"] >= least_us:
        stalls.append(Stall(silence["gap_start_us"], silence["silence_us"], True, None, None, None))
    return stalls


def _held(holds: Sequence[int], first: int, end: int, length_us: int) -> int | None:
    """The hold time of the chunks of the read before a gap, and of later chunks without content. Never more than the gap."""
    return min(sum(holds[first:end]) * HOLD_STEP_US, length_us) if holds else None
