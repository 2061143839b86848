"""The SQL of `legato report`, `legato streams` and `legato blame`.

Every query that judges streams reads the column `good` of the view `streams`. Values are bound as ``{name:Type}``. An unknown figure
is NULL, which aggregates skip; each aggregate is returned with its own n. It runs nothing.
"""

from __future__ import annotations

from legato_ingest.definitions import CONTENT_KINDS_SQL, ERRORS, FIRST_OUTPUT_US, STALL_MS

__all__ = [
    "BLAME",
    "BUT_FOR",
    "ENGINE_EVENTS",
    "FIRST_TOKENS",
    "JUDGED_STALLS",
    "REPORT",
    "STREAMS",
    "within",
]


_SINCE = "if({since_s:UInt64} = 0, toDateTime64(0, 9), now64(9) - toIntervalSecond({since_s:UInt64}))"


def within(time: str) -> str:
    """Return the SQL condition that a row is of the tenant, and its time in the range (`time_range`); 0 and '' are no limit.

    Each bound is one constant, which the primary key can be used for, also for a reader of one tenant (``query.key_ranges``).
    """
    return (
        f"{time} >= {_SINCE} AND {time} >= fromUnixTimestamp64Nano({{from_ns:Int64}})"
        f" AND {time} < if({{to_ns:Int64}} = 0, toDateTime64('2262-04-11 00:00:00', 9), fromUnixTimestamp64Nano({{to_ns:Int64}}))"
        " AND ({tenant:String} = '' OR tenant = {tenant:String})"
    )


_WITHIN = within("start_time")
# What an engine recorded for a stream that began in the range. An hour earlier, in case its clock was slow.
_SERVED = (
    f"recorded_at >= {_SINCE} - toIntervalHour(1)"
    " AND recorded_at >= if({from_ns:Int64} = 0, toDateTime64(0, 9), fromUnixTimestamp64Nano({from_ns:Int64}) - toIntervalHour(1))"
)
# The same for a server's stream, by the day of its start, which is one of UTC.
_SERVED_DAY = (
    f"day >= toDate32({_SINCE} - toIntervalHour(1), 'UTC')"
    " AND day >= toDate32(if({from_ns:Int64} = 0, toDateTime64(0, 9), fromUnixTimestamp64Nano({from_ns:Int64})) - toIntervalHour(1), 'UTC')"
)
_FILTERS = (
    "({model:String} = '' OR model = {model:String}) AND ({service:String} = '' OR service_name = {service:String}) "
    "AND ({vantage:String} = '' OR vantage = {vantage:String})"
)


def _rank(share: float, column: str) -> str:
    """The order statistic at rank ⌈share n⌉ over the ended streams with a value.

    quantileExact takes rank ⌊level n⌋ + 1; a level just below the share turns this into ⌈share n⌉, for n up to ten million.
    """
    return f"quantileExactIf({share - 1e-9:.9f})({column}, is_over)"


# The limits of a good stream: those of its objective, unless the options of `legato report` set others.
_GAP_LIMIT = "if({gap_us:UInt64} = 0, gap_limit_us, {gap_us:UInt64})"
_FIRST_LIMIT = "if({first_us:UInt64} = 0, first_output_limit_us, {first_us:UInt64})"
REPORT = f"""
SELECT
    model, service_name AS service, vantage,
    count() AS streams,
    countIf(NOT is_over) AS running,
    countIf(is_judged) AS judged,
    countIf(is_judged AND is_good) AS good,
    countIf(is_over AND gap_p99_us IS NOT NULL) AS gap_n,
    if(gap_n <= 100, maxIf(gap_p99_us, is_over), {_rank(0.99, "gap_p99_us")}) AS gap_p99_p99_us,
    maxIf(gap_max_us, is_over) AS gap_worst_us,
    {_rank(0.5, "jitter_ratio")} AS jitter_p50,
    countIf(is_over AND jitter_ratio IS NOT NULL) AS jitter_n,
    {_rank(0.5, "ttft_us")} AS ttft_p50_us,
    {_rank(0.95, "ttft_us")} AS ttft_p95_us,
    countIf(is_over AND ttft_us IS NOT NULL) AS ttft_n,
    sumIf(stalls_250ms, is_over) AS stalls,
    countIf(is_over AND stalls_250ms > 0) AS stalled,
    sumIf(excess_250ms_us, is_over) AS excess_us,
    countIf(is_over AND stalls_250ms IS NOT NULL) AS stalls_n,
    sumMap(map(outcome, toUInt64(1))) AS outcomes,
    arraySort(groupUniqArray(gap_limit)) AS gap_limits_us, arraySort(groupUniqArray(first_limit)) AS first_limits_us
FROM
(
    SELECT
        model, service_name, vantage, outcome, gap_p99_us, gap_max_us, jitter_ratio, ttft_us, stalls_250ms, excess_250ms_us,
        outcome != 'running' AS is_over, good IS NOT NULL AS is_judged, {_GAP_LIMIT} AS gap_limit, {_FIRST_LIMIT} AS first_limit,
        coalesce(gap_max_us, 0) <= gap_limit AND {FIRST_OUTPUT_US} <= first_limit AND outcome NOT IN {ERRORS} AS is_good
    FROM streams
    WHERE {_WITHIN} AND {_FILTERS}
)
GROUP BY model, service_name, vantage
ORDER BY streams DESC, model, service, vantage
LIMIT {{limit:UInt32}}
"""

