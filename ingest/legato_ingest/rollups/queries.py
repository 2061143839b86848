"""The SQL that computes the rollups of a minute from the rows in the store.

A rollup row is a function of the rows of one minute, so recomputing it always gives the current result; no state accumulates. All its
figures can be added over minutes and over the dimensions that panels filter by: counts, sums and sparse histograms, never quantiles. The
module only holds statements; `compute` runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from legato_ingest.causes import END_USER, NETWORK_PATH, sql_list
from legato_ingest.definitions import DIMENSIONS, ERRORS
from legato_ingest.quoting import literal
from legato_ingest.timeline.statistics import BUCKETS_PER_DOUBLING

__all__ = [
    "BUCKETS_PER_DOUBLING_FINE",
    "ENGINE_ROLLUPS",
    "KEYS",
    "MINUTES",
    "SETTINGS",
    "STORED",
    "STREAM_ROLLUPS",
    "VERSION",
    "Rollup",
    "Statement",
    "hours_sql",
    "minutes_sql",
]

# Resolution of figures that a stream has once, finer than that of its gaps: a bucket is 4.4 % wide, its middle at most 2.2 % off.
BUCKETS_PER_DOUBLING_FINE = 4 * BUCKETS_PER_DOUBLING
# Placeholders, which `compute` fills in. Conditions: on the time of source rows, on the minute of stored rows, and on keys.
MINUTES, STORED, KEYS = "/*minutes*/", "/*stored*/", "/*keys*/"
# The version of rows of zeros in Unix ms; computed rows have the next one. And the settings of the statement.
VERSION, SETTINGS = "/*version*/", "/*settings*/"
_ROLLED_AT = f"fromUnixTimestamp64Milli({VERSION} + 1, 'UTC') AS rolled_at"


@dataclass(frozen=True, slots=True)
class Rollup:
    """A 1-minute table: ``keys`` are its key columns after (tenant, minute), ``alive`` the column that is 0 in rows of a vanished key,
    ``hours`` the name of its 1-hour table, if it has one, ``due`` when the first running stream of a minute is overdue (SQL, Unix ms; 0:
    there is none).
    """

    table: str
    keys: tuple[str, ...]
    alive: str
    sql: str
    hours: str = ""
    due: str = "0"

    @property
    def key_hash(self) -> str:
        """The hash of a key without its minute, in SQL."""
        # Each column alone: then ClickHouse hashes each text of a block once, and does not first write it out for each row.
        return f"cityHash64({', '.join(f'cityHash64({name})' for name in ('tenant', *self.keys))})"


@dataclass(frozen=True, slots=True)
class Statement:
    """What computes the rows of a rollup, with placeholders."""

    rollup: Rollup
    sql: str


def _bucket(value: str) -> str:
    return f"toUInt16(floor(log2(greatest({value}, 1)) * {BUCKETS_PER_DOUBLING_FINE}))"


def _buckets(value: str, condition: str) -> str:
    """Return a sparse histogram: bucket b counts values in [2^(b/16), 2^((b+1)/16)); values below 1 are in bucket 0."""
    known = f"coalesce({value}, 0)"
    return f"CAST(sumMapIf(map({_bucket(known)}, toUInt32(1)), ({condition}) AND {value} IS NOT NULL), 'Map(UInt16, UInt32)')"


def _clients(condition: str) -> str:
    return f"CAST(sumMapIf(map(client, toUInt32(1)), {condition}), 'Map(UInt64, UInt32)')"


def _known(*columns: str) -> str:
    return " AND ".join(f"{column} IS NOT NULL" for column in columns)


# The longest stall of a stream on each side: a list of its stalls would take memory that no division of the keys reduces. Gaps below every
# limit are left out, which are most.
_SIDES = f"""
    SELECT
        tenant, start_time, trace_id, span_id,
        maxIf(gap_us, cause IN {sql_list(NETWORK_PATH)}) AS connection_us,
        maxIf(gap_us, cause IN {sql_list(END_USER)}) AS end_user_us,
        maxIf(gap_us, cause NOT IN {sql_list([*NETWORK_PATH, *END_USER])}) AS service_us
    FROM verdicts FINAL
    WHERE {MINUTES} AND gap_us > (SELECT min(gap_limit_us) FROM current_objectives)
    GROUP BY tenant, start_time, trace_id, span_id"""
# Totals of a stream are compared only with content that is all in its timeline.
_TOKENS = _known("output_tokens", "content_chunks") + " AND content_chunks > 0 AND chunks_dropped = 0"
_ENVELOPED = _known("wire_bytes", "content_bytes") + " AND chunks_dropped = 0"
_RATE = "is_over AND output_tokens > 1 AND ttft_us IS NOT NULL AND after_first_us > 0"

_STREAM_MINUTES = f"""
SELECT
    {_ROLLED_AT}, tenant, minute, {", ".join(DIMENSIONS)}, emitter,
    minIf(overdue_at, NOT is_over) AS due_at,
    any(objective) AS objective,
    toUInt32(count()) AS streams,
    CAST(sumMap(map(outcome, toUInt32(1))), 'Map(String, UInt32)') AS outcomes,
    toUInt32(countIf(is_judged)) AS judged,
    toUInt32(countIf(is_judged AND NOT is_bad)) AS good,
    toUInt32(countIf(is_bad AND over_gap)) AS bad_gap,
    toUInt32(countIf(is_bad AND NOT over_gap AND is_error)) AS bad_error,
    toUInt32(countIf(is_bad AND NOT over_gap AND NOT is_error)) AS bad_late,
    {_clients("is_judged")} AS judged_clients,
    {_clients("is_bad AND (over_gap OR is_error) AND side NOT IN ('connection', 'end_user')")} AS bad_service_clients,
    {_clients("is_bad AND over_gap AND side = 'connection'")} AS bad_connection_clients,
    {_clients("is_bad AND over_gap AND side = 'end_user'")} AS bad_reader_clients,
    {_clients("is_bad AND NOT over_gap AND NOT is_error")} AS bad_late_clients,
    toUInt32(countIf(is_timed)) AS timed_streams,
    sumIf(toUInt64(gaps), is_timed) AS gaps,
    sumIf(toUInt64(gap_sum_us), is_timed) AS gap_sum_us,
    maxIf(toUInt64(coalesce(gap_max_us, 0)), is_timed) AS gap_max_us,
    mapFromArrays((sumMapIf(gap_bucket, gap_bucket_count, is_timed) AS all_buckets).1, all_buckets.2) AS gap_buckets,
    {_buckets("gap_p99_us", "is_timed")} AS gap_p99_buckets,
    {_buckets("gap_max_us", "is_timed")} AS gap_max_buckets,
    {_buckets("jitter_ratio * 1000", "is_over")} AS jitter_permille_buckets,
    {_buckets("ttfb_us", "is_over")} AS ttfb_buckets,
    {_buckets("ttft_us", "is_over")} AS ttft_buckets,
    {_buckets("ttfo_us", "is_over")} AS ttfo_buckets,
    toUInt32(countIf(is_over AND stalls_250ms > 0)) AS stalled_streams,
    sumIf(toUInt64(stalls_250ms), is_over) AS stalls_250ms,
    sumIf(toUInt64(stalls_400ms), is_over) AS stalls_400ms,
    sumIf(toUInt64(excess_250ms_us), is_over) AS excess_250ms_us,
    sum(toUInt64(chunks)) AS chunks,
    sum(toUInt64(content_chunks)) AS content_chunks,
    sum(toUInt64(content_bytes)) AS content_bytes,
    sum(toUInt64(otlp_bytes)) AS otlp_bytes,
    toUInt32(countIf({_ENVELOPED})) AS enveloped_streams,
    sumIf(toUInt64(wire_bytes), {_ENVELOPED}) AS enveloped_wire_bytes,
    sumIf(toUInt64(content_bytes), {_ENVELOPED}) AS enveloped_content_bytes,
    toUInt32(countIf({_TOKENS})) AS token_streams,
    sumIf(toUInt64(output_tokens), {_TOKENS}) AS tokens,
    sumIf(toUInt64(content_chunks), {_TOKENS}) AS token_chunks,
    sumIf(toUInt64(otlp_bytes), {_TOKENS}) AS token_otlp_bytes,
    toUInt32(countIf(is_over AND multi_token_share IS NOT NULL)) AS share_streams,
    sumIf(toFloat64(multi_token_share), is_over) AS multi_token_share_sum,
    toUInt32(countIf({_RATE})) AS log_rate_streams,
    sumIf(log_rate, {_RATE}) AS log_rate_sum,
    sumIf(log_rate * log_rate, {_RATE}) AS log_rate_sq_sum,
    toUInt32(countIf(is_over AND head_burst IS NOT NULL)) AS head_streams,
    toUInt32(countIf(is_over AND head_burst > 3)) AS head_bursts
