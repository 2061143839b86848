"""Conversion of parsed OTLP requests to batches of rows: ``convert_spans``, ``convert_points`` for metrics, ``convert_logs``.

Spans are validated one by one; chunks are then decoded and described with numpy in passes of bounded size. The module does no I/O and has
no access to the store.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from legato_ingest.columns import ENGINE_REQUESTS, ENGINE_STEPS, STREAM_REVS, STREAM_SOCKETS
from legato_ingest.errors import TooLarge
from legato_ingest.otlp.batch import Batch, Limits, bytes_of, rejected_table
from legato_ingest.otlp.budget import POOL_MAX_BYTES, Budget
from legato_ingest.otlp.engine_rows import engine_tables
from legato_ingest.otlp.metric_rows import build_samples
from legato_ingest.otlp.model import StreamRecord
from legato_ingest.otlp.spans import Flush, Sender, Stream, Validated, log_senders, validate
from legato_ingest.otlp.stream_rows import revs_table, silences_table, sockets_table, with_sockets
from legato_ingest.timeline.codec import EMPTY, TimelineHead, Timelines, decode

__all__ = ["convert_logs", "convert_points", "convert_requests", "convert_spans", "summary_rows"]

_EMPTY_HEAD = TimelineHead(0, {})
# Limits of several requests that are converted at once. More are converted one after another.
_TOGETHER_CHUNKS_MAX, _TOGETHER_POOL_MAX = 262_144, 8 * 2**20
# A stream weighs as much as so many chunks while it is decoded.
_STREAM_CHUNKS = 16
# A stream or a flush with the number of its request, and the parts of a table by request.
_Owned = tuple[int, Stream]
_OwnedFlush = tuple[int, Flush]
_AnyOwned = TypeVar("_AnyOwned", _Owned, _OwnedFlush)
_Parts = list[list[pa.Table]]


def convert_spans(request: ExportTraceServiceRequest, *, tenant: str, now_ns: int, limits: Limits, budget: Budget | None = None) -> Batch:
    """Return the rows of a request of spans. ``now_ns`` is the receiver's clock; ``budget`` is that of the body that this is a part of.

    Memory beyond that of the rows is bounded by ``limits.chunks_per_pass_max``.
    """
    (batch,) = convert_requests([request], tenant=tenant, now_ns=now_ns, limits=limits, budgets=[budget] if budget else ())
    return batch


def convert_requests(
    requests: Sequence[ExportTraceServiceRequest], *, tenant: str, now_ns: int, limits: Limits, budgets: Sequence[Budget] = ()
) -> list[Batch]:
    """Return the rows of each of several requests of spans, as ``convert_spans`` does. The limits apply to each of them.

    The tables of all requests are computed at once: to compute those of one stream costs nearly as much as those of a hundred. Raises
    ``TooLarge`` for several requests with more chunks, or more bytes of rows, than are converted at once.
    """
    budgets = budgets or [_whole(limits, tenant, now_ns) for _ in requests]
    before = sum(budget.pool for budget in budgets)
    validated = [validate(request, now_ns, limits, budget) for request, budget in zip(requests, budgets, strict=True)]
    if len(requests) > 1:
        _check_together(validated, before)
    spans = [each.spans for each in validated]
    revs, sockets = _stream_tables(validated, tenant, limits.chunks_per_pass_max)
    steps, finished = _engine_tables(validated, tenant, limits.chunks_per_pass_max)
    batches = [
        Batch(
            revs=_joined(revs[number], STREAM_REVS.empty),
            sockets=_joined(sockets[number], STREAM_SOCKETS.empty),
            silences=silences_table(each.silences, tenant),
            steps=_joined(steps[number], ENGINE_STEPS.empty),
            requests=_joined(finished[number], ENGINE_REQUESTS.empty),
            rejected=rejected_table(each.rejections, tenant),
            spans=spans[number],
            ignored=each.ignored.total(),
            senders=_of_tenant(each.ignored, tenant),
            chunks=each.chunks,
            unlisted=each.unlisted,
            days=_days(each.budget, bool(sockets[number])),
        )
        for number, each in enumerate(validated)
    ]
    return _measured(batches, [each.budget.taken for each in validated]) if len(batches) > 1 else batches


def _whole(limits: Limits, tenant: str, now_ns: int) -> Budget:
    """Return the budget of a request that is not a part of a body: that of the largest body."""
    budget = Budget.of(limits, POOL_MAX_BYTES, tenant, now_ns)
    budget.pool = budget.small_pool = limits.row_bytes_max
    budget.items_max = sys.maxsize
    return budget


def _check_together(validated: Sequence[Validated], before: int) -> None:
    """Raise ``TooLarge`` if the requests need too much memory at once. ``before``: the pools of all of them."""
    chunks, size = sum(each.chunks for each in validated), before - sum(each.budget.pool for each in validated)
    if chunks > _TOGETHER_CHUNKS_MAX or size > _TOGETHER_POOL_MAX:
        raise TooLarge(f"{chunks} chunks and {size} bytes of rows beyond their shares in {len(validated)} requests")


def _days(budget: Budget, has_sockets: bool = False) -> frozenset[tuple[str, int]]:
    """Return table and day of the rows of a batch."""
    days = {(table, day) for table, own in budget.days.items() for day in own}
    if has_sockets:
        days |= {("stream_sockets", day) for day in budget.days["stream_revs"]}
    return frozenset(days)


def _measured(batches: Sequence[Batch], taken: Sequence[int]) -> list[Batch]:
    """Return the batches with their sizes. ``taken``: the bytes of rows that each has declared.

    Arrow measures parts of a table slowly, so each batch gets its share of the whole. Rejected items declare nothing, and each batch has
    its own table of them. The parts of other tables share memory. They are not joined with ``Batch.joined``, which copies them.
    """
    parts = ([table for table in tables if table.num_rows] for tables in zip(*(each.accepted for each in batches), strict=True))
    whole, declared = sum(pa.concat_tables(each).get_total_buffer_size() for each in parts if each), sum(taken) + len(taken)
    return [
        replace(each, size_bytes=1 + whole * (own + 1) // declared + bytes_of([each.rejected]))
        for each, own in zip(batches, taken, strict=True)
    ]


def convert_points(
    request: ExportMetricsServiceRequest, *, tenant: str, now_ns: int, limits: Limits, budget: Budget | None = None
) -> Batch:
    """Return the rows of a request of metrics, as ``convert_spans`` does."""
    budget = budget or _whole(limits, tenant, now_ns)
    samples = build_samples(request, tenant, now_ns, limits, budget)
    return Batch(
        samples=samples.table,
        rejected=rejected_table(samples.rejections, tenant),
        points=samples.points,
        ignored=samples.ignored,
        unlisted=samples.unlisted,
        days=_days(budget),
    )


def convert_logs(request: ExportLogsServiceRequest, *, tenant: str, now_ns: int, limits: Limits, budget: Budget | None = None) -> Batch:
    """Count the log records of a request: none is stored, because no emitter's streams are read from log records yet."""
    senders = log_senders(request, budget or _whole(limits, tenant, now_ns))
    return Batch(logs=senders.total(), ignored=senders.total(), senders=_of_tenant(senders, tenant))


