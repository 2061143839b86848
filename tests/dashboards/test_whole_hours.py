"""Panels read complete hours from the 1-hour rollups and the rest from the 1-minute rollups, in every time zone of the store."""

from __future__ import annotations

import time
from itertools import product

from dashboards.sql_fragments import rolled
from helpers.servers.reading import stream, streams_in
from legato_ingest.dashboards.macros import Range, with_macros
from legato_ingest.metrics import Metrics
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import Store

DAY_S, HOUR_S, MINUTE_S = 86_400, 3_600, 60
ZONES = ("UTC", "Asia/Kolkata", "Asia/Kathmandu", "America/New_York")


def test_each_stream_counts_once(store: Store) -> None:
    """A server in India has hours that begin half an hour after those of the rollups, which are hours of UTC."""
    day_s = int(time.time()) // DAY_S * DAY_S - DAY_S
    began_min = {45: 3, 130: 2, 220: 5}
    for minute, number in began_min.items():
        starts = (1_000_000_000 * (day_s + MINUTE_S * minute + second) for second in range(number))
        streams_in(store, [stream(start_ns=start_ns, trace_id=bytes([minute, each + 1]) * 8) for each, start_ns in enumerate(starts)])
    RollupWorker(store, load(retention_days=0), Metrics()).again(0)
    for first_min, last_min in ((10, 142), (120, 242), (0, 300), (31, 59), (45, 220)):
        span = Range(1000 * (day_s + MINUTE_S * first_min), 1000 * (day_s + MINUTE_S * last_min), 1000 * HOUR_S)
        expected = sum(number for minute, number in began_min.items() if first_min <= minute < last_min)
        for zone, is_series in product(ZONES, (False, True)):
            sql = with_macros(f"SELECT sum(streams) {rolled('stream', 'streams', series=is_series, only='1')}", span)
            assert store.select(f"{sql} SETTINGS session_timezone = '{zone}'") == [(expected,)], (first_min, zone, is_series)