# The sparkline: the longest gap between content reads that ends in each of 16 equal parts of the stream.
_SPARK = (
    "arrayMap(part -> arrayMax(arrayMap((gap, at) -> if(intDiv(at * 16, read_at[-1] + 1) = part, gap, 0), gaps_us, read_at)), range(16))"
)
STREAMS = f"""
WITH
    arrayFilter((at, kind) -> kind IN {CONTENT_KINDS_SQL}, arrayMap(at -> toUInt64(at), arrayCumSum(dt_us)), chunk_kind) AS read_at,
    arrayDifference(arrayMap(at -> toInt64(at), read_at)) AS gaps_us
SELECT
    tenant, lower(hex(trace_id)) AS trace, lower(hex(span_id)) AS span, toString(start_time) AS start,
    toUnixTimestamp64Milli(start_time) AS start_ms, intDiv(duration_ns, 1000) AS duration_us,
    model, service_name AS service, vantage, outcome, response_id, chunks, content_bytes,
    ttft_us, gap_max_us, gap_open_us, stalls_250ms, excess_250ms_us,
    good,
    if(empty(read_at), [], {_SPARK}) AS spark
FROM streams
WHERE {_WITHIN} AND {_FILTERS}
    AND ({{outcome:String}} = '' OR outcome = {{outcome:String}})
    AND ({{stalled:UInt8}} = 0 OR stalls_250ms > 0)
ORDER BY start_time DESC
LIMIT {{limit:UInt32}}
"""

# The vantage at which a stream counts: the client's, or the server's if no client of the trace knows the figure. So each stream counts
# once. Clients of other libraries often know no chunk.
_COUNTED_VANTAGE = """(vantage = 'client' OR vantage = 'server' AND (tenant, trace_id) NOT IN
        (SELECT tenant, trace_id FROM streams WHERE vantage = 'client' AND (%s IS NOT NULL OR NOT ended) AND %s))"""
# A server of a call without a recorded client counts, too, although its trace has the client of another one: it has verdicts on stalls.
_JUDGED_VANTAGE = f"""({_COUNTED_VANTAGE % ("chunks", _WITHIN)}
    OR vantage = 'server' AND (tenant, start_time, trace_id, span_id) IN
        (SELECT tenant, start_time, trace_id, span_id FROM verdicts FINAL WHERE vantage = 'server' AND cause != 'base' AND {_WITHIN}))"""
_TTFT_VANTAGE = _COUNTED_VANTAGE % ("ttft_us", _WITHIN)
# The judged stalls of matching streams. A gap with the cause `base` turned out to be healthy and is no stall.
_MATCHING = f"""
    {_WITHIN}
    AND ({{engine:String}} = '' OR engine_id = {{engine:String}})
    AND (({{model:String}} = '' AND {{service:String}} = '') OR (trace_id, span_id) IN (
        SELECT trace_id, span_id FROM streams WHERE ({{model:String}} != '' OR {{service:String}} != '') AND {_WITHIN} AND {_FILTERS}))"""