FROM
(
    SELECT
        *,
        toStartOfMinute(start_time) AS minute,
        toDateTime64(addMicroseconds(start_time, next_due_us) + INTERVAL 30 SECOND, 3, 'UTC') AS overdue_at,
        if(client_hash = '', 0, cityHash64(client_hash)) AS client,
        outcome != 'running' AS is_over, is_over AND gap_max_us IS NOT NULL AS is_timed,
        good IS NOT NULL AS is_judged, coalesce(good = 0, false) AS is_bad,
        coalesce(gap_max_us, 0) > gap_limit_us AS over_gap,
        outcome IN {ERRORS} AS is_error,
        -- A verdict's side counts only if it explains why the stream is bad: not for an error, nor for an open gap over the limit, nor
        -- if a longer gap has no verdict.
        greatest(service_us, connection_us, end_user_us) AS judged_us,
        NOT is_error AND coalesce(gap_open_us, 0) <= gap_limit_us
            AND if(judged_us > gap_limit_us, judged_us, 0) + 1000 >= coalesce(gap_max_us, 0) AS has_side,
        multiIf(NOT has_side, '', service_us > gap_limit_us, 'service', connection_us > gap_limit_us, 'connection', 'end_user') AS side,
        toInt64(intDiv(duration_ns, 1000)) - toInt64(coalesce(ttft_us, 0)) AS after_first_us,
        log(greatest(coalesce(output_tokens, 1), 1) / greatest(after_first_us, 1) * 1e6) AS log_rate
    FROM streams
    LEFT JOIN ({_SIDES}) AS judgements USING (tenant, start_time, trace_id, span_id)
    WHERE {MINUTES}
)
GROUP BY tenant, minute, {", ".join(DIMENSIONS)}, emitter"""

_STREAM_KEY = "tenant, start_time, trace_id, span_id"
_STREAM_DIMENSIONS = f"(SELECT {_STREAM_KEY}, {', '.join(DIMENSIONS)}, objective FROM streams WHERE {MINUTES}) AS stream_dimensions"

_STALL_MINUTES = f"""
SELECT
    {_ROLLED_AT}, tenant, minute, {", ".join(DIMENSIONS)}, engine_id, cause, confidence,
    any(objective) AS objective,
    toUInt32(count()) AS stalls,
    sum(gap_us) AS stalled_us,
    sum(excess_us) AS excess_us,
    CAST(sumMap(mapUpdate(charged, back)), 'Map(String, Int64)') AS parts,
    CAST(sumMap(CAST(arrayMap(name -> (name, toUInt32(1)), missing), 'Map(String, UInt32)')), 'Map(String, UInt32)') AS missing
