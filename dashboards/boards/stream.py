"""One stream: its vantages on one time axis, the engine's steps, and each stall with its verdict and evidence."""

from __future__ import annotations

from dashboards.panels import Kit, lines, note, rows
from dashboards.sql_fragments import chosen_text, worst_minutes
from legato_ingest import definitions
from legato_ingest.definitions import CONTENT_KINDS_SQL

__all__ = ["board"]

# A complete trace id, or a response id; each has an index.
_ID = f"lower({chosen_text('stream')})"
# One query per id, because a condition with OR would use neither index. The keys found are then looked up by the primary key.
_TRACE = f"if(length({_ID}) = 32, unhex({_ID}), '')::FixedString(16)"
_KEYS = f"""
            SELECT tenant, start_time, trace_id, span_id FROM stream_revs WHERE trace_id = {_TRACE} AND length({_ID}) = 32
            UNION ALL
            SELECT tenant, start_time, trace_id, span_id FROM stream_revs
            WHERE response_id = {chosen_text("stream")} AND response_id != ''"""
# A scalar: from it ClickHouse knows what to read of tables that are sorted by the start of their streams, also for one tenant.
_STARTED = f"""WITH
    (SELECT (min(start_time), max(start_time)) FROM ({_KEYS})) AS starts"""
_BY_START = "start_time >= starts.1 AND start_time <= starts.2"
_STREAM = f"""
    SELECT *
    FROM streams
    WHERE {_BY_START} AND (tenant, start_time, trace_id, span_id) IN
        ({_KEYS}
        )
    ORDER BY start_time
    LIMIT 20"""
_RAN = f"""{_STARTED},
    (SELECT (min(start_time), max(addNanoseconds(start_time, duration_ns))) FROM ({_STREAM})) AS ran"""
_ENGINE_OF = f"SELECT tenant, engine_id FROM ({_STREAM}) WHERE engine_id != ''"