def summary_rows(records: Sequence[StreamRecord], tenant: str) -> pa.Table:
    """Return the rows of ``stream_revs`` of records without timelines."""
    return revs_table(records, tenant, decode([EMPTY] * len(records), [_EMPTY_HEAD] * len(records))[0])


def _of_tenant(senders: Counter[Sender], tenant: str) -> Counter[tuple[str, ...]]:
    return Counter({(tenant, *sender): number for sender, number in senders.items()})


def _stream_tables(validated: Sequence[Validated], tenant: str, chunks_max: int) -> tuple[_Parts, _Parts]:
    """Return the rows of ``stream_revs`` and of ``stream_sockets`` of each request."""
    revs: _Parts = [[] for _ in validated]
    sockets: _Parts = [[] for _ in validated]
    for part in _passes([(number, stream) for number, each in enumerate(validated) for stream in each.streams], chunks_max):
        streams, timelines = _decode(part, validated)
        owners, records = np.array([number for number, _ in streams], np.int64), [stream.record for _, stream in streams]
        _divide(revs_table(records, tenant, timelines), owners, revs)
        _divide(sockets_table(records, tenant, timelines), owners[with_sockets(timelines)], sockets)
    return revs, sockets


def _engine_tables(validated: Sequence[Validated], tenant: str, chunks_max: int) -> tuple[_Parts, _Parts]:
    """Return the rows of ``engine_steps`` and ``engine_requests`` of each request; a flush with undecodable steps is rejected."""
    steps: _Parts = [[] for _ in validated]
    finished: _Parts = [[] for _ in validated]
    for flushes in _passes([(number, flush) for number, each in enumerate(validated) for flush in each.flushes], chunks_max):
        *tables, bad = engine_tables([flush for _, flush in flushes], tenant)
        if bad:
            flushes = _without_bad(flushes, bad, validated)
            *tables, _ = engine_tables([flush for _, flush in flushes], tenant)
        owners = np.array([number for number, _ in flushes], np.int64)
        _divide(tables[0], np.repeat(owners, [flush.head.chunks for _, flush in flushes]), steps)
        _divide(tables[1], np.repeat(owners, [len(flush.record.finished["response_id"]) for _, flush in flushes]), finished)
    return steps, finished


def _without_bad(items: Sequence[_AnyOwned], bad: Mapping[int, str], validated: Sequence[Validated]) -> list[_AnyOwned]:
    """Reject the items with a timeline that cannot be decoded, and return the others."""
    for place, reason in bad.items():
        number, item = items[place]
        validated[number].reject(item.span, item.outside, "timeline", reason)
    return [each for place, each in enumerate(items) if place not in bad]


def _divide(table: pa.Table, owners: NDArray[np.int64], out: _Parts) -> None:
    """Append to the rows of each request its part of a table. ``owners``: the request of each row, ascending."""
    present, starts = np.unique(owners, return_index=True)
    for number, first, end in zip(present.tolist(), starts.tolist(), [*starts[1:].tolist(), len(owners)], strict=False):
        out[number].append(table.slice(first, end - first))


def _joined(tables: Sequence[pa.Table], empty: pa.Table) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables) if tables else empty


def _passes(items: Sequence[_AnyOwned], chunks_max: int) -> Iterator[list[_AnyOwned]]:
    """Yield streams or flushes in groups of at most this many chunks, and of at least one."""
    group: list[_AnyOwned] = []
    weight = 0
    for number, item in items:
        own = item.head.chunks + _STREAM_CHUNKS
        if group and weight + own > chunks_max:
            yield group
            group, weight = [], 0
        group.append((number, item))
        weight += own
    if group:
        yield group


def _decode(streams: list[_Owned], validated: Sequence[Validated]) -> tuple[list[_Owned], Timelines]:
    """Decode the timelines of some streams. Streams with a timeline that cannot be decoded are rejected and left out."""
    timelines, bad = _timelines(streams)
    if bad:
        streams = _without_bad(streams, bad, validated)
        timelines, _ = _timelines(streams)
    return streams, timelines


def _timelines(streams: Sequence[_Owned]) -> tuple[Timelines, dict[int, str]]:
    return decode([stream.record.timeline or EMPTY for _, stream in streams], [stream.head for _, stream in streams])