FROM
(
    SELECT
        tenant, start_time, trace_id, span_id, toStartOfMinute(start_time) AS minute, engine_id, cause, confidence, gap_us, excess_us,
        parts, missing,
        -- A part is negative if the gap was shorter than at the server, because a delayed stream caught up.
        mapApply((name, ns) -> (name::String, ns), mapFilter((name, ns) -> ns > 0, parts)) AS charged,
        arraySum(ns -> least(ns, 0), mapValues(parts)) AS back_ns,
        if(back_ns < 0, map('caught_up', back_ns), CAST(map(), 'Map(String, Int64)')) AS back
    FROM verdicts FINAL
    WHERE {MINUTES} AND cause != 'base'
) AS judged
INNER JOIN {_STREAM_DIMENSIONS} USING (tenant, start_time, trace_id, span_id)
GROUP BY tenant, minute, {", ".join(DIMENSIONS)}, engine_id, cause, confidence"""

_BOUNDS = ("stalls", "stalls_min", "stalls_max"), ("stalled_us", "stalled_min_us", "stalled_max_us")
_SUMS = ", ".join([f"toUInt32(sum({name})) AS {name}" for name in _BOUNDS[0]] + [f"sum({name}) AS {name}" for name in _BOUNDS[1]])
_UNCHANGED = ", ".join(f"any({names[0]}) AS {name}" for names in _BOUNDS for name in names)
_BUT_FOR_MINUTES = f"""
WITH
    newest AS
    (
        SELECT tenant, start_time, trace_id, span_id, max(judged_at) AS judged_at
        FROM verdicts FINAL
        WHERE {MINUTES} AND cause != 'base'
        GROUP BY tenant, start_time, trace_id, span_id
    ),
    replayed AS
    (
        SELECT
            tenant, start_time, trace_id, span_id, toStartOfMinute(start_time) AS minute, cause::String AS cause,
            {", ".join(_BOUNDS[0] + _BOUNDS[1])}
        FROM replays FINAL
        WHERE {MINUTES} AND (tenant, start_time, trace_id, span_id, judged_at) IN (SELECT * FROM newest)
    )