# Also while a stream is chosen, so that the board leads from one stream to the next.
WORST = f"""
SELECT
    lower(hex(trace_id)) AS stream, start_time AS started, service_name AS service, model, vantage, gap_max_us / 1e6 AS "max gap",
    stalls_250ms AS stalls, outcome
FROM streams
WHERE $__timeFilter_ms(start_time) AND gap_max_us > 0 AND outcome != 'running'
    AND toStartOfMinute(start_time) IN
    (
        {worst_minutes()}
    )
ORDER BY gap_max_us DESC, stream, vantage
LIMIT 20"""
VANTAGES = f"""{_STARTED}
SELECT
    vantage, service_name AS service, service_version AS release, model, provider, outcome, start_time AS started, ttfb_us / 1e6 AS "TTFB",
    ttft_us / 1e6 AS "TTFT", duration_ns / 1e9 AS duration, chunks, output_tokens AS tokens, gap_p50_us / 1e6 AS "gap p50",
    gap_p99_us / 1e6 AS "gap p99", gap_max_us / 1e6 AS "max gap", gap_open_us / 1e6 AS "open gap", stalls_250ms AS stalls,
    engine_id AS engine,
    response_id AS response, lower(hex(trace_id)) AS trace, emitter
FROM ({_STREAM})
ORDER BY indexOf({list(reversed(definitions.VANTAGES))}, vantage), started"""
ARRIVALS = f"""{_STARTED}
SELECT addMicroseconds(start_time, at) AS time, vantage, bytes
FROM
(
    SELECT start_time, vantage, arrayCumSum(dt_us) AS ats,
        arrayCumSum(if(empty(chunk_bytes), arrayMap(each -> 1, dt_us), chunk_bytes)) AS sums
    FROM ({_STREAM})
)
ARRAY JOIN ats AS at, sums AS bytes
ORDER BY time, vantage
LIMIT 200000"""
GAPS = f"""{_STARTED}
SELECT addMicroseconds(start_time, at) AS time, vantage, gap / 1e6 AS gap_s
FROM
(
    SELECT
        start_time, vantage, arrayFilter((at, kind) -> kind IN {CONTENT_KINDS_SQL}, arrayMap(at -> toInt64(at), arrayCumSum(dt_us)),
        chunk_kind) AS ats,
        arrayDifference(ats) AS waited
    FROM ({_STREAM})
)
ARRAY JOIN ats AS at, waited AS gap
ORDER BY time, vantage
LIMIT 200000"""
STEPS = f"""{_RAN}
SELECT recorded_at AS time, engine_id AS engine, interval_us / 1e6 AS "step", interval_max_us / 1e6 AS "longest wait of a request"
FROM engine_steps FINAL
WHERE (tenant, engine_id) IN ({_ENGINE_OF}) AND recorded_at >= ran.1 AND recorded_at <= ran.2
ORDER BY time, engine
LIMIT 100000"""
LOAD = f"""{_RAN}
SELECT
    recorded_at AS time, engine_id AS engine, prefill_tokens AS "prefill tokens", running, waiting, preempted,
    kv_used_ppm / 1e6 AS "KV used"
FROM engine_steps FINAL
WHERE (tenant, engine_id) IN ({_ENGINE_OF}) AND recorded_at >= ran.1 AND recorded_at <= ran.2
ORDER BY time, engine
LIMIT 100000"""
VERDICTS = f"""{_STARTED}
SELECT
    addMicroseconds(start_time, gap_start_us) AS "gap start", gap_us / 1e6 AS gap, excess_us / 1e6 AS "beyond healthy", cause, confidence,
    arrayStringConcat(arrayMap((name, ns) -> concat(name, ' ', toString(round(ns / 1e6, 1)), ' ms'), mapKeys(parts), mapValues(parts)),
    ', ') AS parts,
    arrayStringConcat(arrayMap((name, value) -> concat(name, ' = ', toString(value)), mapKeys(evidence), mapValues(evidence)),
    ', ') AS evidence,
    arrayStringConcat(arrayMap((name, why) -> concat('not ', name, ': ', why), mapKeys(excluded), mapValues(excluded)), '; ') AS excluded,
    arrayStringConcat(missing, ', ') AS "missing vantages", error_us / 1e6 AS "within", culprit_step AS "root-cause step",
    arrayStringConcat(culprit_responses, ', ') AS culprits, engine_id AS engine
FROM verdicts FINAL
WHERE cause != 'base' AND {_BY_START}
    AND (start_time, trace_id, span_id) IN (SELECT start_time, trace_id, span_id FROM ({_STREAM}))
ORDER BY "gap start"
LIMIT 500"""
BUT_FOR = f"""{_STARTED}
SELECT
    cause, stalls AS "stalls as they were", stalls_min AS "left at least", stalls_max AS "left at most",
    stalled_us / 1e6 AS "stalled as it was",
    stalled_min_us / 1e6 AS "at least left", stalled_max_us / 1e6 AS "at most left"
FROM replays FINAL
WHERE {_BY_START} AND (start_time, trace_id, span_id) IN (SELECT start_time, trace_id, span_id FROM ({_STREAM}))
    AND judged_at = (SELECT max(judged_at) FROM verdicts FINAL WHERE {_BY_START} AND (start_time, trace_id, span_id) IN
        (SELECT start_time, trace_id, span_id FROM ({_STREAM})))
ORDER BY cause
LIMIT 50"""
SIMULTANEOUS = f"""{_RAN}
SELECT
    lower(hex(trace_id)) AS stream, addMicroseconds(start_time, gap_start_us) AS "gap start", gap_us / 1e6 AS gap, cause, confidence,
    engine_id AS engine
FROM verdicts FINAL
WHERE cause != 'base' AND (tenant, engine_id) IN ({_ENGINE_OF}) AND start_time >= ran.1 - INTERVAL 5 MINUTE
    AND start_time <= ran.2
    AND addMicroseconds(start_time, gap_start_us) <= ran.2
    AND addMicroseconds(start_time, gap_start_us + gap_us) >= ran.1
    AND trace_id NOT IN (SELECT trace_id FROM ({_STREAM}))
ORDER BY gap_us DESC, stream
LIMIT 50"""


