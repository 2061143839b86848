"""The tables that the write path and the attribution fill: each column's name, Arrow type and source, in the order of the schema.

``otlp`` and ``attribution`` build their tables from these declarations, and a test compares them with the tables of a migrated store. The
module holds declarations only; it imports nothing of Legato. Codecs, keys and reasons are in ``schema/``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import pyarrow as pa

__all__ = [
    "EMITTER_SPANS",
    "ENGINE_REQUESTS",
    "ENGINE_STEPS",
    "NODE_SAMPLES",
    "NS_MAX",
    "REJECTED",
    "REPLAYS",
    "STREAM_REVS",
    "STREAM_SILENCES",
    "STREAM_SOCKETS",
    "TABLES",
    "VERDICTS",
    "Column",
    "Source",
    "Table",
]

NS_MAX = 2**63 - 1
"""The last moment that DateTime64(9) can hold, in ns since the epoch: 2262-04-11."""


class Source(Enum):
    """Where the values of a column come from."""

    TENANT = "the tenant of the request's token"
    COMMITTER = "the committer, when it inserts the row; null before"
    RECORD = "a field of the record made from the span or of the rejection"
    STATISTIC = "a statistic of the timeline (timeline/statistics.py)"
    TIMELINE = "a column of the decoded timeline (timeline/codec.py)"
    STEP = "a column of the packed engine steps (schema/STEPS.md)"
    FINISHED = "an array of finished requests, one value a request (schema/STEPS.md)"
    METRIC = "the metric that the data point belongs to"
    SERIES = "the data point's series: attributes of resource, scope and point"
    POINT = "the data point itself"
    STREAM = "the judged stream, at the vantage that the verdict is for"
    JUDGEMENT = "the judgement of the stream's stalls, and its time"
    COMPUTED = "a function of the module that builds the table"


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``key`` names the value in its source; it differs from ``name`` where the source uses other units or names."""

    name: str
    type: pa.DataType
    source: Source
    key: str