SELECT {_ROLLED_AT}, tenant, minute, {", ".join(DIMENSIONS)}, cause, toUInt32(count()) AS streams, {_SUMS}
FROM
(
    SELECT tenant, start_time, trace_id, span_id, minute, cause, {", ".join(_BOUNDS[0] + _BOUNDS[1])} FROM replayed
    UNION ALL
    SELECT tenant, start_time, trace_id, span_id, minute, ''::String, {_UNCHANGED}
    FROM replayed
    GROUP BY tenant, start_time, trace_id, span_id, minute
) AS replays_and_all
INNER JOIN {_STREAM_DIMENSIONS} USING (tenant, start_time, trace_id, span_id)
GROUP BY tenant, minute, {", ".join(DIMENSIONS)}, cause"""

_WORK = _known("prefill_tokens", "decode_tokens", "decode_requests")
_ENGINE_MINUTES = f"""
SELECT
    {_ROLLED_AT}, tenant, toStartOfMinute(recorded_at) AS minute, engine_id,
    toUInt32(count()) AS steps,
    toUInt32(countIf(interval_us IS NOT NULL)) AS interval_steps,
    sum(toUInt64(interval_us)) AS interval_sum_us,
    {_buckets("interval_us", "1")} AS interval_buckets,
    {_buckets("interval_us", "prefill_tokens = 0")} AS decode_interval_buckets,
    toUInt32(countIf(running IS NOT NULL)) AS running_steps,
    sum(toUInt64(running)) AS running_sum,
    max(coalesce(running, 0)) AS running_max,
    sum(toUInt64(waiting)) AS waiting_sum,
    max(coalesce(waiting, 0)) AS waiting_max,
    toUInt32(countIf({_WORK})) AS work_steps,
    toUInt32(countIf({_WORK} AND prefill_tokens > 0)) AS prefill_steps,
    sumIf(toUInt64(prefill_tokens), {_WORK}) AS prefill_tokens,
    sumIf(toUInt64(decode_requests), {_WORK}) AS decode_requests,
    sumIf(toUInt64(decode_tokens), {_WORK}) AS decode_tokens,
    sumIf(toUInt64(draft_tokens), {_known("draft_tokens", "accepted_tokens")}) AS draft_tokens,
    sumIf(toUInt64(accepted_tokens), {_known("draft_tokens", "accepted_tokens")}) AS accepted_tokens,
    toUInt32(countIf(preempted > 0)) AS preempting_steps,
    sum(toUInt64(preempted)) AS preempted,
    toUInt32(countIf(kv_used_ppm IS NOT NULL)) AS kv_steps,
    sum(toUInt64(kv_used_ppm)) AS kv_used_sum_ppm,
    max(coalesce(kv_used_ppm, 0)) AS kv_used_max_ppm