_NO_STEPS = "No stream is chosen, its engine is unknown, or the engine recorded no steps (they need Legato's plugin and agent)."
_NONE = "No stream is chosen (enter its id at the top, or open one of the worst streams), no stream has this id"


def board() -> Kit:
    """The dashboard."""
    kit = Kit(
        "legato-stream",
        "Legato · Stream",
        "One stream by its trace or response id: its vantages, the engine's steps, its stalls and their evidence.",
        variables={},
        empty=f"{_NONE}, or it has no data of this kind.",
        settings=[
            ("stream", "Trace or response id", "32 hexadecimal digits, or a response id. Every table of streams links to this one.", "")
        ],
        annotated=False,
        refresh="",
    )
    _add_timelines(kit)
    _add_verdicts(kit)
    return kit


def _add_timelines(kit: Kit) -> None:
    """The stream at each vantage, and the engine's steps at the same time."""
    seconds = {name: "s" for name in ("TTFB", "TTFT", "duration", "gap p50", "gap p99", "max gap", "open gap")}
    kit.add(
        note(
            "How to read this",
            "**Choose a stream**: enter its trace or response id at the top, or open one of the worst streams on the right. Set the time "
            "range to that of the stream; its start is in the table Vantages.\n\n**Compare the vantages**: curves that rise together and "
            "then diverge show that something between two vantages held bytes back. If the curves of all vantages are flat, the engine "
            "sent nothing, and its steps show why.",
            width=8,
            height=8,
        ),
        rows(
            "Worst streams of this range",
            "The 20 streams with the longest gaps that began in the time range. Click an id to open the stream.",
            WORST,
            {"max gap": "s"},
            width=16,
            height=8,
            empty="No stream that began in this range had a gap. Choose a longer range.",
        ),
        rows(
            "Vantages",
            "One row per vantage that recorded the stream, from the end user's screen to the engine.",
            VANTAGES,
            seconds,
            height=6,
            empty=f"{_NONE}, or its rows have expired.",
        ),
        lines(
            "Bytes at each vantage",
            "Running sum of content bytes (of chunks, if sizes are unknown). A flat part is a gap, a step is a burst.",
            ARRIVALS,
            "decbytes",
            width=24,
        ),
        lines(
            "Gaps",
            "Each read with content at its time of arrival, with the time since the read before.",
            GAPS,
            "s",
            scale="gap",
            points=True,
        ),
        lines(
            "Engine steps",
            "The engine's own interval per step, and the longest wait of any request.",
            STEPS,
            "s",
            points=True,
            empty=_NO_STEPS,
        ),
        lines(
            "Engine load",
            "Prompt tokens per step, requests in the batch and the queue, preemptions, and the share of the KV cache in use.",
            LOAD,
            "short",
            units={"KV used": "percentunit"},
            width=24,
            empty=_NO_STEPS,
        ),
    )


def _add_verdicts(kit: Kit) -> None:
    """The stalls with their verdicts, what would remain without a cause, and simultaneous stalls."""
    kit.add(
        rows(
            "Stalls, verdicts and evidence",
            "One row per stall. parts: its time by cause; they add up to the gap. evidence: the numbers that the verdict rests on. "
            "excluded: causes that were ruled out, and why. within: the error of these times.",
            VERDICTS,
            {"gap": "s", "beyond healthy": "s", "within": "s"},
            causes=("cause",),
            empty=f"{_NONE}, or it has no stall with a verdict.",
        ),
        rows(
            "Counterfactual: without one cause",
            "The stalls of this stream that would remain without each cause.",
            BUT_FOR,
            {"stalled as it was": "s", "at least left": "s", "at most left": "s"},
            width=12,
            height=7,
            causes=("cause",),
            empty=f"{_NONE}, or no cause of its stalls can be removed in a computation.",
        ),
        rows(
            "Simultaneous stalls on the engine",
            "Other streams on the same engine that stalled at the same time.",
            SIMULTANEOUS,
            {"gap": "s"},
            width=12,
            height=7,
            causes=("cause",),
            empty=f"{_NONE}, its engine is unknown, or no other stream stalled there at that time.",
        ),
    )
