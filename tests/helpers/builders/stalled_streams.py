"""Stalled streams for the export of verdicts: one with two stalls and all fields, and rows of judged streams in a store."""

from __future__ import annotations

from dataclasses import replace

from legato_ingest.storage import Store
from legato_ingest.storage.watermark import now_ms
from legato_ingest.trace_export.spans import Stall, StalledStream

__all__ = ["HOUR_MS", "STALL", "STREAM", "begin", "stored"]

HOUR_MS = 3_600_000
STALL = Stall(
    start_us=400_000,
    length_us=620_000,
    excess_us=600_000,
    error_us=7_000,
    cause="scheduling",
    confidence="strong",
    share=0.98765432,
    parts_ns={"scheduling": 590_000_000, "base": 20_000_000, "host": 10_000_000},
    engine_id="engine-1",
    missing=["server"],
    step_first=200,
    step_last=201,
    root_step=200,
)
STREAM = StalledStream(
    tenant="",
    part=0,
    received_ms=10**12 + 2_000,
    trace_id=b"t" * 16,
    span_id=b"s" * 8,
    parent_span_id=b"p" * 8,
    start_ns=10**18,
    duration_ns=2 * 10**9,
    vantage="client",
    service_name="shop",
    model="model-a",
    emitter="legato-python/0.1.0",
    count=2,
    length_us=920_000,
    longest_us=620_000,
    parts_ns={"host": 300_000_000, "scheduling": 590_000_000, "base": 40_000_000, "connection": -10_000_000},
    stalls=(STALL, replace(STALL, start_us=1_500_000, length_us=300_000, cause="host", step_first=None, step_last=None, root_step=None)),
)


def begin(store: Store, age_ms: int = HOUR_MS) -> None:
    """Make the exports begin so long ago."""
    store.command(f"INSERT INTO trace_export_runs (until, ran_at) VALUES (fromUnixTimestamp64Milli({now_ms() - age_ms}), now64(3))")


def stored(store: Store, streams: int, *, stalls: int = 1, received_ms: int, first: int = 0, tenant: str = "") -> None:
    """Store judged streams that were received in one ms, directly."""
    key = f"'{tenant}', toDateTime64('2026-01-01 00:00:00', 9, 'UTC') + number % 3, toFixedString(lower(hex(sipHash64(number))), 16)"
    key += ", toFixedString(leftPad(toString(number), 8, '0'), 8)"
    of = f"FROM numbers({first}, {streams})"
    received = f"fromUnixTimestamp64Milli({received_ms})"
    store.command(
        "INSERT INTO stream_revs (tenant, start_time, trace_id, span_id, rev, ended, duration_ns, outcome, received_at)"
        f" SELECT {key}, 1, 1, 5000000000, 'complete', {received} {of}"
    )
    store.command(
        "INSERT INTO verdicts (tenant, start_time, trace_id, span_id, gap_start_us, gap_us, cause, parts, judged_at)"
        f" SELECT {key}, each, 250000 + each, 'host', map('host', 1000 * (250000 + each)), {received}"
        f" {of} ARRAY JOIN range({stalls}) AS each"
    )
    store.command(f"INSERT INTO attribution_runs (until, ran_at) VALUES ({received}, now64(3))")
