"""The bytes of memory that the rows of one record will take, from what its span declares and before its timeline is decoded.

The result is exact for texts and packed columns, and some bytes too large for the lists of gaps. The tenant's name is not included. The
module builds no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa

from legato_ingest.columns import (
    ENGINE_REQUESTS,
    ENGINE_STEPS,
    NODE_SAMPLES,
    STREAM_REVS,
    STREAM_SILENCES,
    STREAM_SOCKETS,
    Column,
    Source,
    Table,
)
from legato_ingest.otlp.model import EngineFlush, SilenceRecord, StreamRecord
from legato_ingest.timeline.codec import BYTES, HOLD, QUEUED, TOKENS, TimelineHead

__all__ = ["BUCKET_BYTES", "SAMPLE_BYTES", "flush_bytes", "silence_bytes", "stream_bytes"]

_OFFSET_BYTES = 4
# The columns of a timeline that each stream has (`dt_us`, `chunk_kind`), and each of the others.
_CHUNK_BYTES, _COLUMN_BYTES, _SOCKET_BYTES = 5, 4, 16
# The lists of gaps: the five longest, and a histogram with as many buckets as a stream can fill.
_TOP_BYTES, _GAP_BUCKET_BYTES, _GAP_BUCKETS_MAX = 40, 5, 130
# Flags are few and short.
_FLAGS_BYTES = 64


def _fixed_bytes(table: Table) -> int:
    """Return the bytes of a row of which every text and every list is empty."""
    return sum(_width(column.type) for column in table.columns) + len(table.columns) // 8 + 1


def _width(kind: pa.DataType) -> int:
    try:
        return -(-int(kind.bit_width) // 8)
    except ValueError:
        return _OFFSET_BYTES


def _texts_of(columns: Sequence[Column]) -> Any:
    return attrgetter(*(column.key for column in columns if column.source is Source.RECORD and column.type == pa.string()))


_STREAM_BYTES = _fixed_bytes(STREAM_REVS) + _TOP_BYTES + _FLAGS_BYTES
_STREAM_SOCKET_BYTES, _SILENCE_BYTES = _fixed_bytes(STREAM_SOCKETS), _fixed_bytes(STREAM_SILENCES)
_STEP_BYTES, _FINISHED_BYTES = _fixed_bytes(ENGINE_STEPS), _fixed_bytes(ENGINE_REQUESTS)
SAMPLE_BYTES = _fixed_bytes(NODE_SAMPLES)
"""Bytes of a data point besides its texts and lists."""
BUCKET_BYTES = 16
"""Bytes of one bucket of a histogram, with its bound."""
_STREAM_TEXTS, _SILENCE_TEXTS = _texts_of(STREAM_REVS.columns), _texts_of(STREAM_SILENCES.columns)


def stream_bytes(record: StreamRecord, head: TimelineHead) -> int:
    """Return the bytes of a stream's row, and of its row of sockets if it has one."""
    size, chunks, columns = _STREAM_BYTES + _size(_STREAM_TEXTS(record)), head.chunks, head.columns
    if not chunks:
        return size
    chunk = _CHUNK_BYTES + _COLUMN_BYTES * ((BYTES in columns) + (TOKENS in columns) + (HOLD in columns))
    queued = columns.get(QUEUED)
    if queued is not None:
        with_values = chunks if queued.width or queued.base else queued.exceptions
        size += _STREAM_SOCKET_BYTES + _SOCKET_BYTES * with_values
    return size + chunks * chunk + _GAP_BUCKET_BYTES * min(chunks, _GAP_BUCKETS_MAX)


def silence_bytes(record: SilenceRecord) -> int:
    """Return the bytes of the row of a report about a silent stream."""
    return _SILENCE_BYTES + _size(_SILENCE_TEXTS(record))


def flush_bytes(record: EngineFlush, head: TimelineHead) -> int:
    """Return the bytes of the rows of a flush: one for each step and for each finished request."""
    engine, emitter = len(record.engine_id.encode()), len(record.emitter.encode())
    finished = record.finished
    size = head.chunks * (_STEP_BYTES + engine + emitter)
    return size + len(finished["response_id"]) * (_FINISHED_BYTES + engine) + _size((*finished["response_id"], *finished["reason"]))


def _size(texts: Sequence[str]) -> int:
    return len("".join(texts).encode())