_BLAMED = f"cause != 'base' AND {_MATCHING}"
# One row per main cause, with its confidences; `parts` adds up the time charged to every cause. A part of a gap is negative if the gap was
# shorter than at the server, because a delayed stream caught up: these parts are added up as `caught_up_us`.
BLAME = f"""
SELECT
    cause, count() AS stalls, uniqExact(trace_id, span_id) AS streams, sum(excess_us) AS excess_us,
    sumMap(mapFilter((name, ns) -> ns > 0, charged)) AS parts,
    intDiv(sum(arraySum(ns -> least(ns, 0), mapValues(charged))), 1000) AS caught_up_us,
    sumMap(map(confidence, toUInt64(1))) AS confidences,
    sumMap(arrayMap(name -> (name, toUInt64(1)), missing)::Map(String, UInt64)) AS missing
FROM (SELECT *, parts AS charged FROM verdicts FINAL WHERE {_BLAMED})
GROUP BY cause
ORDER BY excess_us DESC
"""
# The number of stalls of 250 ms or more at the judged vantage, and how many of them have a verdict of any cause. Verdicts on a server's
# stalls were withdrawn, with the cause `base`, if its client's stream arrived later; they count no stall of the client.
_JUDGED = f"streams WHERE {_JUDGED_VANTAGE} AND outcome != 'running' AND {_WITHIN} AND {_FILTERS}"
# A server's stalls are judged at its client, so the verdicts have the client's service.
_JUDGED_ELSEWHERE = f"streams WHERE vantage != 'client' AND NOT {_JUDGED_VANTAGE} AND outcome != 'running' AND {_WITHIN} AND {_FILTERS}"
JUDGED_STALLS = f"""
SELECT
    (SELECT sum(stalls_250ms) FROM {_JUDGED}) AS stalls,
    (
        SELECT count()
        FROM verdicts FINAL
        WHERE gap_us >= {int(STALL_MS * 1000)} AND {_MATCHING}
            AND (tenant, trace_id, span_id) IN (SELECT tenant, trace_id, span_id FROM {_JUDGED} AND stalls_250ms > 0)
    ) AS judged,
    (SELECT sum(stalls_250ms) FROM {_JUDGED_ELSEWHERE}) AS elsewhere
"""
# One row per cause: the stalls that remain without it and their time, over the replayed streams. The row with the cause '' holds the same
# streams unchanged.
BUT_FOR = f"""
WITH
    newest AS
    (
        SELECT tenant, start_time, trace_id, span_id, max(judged_at) AS judged_at
        FROM verdicts FINAL
        WHERE {_BLAMED}
        GROUP BY tenant, start_time, trace_id, span_id
    ),
    replayed AS
    (
        SELECT * FROM replays FINAL
        WHERE {_BLAMED} AND (tenant, start_time, trace_id, span_id, judged_at) IN (SELECT * FROM newest)
    )
SELECT
    cause, count() AS streams, sum(stalls) AS stalls, sum(stalls_min) AS stalls_min, sum(stalls_max) AS stalls_max,
    sum(stalled_us) AS stalled_us, sum(stalled_min_us) AS stalled_min_us, sum(stalled_max_us) AS stalled_max_us
FROM replayed
GROUP BY cause
UNION ALL
SELECT '', count(), sum(stalls), sum(stalls), sum(stalls), sum(stalled_us), sum(stalled_us), sum(stalled_us)
FROM (SELECT any(stalls) AS stalls, any(stalled_us) AS stalled_us FROM replayed GROUP BY tenant, start_time, trace_id, span_id)
"""
# One row per engine event: the stalls of one request's prompt or preemption where the request is known, otherwise of one step.
ENGINE_EVENTS = f"""
WITH
    blamed AS
    (
        SELECT
            tenant, engine_id, cause, responses, if(empty(responses), culprit_at, toDateTime64(0, 9, 'UTC')) AS lone_step,
            min(culprit_at) AS at, groupUniqArray(culprit_at) AS moments, min(culprit_step) AS step,
            count() AS stalls, uniqExact(trace_id, span_id) AS streams, countIf(has(evidence, 'preempted_step')) AS own,
            sum(excess_us) AS excess_us, max(gap_us) AS gap_max_us
        FROM
        (
            -- Verdicts on one step may have been made at times at which fewer of its requests were known.
            SELECT
                *,
                argMax(culprit_responses, length(culprit_responses))
                    OVER (PARTITION BY tenant, engine_id, cause, culprit_at) AS responses
            FROM verdicts FINAL
            WHERE culprit_step IS NOT NULL AND {_BLAMED}
        )
        GROUP BY tenant, engine_id, cause, responses, lone_step
        ORDER BY excess_us DESC
        LIMIT {{limit:UInt32}}
    ),
    work AS
    (
        SELECT tenant, engine_id, recorded_at AS moment, prefill_tokens, decode_requests, decode_tokens
        FROM engine_steps FINAL
        WHERE {_SERVED} AND (tenant, engine_id, recorded_at) IN (SELECT tenant, engine_id, arrayJoin(moments) FROM blamed)
    )
SELECT
    engine_id, cause, responses, toString(at) AS happened, step, length(moments) AS steps, stalls, streams, own, excess_us, gap_max_us,
    prefill_tokens, recompute_tokens
FROM blamed
LEFT JOIN
(
    SELECT tenant, engine_id, cause, responses, lone_step, sum(work.prefill_tokens) AS prefill_tokens,
        sum(if(work.decode_tokens > work.decode_requests, work.decode_tokens - work.decode_requests, 0)) AS recompute_tokens
    FROM (SELECT tenant, engine_id, cause, responses, lone_step, arrayJoin(moments) AS moment FROM blamed) AS each
    INNER JOIN work USING (tenant, engine_id, moment)
    GROUP BY tenant, engine_id, cause, responses, lone_step
) AS sums USING (tenant, engine_id, cause, responses, lone_step)
ORDER BY excess_us DESC
"""

