"""The SQL that the CLI asks: all of it, in one place.

One idea: what makes a stream good is one expression (``GOOD``), used wherever goodput is. It follows docs/concepts.md. Values are bound,
never written into the text; what is put in by name here are only our own constants.
"""

from __future__ import annotations

__all__ = ["FIND", "GOOD", "JUDGED", "REPORT", "STREAM", "STREAMS", "TOTALS"]

# NULL where the gaps are not known: such a stream is neither good nor bad. A cancel is judged like any other stream: its open gap is
# a gap, and a late start is a late start.
GOOD = """if(gaps IS NULL, NULL,
       outcome NOT IN ('upstream_error', 'timeout', 'abandoned', 'engine_abort')
       AND ifNull(gap_max_us, 0) <= 400000
       AND if(ttfo_us IS NULL AND outcome = 'client_cancel', duration_ns <= 2000000000, ifNull(ttfo_us, ttft_us) <= 2000000))"""

# Streams that a verdict can be given on: ended, with known gaps.
JUDGED = "outcome != 'running' AND gaps IS NOT NULL"

_WHERE = """start_time >= now64(9) - toIntervalSecond({since_s:UInt64}) AND outcome != 'running'
  AND ({model:String} = '' OR model = {model:String}) AND ({service:String} = '' OR service_name = {service:String})"""

# The p99 of p99s is an order statistic at rank ⌈0.99 n⌉, as the per-stream ones are.
_FIGURES = f"""
    count() AS streams,
    countIf(gaps IS NOT NULL) AS timed,
    sum(chunks) AS chunks_total,
    countIf({GOOD}) AS good,
    arrayElement(arraySort(groupArrayIf(gap_p99_us, gap_p99_us IS NOT NULL)),
                 toUInt64(ceil(0.99 * countIf(gap_p99_us IS NOT NULL)))) AS gap_p99_of_p99_us,
    countIf(gap_p99_us IS NOT NULL) AS gap_p99_n,
    max(gap_max_us) AS gap_worst_us,
    quantileExactIf(0.5)(jitter_ratio, jitter_ratio IS NOT NULL) AS jitter_ratio_p50,
    countIf(jitter_ratio IS NOT NULL) AS jitter_ratio_n,
    quantileExactIf(0.5)(ttft_us, ttft_us IS NOT NULL) AS ttft_p50_us,
    quantileExactIf(0.95)(ttft_us, ttft_us IS NOT NULL) AS ttft_p95_us,
    countIf(ttft_us IS NOT NULL) AS ttft_n,
    sum(stalls_250ms) AS stalls,
    sum(excess_250ms_us) AS stalls_excess_us,
    countIf(outcome = 'client_cancel') AS cancelled,
    countIf(outcome NOT IN ('complete', 'client_cancel')) AS failed"""

REPORT = f"""
SELECT vantage, service_name, model, {_FIGURES}
FROM streams WHERE {_WHERE}
GROUP BY vantage, service_name, model ORDER BY streams DESC, vantage, service_name, model"""

TOTALS = f"SELECT {_FIGURES} FROM streams WHERE {_WHERE} AND vantage = {{vantage:String}}"

_SUMMARY = f"""
    lower(hex(trace_id)) AS trace, lower(hex(span_id)) AS span, formatDateTime(start_time, '%F %T') AS started, service_name, model,
    vantage, outcome, chunks, gaps, ttft_us, gap_max_us, stalls_250ms, {GOOD} AS good"""

STREAMS = f"""
SELECT {_SUMMARY}
FROM streams
WHERE start_time >= now64(9) - toIntervalSecond({{since_s:UInt64}})
  AND ({{model:String}} = '' OR model = {{model:String}}) AND ({{service:String}} = '' OR service_name = {{service:String}})
  AND ({{outcome:String}} = '' OR outcome = {{outcome:String}}) AND ({{vantage:String}} = '' OR vantage = {{vantage:String}})
  AND ({{stalled:UInt8}} = 0 OR stalls_250ms > 0)
ORDER BY start_time DESC LIMIT {{limit:UInt32}}"""

# An id is a trace, a span, a response, or the beginning of a trace or span id.
FIND = """
SELECT DISTINCT lower(hex(trace_id)) AS trace, response_id
FROM streams
WHERE response_id = {id:String} OR startsWith(lower(hex(trace_id)), {hex:String}) OR startsWith(lower(hex(span_id)), {hex:String})
LIMIT 20"""

STREAM = f"""
SELECT {_SUMMARY},
    toUnixTimestamp64Nano(start_time) AS start_ns, duration_ns, rev, ended, response_id, finish_reason, error_type, route, transport,
    provider, emitter, engine_id, service_version, client_address, client_port, server_address, server_port, input_tokens, output_tokens,
    wire_bytes, otlp_bytes, clock, flags, ttfb_us, ttfo_us, gap_p50_us, gap_p95_us, gap_p99_us, gap_open_us, jitter_ratio,
    tokens_per_chunk, head_burst, tail_flush, burstiness, starved_4wps_us, content_bytes, excess_250ms_us, hold_max_us, chunks_dropped,
    dt_us, chunk_bytes, chunk_kind, chunk_hold_64us
FROM streams
WHERE trace_id = unhex({{trace:String}}) OR (response_id != '' AND response_id = {{response:String}})
ORDER BY start_time, indexOf(['screen', 'client', 'gateway', 'server', 'engine'], vantage), span"""