@dataclass(frozen=True)
class Table:
    """One table of the store. ``schema`` is the Arrow schema of its rows, in the order of ``columns``; ``empty`` has no rows."""

    name: str
    columns: tuple[Column, ...]
    schema: pa.Schema = field(init=False, repr=False)
    empty: pa.Table = field(init=False, repr=False)

    def __post_init__(self) -> None:
        schema = pa.schema([(column.name, column.type) for column in self.columns])
        object.__setattr__(self, "schema", schema)
        object.__setattr__(self, "empty", schema.empty_table())

    def __getitem__(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def rows(self, columns: Mapping[str, pa.Array]) -> pa.Table:
        """Return rows of these columns, in the declared order. Raises ``ValueError`` if a column is missing or not declared."""
        if different := set(columns) ^ set(self.schema.names):
            raise ValueError(f"the rows of {self.name} and its declaration differ in {', '.join(sorted(different))}")
        return pa.table(dict(columns), self.schema)


_TEXT, _TEXTS = pa.string(), pa.list_(pa.string())
_BOOL, _FLOAT32, _FLOAT64 = pa.bool_(), pa.float32(), pa.float64()
_UINT16, _UINT32, _UINT64 = pa.uint16(), pa.uint32(), pa.uint64()
_UINT8S, _UINT32S, _UINT64S, _FLOAT64S = (pa.list_(each) for each in (pa.uint8(), _UINT32, _UINT64, _FLOAT64))
_TRACE_ID, _SPAN_ID, _SHA256 = pa.binary(16), pa.binary(8), pa.binary(32)
_TIME_NS, _TIME_MS = pa.timestamp("ns", "UTC"), pa.timestamp("ms", "UTC")


def _from(source: Source, kind: pa.DataType, names: str) -> tuple[Column, ...]:
    """Columns of one type and source, from their names (``name`` or ``name=key``) separated by spaces."""
    pairs = (each.partition("=") for each in names.split())
    return tuple(Column(name, kind, source, key or name) for name, _, key in pairs)


_TENANT = _from(Source.TENANT, _TEXT, "tenant")
_RECEIVED_AT = _from(Source.COMMITTER, _TIME_MS, "received_at")
_STREAM_KEY = (
    *_TENANT,
    *_from(Source.RECORD, _TIME_NS, "start_time=start_ns"),
    *_from(Source.RECORD, _TRACE_ID, "trace_id"),
    *_from(Source.RECORD, _SPAN_ID, "span_id"),
    *_from(Source.RECORD, _UINT32, "rev"),
)

STREAM_REVS = Table(
    "stream_revs",
    (
        *_STREAM_KEY,
        *_from(Source.COMPUTED, _SPAN_ID, "parent_span_id"),
        *_from(Source.RECORD, _BOOL, "ended"),
        *_from(Source.COMPUTED, _UINT64, "duration_ns"),
        *_from(Source.RECORD, _UINT64, "next_due_us"),
        *_RECEIVED_AT,
        *_from(Source.RECORD, _TEXTS, "flags"),
        *_from(Source.RECORD, _TEXT, "vantage outcome error_type service_name service_version provider model response_model response_id"),
        *_from(Source.RECORD, _TEXT, "finish_reason route conversation_id engine_id client_hash emitter transport clock client_address"),
        *_from(Source.RECORD, _UINT16, "client_port"),
        *_from(Source.RECORD, _TEXT, "server_address"),
        *_from(Source.RECORD, _UINT16, "server_port"),
        *_from(Source.RECORD, _UINT32, "input_tokens output_tokens otlp_bytes"),
        *_from(Source.RECORD, _UINT64, "wire_bytes"),
        *_from(Source.COMPUTED, _UINT32, "chunks"),
        *_from(Source.RECORD, _UINT32, "chunks_dropped"),
        *_from(Source.STATISTIC, _UINT32, "content_chunks"),
        *_from(Source.STATISTIC, _UINT64, "content_bytes"),
        *_from(Source.RECORD, _UINT64, "ttfb_us"),
        *_from(Source.COMPUTED, _UINT64, "ttft_us"),
        *_from(Source.STATISTIC, _UINT64, "ttfo_us"),
        *_from(Source.STATISTIC, _UINT32, "gaps"),
        *_from(Source.STATISTIC, _UINT64, "gap_sum_us gap_max_us gap_open_us"),
        *_from(Source.COMPUTED, _UINT64S, "gap_top_us"),
        *_from(Source.STATISTIC, _UINT64, "gap_p50_us gap_p95_us gap_p99_us gap_twq50_us"),
        *_from(Source.COMPUTED, _UINT8S, "gap_bucket"),
        *_from(Source.COMPUTED, _UINT32S, "gap_bucket_count"),
        *_from(Source.STATISTIC, _UINT32, "stalls_100ms stalls_250ms stalls_400ms stalls_1000ms stalls_2000ms"),
        *_from(Source.STATISTIC, _UINT64, "excess_100ms_us excess_250ms_us excess_400ms_us excess_1000ms_us excess_2000ms_us"),
        *_from(Source.STATISTIC, _FLOAT32, "jitter_ratio tokens_per_chunk multi_token_share head_burst tail_flush burstiness"),
        *_from(Source.STATISTIC, _UINT64, "starved_2wps_us starved_4wps_us starved_6wps_us starved_8wps_us hold_sum_us hold_max_us"),
        *_from(Source.TIMELINE, _UINT32S, "dt_us chunk_bytes=sizes chunk_tokens=tokens"),
        *_from(Source.TIMELINE, _UINT8S, "chunk_kind=kinds"),
        *_from(Source.TIMELINE, _UINT32S, "chunk_hold_64us=holds"),
    ),
)
STREAM_SOCKETS = Table(
    "stream_sockets",
    (
        *_STREAM_KEY,
        *_from(Source.COMPUTED, _UINT32S, "at"),
        *_from(Source.TIMELINE, _UINT32S, "queued_bytes window_bytes idle_ms"),
    ),
)
STREAM_SILENCES = Table(
    "stream_silences",
    (
        *_TENANT,
        *_from(Source.RECORD, _TIME_NS, "recorded_at=end_ns"),
        *_from(Source.RECORD, _TRACE_ID, "trace_id"),
        *_from(Source.RECORD, _SPAN_ID, "span_id"),
        *_from(Source.RECORD, _TIME_NS, "start_time=start_ns"),
        *_RECEIVED_AT,
        *_from(Source.RECORD, _UINT64, "gap_start_us silence_us"),
        *_from(Source.RECORD, _BOOL, "resumed"),
        *_from(Source.RECORD, _TEXT, "vantage service_name model engine_id clock emitter"),
        *_from(Source.RECORD, _UINT64, "next_due_us"),
    ),
)
ENGINE_STEPS = Table(
    "engine_steps",
    (
        *_TENANT,
        *_from(Source.RECORD, _TEXT, "engine_id"),
        *_from(Source.RECORD, _TIME_NS, "engine_epoch=epoch_ns"),
        *_from(Source.COMPUTED, _TIME_NS, "recorded_at"),
        *_from(Source.COMPUTED, _UINT64, "step"),
        *_RECEIVED_AT,
        *_from(Source.RECORD, _TEXT, "emitter"),
        *_from(Source.STEP, _UINT32, "interval_us interval_max_us elapsed_us running waiting prefill_requests prefill_tokens"),
        *_from(Source.STEP, _UINT32, "decode_requests decode_tokens draft_tokens accepted_tokens preempted kv_used_ppm"),
    ),
)
ENGINE_REQUESTS = Table(
    "engine_requests",
    (
        *_TENANT,
        *_from(Source.RECORD, _TEXT, "engine_id"),
        # The end of the flush and not a clock of the receiver, so that a retry has the same key.
        *_from(Source.RECORD, _TIME_NS, "recorded_at=end_ns"),
        *_from(Source.FINISHED, _TEXT, "response_id"),
        *_from(Source.FINISHED, _UINT64, "step"),
        *_RECEIVED_AT,
        *_from(Source.FINISHED, _TEXT, "reason"),
        *_from(Source.FINISHED, _UINT32, "preemptions prompt_tokens output_tokens"),
        *_from(Source.FINISHED, _UINT64, "queued_us prefill_us decode_us"),
    ),
)
NODE_SAMPLES = Table(
    "node_samples",
    (
        *_TENANT,
        *_from(Source.METRIC, _TEXT, "metric=name"),
        *_from(Source.SERIES, _TEXT, "engine_id host"),
        *_from(Source.SERIES, _UINT64, "series=hash"),
        *_from(Source.POINT, _TIME_NS, "recorded_at start_time"),
        *_RECEIVED_AT,
        *_from(Source.METRIC, _TEXT, "kind temporality"),
        *_from(Source.METRIC, _BOOL, "monotonic"),
        *_from(Source.METRIC, _TEXT, "unit"),
        *_from(Source.SERIES, pa.map_(_TEXT, _TEXT), "attributes"),
        *_from(Source.POINT, _FLOAT64, "value"),
        *_from(Source.POINT, _UINT64, "count"),
        *_from(Source.POINT, _FLOAT64, "sum"),
        *_from(Source.POINT, _FLOAT64S, "bounds"),
        *_from(Source.POINT, _UINT64S, "bucket_counts"),
    ),
)
REJECTED = Table(
    "rejected",
    (
        *_TENANT,
        *_RECEIVED_AT,
        *_from(Source.RECORD, _TEXT, "reason detail"),
        *_from(Source.RECORD, _TRACE_ID, "trace_id"),
        *_from(Source.RECORD, _SPAN_ID, "span_id"),
        *_from(Source.RECORD, _UINT32, "rev"),
        *_from(Source.RECORD, _TIME_NS, "start_time=start_ns"),
        *_from(Source.RECORD, _TEXT, "service_name emitter"),
        *_from(Source.RECORD, _UINT32, "otlp_bytes"),
        *_from(Source.RECORD, _SHA256, "span_sha256"),
    ),
)
EMITTER_SPANS = Table(
    "emitter_spans",
    (
        *_TENANT,
        *_RECEIVED_AT,
        *_from(Source.RECORD, _TEXT, "service_name scope scope_version emitter result reason"),
        *_from(Source.RECORD, _UINT64, "spans"),
    ),
)
_JUDGED_STREAM = (
    *_from(Source.STREAM, _TEXT, "tenant"),
    *_from(Source.STREAM, _TIME_NS, "start_time=start_ns"),
    *_from(Source.STREAM, _TRACE_ID, "trace_id"),
    *_from(Source.STREAM, _SPAN_ID, "span_id"),
)
VERDICTS = Table(
    "verdicts",
    (
        *_JUDGED_STREAM,
        *_from(Source.JUDGEMENT, _UINT64, "gap_start_us gap_us excess_us"),
        *_from(Source.JUDGEMENT, _TIME_MS, "judged_at"),
        *_from(Source.JUDGEMENT, _TEXT, "cause confidence"),
        *_from(Source.JUDGEMENT, _FLOAT32, "share"),
        *_from(Source.JUDGEMENT, pa.map_(_TEXT, pa.int64()), "parts"),
        *_from(Source.STREAM, _TEXT, "engine_id"),
        *_from(Source.JUDGEMENT, _UINT64, "step_first step_last"),
        *_from(Source.JUDGEMENT, _TEXTS, "missing"),
        *_from(Source.JUDGEMENT, pa.map_(_TEXT, pa.int64()), "evidence"),
        *_from(Source.JUDGEMENT, pa.map_(_TEXT, _TEXT), "excluded"),
        *_from(Source.JUDGEMENT, _UINT32, "error_us"),
        *_from(Source.JUDGEMENT, _UINT64, "culprit_step"),
        *_from(Source.JUDGEMENT, _TIME_NS, "culprit_at"),
        *_from(Source.JUDGEMENT, _UINT64, "culprit_us"),
        *_from(Source.JUDGEMENT, _TEXTS, "culprit_responses"),
        *_from(Source.STREAM, _TEXT, "vantage"),
    ),
)
REPLAYS = Table(
    "replays",
    (
        *_JUDGED_STREAM,
        *_from(Source.JUDGEMENT, _TEXT, "cause"),
        *_from(Source.JUDGEMENT, _TIME_MS, "judged_at"),
        *_from(Source.STREAM, _TEXT, "engine_id"),
        *_from(Source.JUDGEMENT, _UINT32, "stalls stalls_min stalls_max"),
        *_from(Source.JUDGEMENT, _UINT64, "stalled_us stalled_min_us stalled_max_us"),
    ),
)
TABLES = {
    table.name: table
    for table in (STREAM_REVS, STREAM_SOCKETS, ENGINE_STEPS, ENGINE_REQUESTS, NODE_SAMPLES, REJECTED, EMITTER_SPANS, VERDICTS, REPLAYS)
}