# Whether a stream is of the engine: by its request, or by its trace if a single engine served that (a client does not know the engine).
_OF_ENGINE = f"""({{engine:String}} = ''
            OR (tenant, response_id) IN
                (SELECT tenant, response_id FROM engine_requests WHERE {_SERVED} AND engine_id = {{engine:String}} AND response_id != '')
            OR (tenant, trace_id) IN
                (SELECT tenant, trace_id FROM stream_engines WHERE {_SERVED_DAY} AND engine_id = {{engine:String}}))"""
# The parts of the time to the first token. The client's time minus the server's is the network (without a client nothing is known of it);
# the engine's clock gives the queue time and the prefill time (first step included); the rest of the server's time is the front end.
# Streams without a response id are not split: nothing shows which request is theirs.
FIRST_TOKENS = f"""
WITH
    client AS
    (
        SELECT tenant, trace_id, response_id, ttft_us, ttft_us > first_output_limit_us AS is_late, first_output_limit_us
        FROM streams
        WHERE {_TTFT_VANTAGE} AND ttft_us IS NOT NULL AND {_WITHIN} AND {_FILTERS} AND {_OF_ENGINE}
    ),
    server AS
    (
        SELECT tenant, trace_id, response_id, any(ttft_us) AS sent_us
        FROM streams
        WHERE vantage = 'server' AND ttft_us IS NOT NULL AND response_id != ''
            AND (tenant, trace_id, response_id) IN (SELECT tenant, trace_id, response_id FROM client)
        GROUP BY tenant, trace_id, response_id
    ),
    request AS
    (
        SELECT tenant, response_id, any(queued_us) AS queue_us, any(prefill_us) AS prefill_us
        FROM engine_requests FINAL
        WHERE {_SERVED} AND response_id != '' AND (tenant, response_id) IN (SELECT tenant, response_id FROM client)
            AND ({{engine:String}} = '' OR engine_id = {{engine:String}})
        GROUP BY tenant, response_id
    ),
    split AS
    (
        SELECT
            toInt64(ttft_us) AS ttft, ttft - toInt64(sent_us) AS transit, toInt64(queue_us) AS queue, toInt64(prefill_us) AS prefill,
            toInt64(sent_us) - queue - prefill AS front_end, [transit, queue, prefill, front_end] AS parts,
            ['transit', 'queue', 'prefill', 'front_end'][indexOf(parts, arrayMax(parts))] AS most, is_late
        FROM client
        INNER JOIN server USING (tenant, trace_id, response_id)
        INNER JOIN request USING (tenant, response_id)
        WHERE front_end >= 0
    )
SELECT
    (SELECT count() FROM client) AS streams, (SELECT countIf(is_late) FROM client) AS late,
    (SELECT arraySort(groupUniqArray(first_output_limit_us)) FROM client) AS first_limits_us,
    count() AS split_streams, sum(ttft) AS ttft_us, sum(transit) AS transit_us, sum(queue) AS queue_us, sum(prefill) AS prefill_us,
    sum(front_end) AS front_end_us, sumMapIf(map(most, toUInt64(1)), is_late) AS late_by
FROM split
"""
