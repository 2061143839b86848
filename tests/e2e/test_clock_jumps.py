"""`legato serve` while the clock of its host jumps: every stream is stored, rolled up and judged once.

The clock of Python in the processes of `legato serve` is moved; the engine's stays, which only views and expiry use.
"""

from __future__ import annotations

import pathlib
import struct
import time
from functools import partial

import httpx

from helpers.builders.spans import SECOND_NS, native_span, request
from helpers.servers.serving import Served, serve_process
from helpers.servers.waiting import until
from legato._timeline import pack
from legato_ingest.cli.client import Reader

STREAMS = 20
TIMES_US = [400_000 + 25_000 * number + 2_000_000 * (number > 10) for number in range(20)]
TIMELINE = pack(TIMES_US, [4] * 20, None, [1] * 20)
# Imported by each process at its start: a thread of Python reads the seconds by which the clock is moved.
MOVED = """
import mmap, struct, time
with open({path!r}, "r+b") as file:
    seconds = mmap.mmap(file.fileno(), 8)
def moved(clock, per_second):
    return lambda: clock() + struct.unpack("<q", seconds)[0] * per_second
time.time, time.time_ns = moved(time.time, 1), moved(time.time_ns, 1_000_000_000)
"""
# Seconds by which the clock is moved, of two runs of `legato serve`.
MOVED_S = ((3_600, -3_600), (-3_600,))
NOT_JUDGED = """
SELECT count() AS n FROM streams WHERE gap_max_us > 1000000 AND (trace_id, span_id) NOT IN (SELECT trace_id, span_id FROM verdicts)"""
ROLLED_UP = "SELECT sum(streams) AS n FROM stream_minutes FINAL"
STORED = "SELECT count() AS n FROM stream_revs"


def post(served: Served) -> None:
    """Send streams, each with a stall of two seconds, by the right time, and check that they are acknowledged."""
    body, start = request(), time.time_ns() - 60 * SECOND_NS
    for _ in range(STREAMS):
        native_span(body, {"legato.stream.timeline": TIMELINE}, start_ns=start, duration_ns=20 * SECOND_NS)
    reply = httpx.post(f"{served.otlp}/v1/traces", content=body.SerializeToString(), headers={"Content-Type": "application/x-protobuf"})
    assert reply.status_code == 200 and not reply.content


def number(served: Served, sql: str) -> int:
    """Return the number that a query has found."""
    (row,) = Reader(served.read).rows(sql)
    return int(row["n"])


def is_number(served: Served, sql: str, expected: int) -> bool:
    """Return whether a query finds this number."""
    return number(served, sql) == expected


def test_streams_are_stored_and_judged_once_whatever_the_clock_does(tmp_path: pathlib.Path) -> None:
    """Also over a restart while the clock is an hour behind."""
    clock, modules, store = tmp_path / "clock", tmp_path / "modules", tmp_path / "store"
    clock.write_bytes(bytes(8))
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(MOVED.format(path=str(clock)), encoding="ascii")
    expected = 0
    for jumps in MOVED_S:
        with serve_process(store, PYTHONPATH=str(modules), LEGATO_ROLLUP_EVERY_S="0.2") as served:
            for seconds in jumps:
                with clock.open("r+b") as file:
                    file.write(struct.pack("<q", seconds))
                post(served)
                expected += STREAMS
                assert number(served, STORED) == expected
                until(partial(is_number, served, ROLLED_UP, expected))
                until(partial(is_number, served, NOT_JUDGED, 0))