FROM (SELECT * REPLACE (coalesce(preempted, 0) AS preempted) FROM engine_steps FINAL WHERE {MINUTES})
GROUP BY tenant, minute, engine_id"""


# Columns of tables with a 1-hour table that are maxima. (Columns of `but_for_minutes` that end in `_max` are bounds of sums.)
_MAXIMA = frozenset(("gap_max_us",))


def minutes_sql(rollup: Rollup, columns: Sequence[tuple[str, str]]) -> Statement:
    """Return the statement that computes 1-minute rows. ``columns``: name and type of each column of ``rollup.sql``, in order.

    Every stored key that is not zero gets zeros, and every computed one its figures with a later version. Of both the store keeps the
    latter, also in one insert. So no keys are compared, and a reader never sees a key that has vanished beside the one in its place.
    """
    kept = ("tenant", "minute", *rollup.keys)
    empty = {name: name if name in kept else f"defaultValueOfTypeName({literal(kind)})" for name, kind in columns}
    empty["rolled_at"] = f"fromUnixTimestamp64Milli({VERSION}, 'UTC')"
    return Statement(
        rollup,
        f"""
INSERT INTO {rollup.table} ({", ".join(empty)}) SETTINGS {SETTINGS}
{rollup.sql}
HAVING {KEYS}
UNION ALL
SELECT {", ".join(f"{value} AS {name}" for name, value in empty.items())}
FROM {rollup.table} FINAL
WHERE {STORED} AND {rollup.alive} > 0 AND {KEYS}""",
    )


def hours_sql(rollup: Rollup, columns: Sequence[tuple[str, str]]) -> Statement:
    """Return the statement that computes 1-hour rows from a rollup's 1-minute rows. ``columns``: name and type of each column.

    All figures are added, except for maxima, times and texts. The version of an hour is the newest of its minutes: a later computation
    has no lower version, and of equal versions ClickHouse keeps the row inserted last. A vanished key has zeros in its minutes and
    therefore in its hour.
    """
    keys = ("tenant", "minute", *rollup.keys)
    figures = [(name, kind) for name, kind in columns if name not in keys]
    written = ", ".join([*keys, *(name for name, _ in figures)])
    selected = [
        "tenant",
        "toStartOfHour(minute)",
        *rollup.keys,
        *(f"CAST({_aggregate(name, kind)}, {literal(kind)})" for name, kind in figures),
    ]
    grouped = ", ".join(("tenant", "toStartOfHour(minute)", *rollup.keys))
    return Statement(
        rollup,
        f"""
INSERT INTO {rollup.hours} ({written}) SETTINGS {SETTINGS}
SELECT {", ".join(selected)}
FROM {rollup.table} FINAL
WHERE {STORED} AND {KEYS}
GROUP BY {grouped}""",
    )


def _aggregate(name: str, kind: str) -> str:
    if kind.startswith("Map"):
        return f"sumMap({name})"
    if "String" in kind:
        return f"argMax({name}, rolled_at)"
    return f"max({name})" if kind.startswith("DateTime") or name in _MAXIMA else f"sum({name})"


STREAM_ROLLUPS = (
    Rollup(
        "stream_minutes",
        (*DIMENSIONS, "emitter"),
        "streams",
        _STREAM_MINUTES,
        "stream_hours",
        "minIf(toUnixTimestamp64Milli(due_at), toUnixTimestamp64Milli(due_at) > 0)",
    ),
    Rollup("stall_minutes", (*DIMENSIONS, "engine_id", "cause", "confidence"), "stalls", _STALL_MINUTES, "stall_hours"),
    Rollup("but_for_minutes", (*DIMENSIONS, "cause"), "streams", _BUT_FOR_MINUTES, "but_for_hours"),
)
ENGINE_ROLLUPS = (Rollup("engine_minutes", ("engine_id",), "steps", _ENGINE_MINUTES),)
