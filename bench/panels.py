"""Query times of the dashboards on a large store: every panel of every dashboard, over an hour, a day and thirty days.

    python bench/panels.py --streams 10000000

The store is filled with a tenth of the streams and measured, then filled with the rest and measured again. Streams are drawn from a
thousand timelines per recording: windows of 120 to 280 chunks of a recorded stream with randomly scaled gaps, stored by ingest's own code,
then copied with ids, times (evenly over thirty days), services (twelve, with two models each, at two vantages) and releases. 90 % come
from the recording `calm`, 6 % from `net`, 4 % from `kv`; each stalled client stream has a verdict and a counterfactual. Rollups of engines
are generated, node samples of four nodes (51.8 million with one a second), and engine steps for the last two hours. Panels are queried as
by Grafana: their committed SQL through the read endpoint of `legato serve`, one after another.

The same run queries "p99 gap by model, last hour" from Legato's rollup, from its timelines, and from the Collector exporter's
`otel_traces`, which holds the streams of that hour with one span event per chunk. Last line: JSON with `p95_ms` (the slowest panel, of
five runs after a first), `p95_of_all_ms` (over the runs of all panels), `cold_ms` (the slowest first run), `growth_1m_10m` (compared with a
tenth of the streams), `bytes_per_chunk`, `n_streams`, `n_chunks`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import httpx

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from bench.common.machine import describe, quantile  # noqa: E402
from bench.common.ranges import until_now  # noqa: E402
from bench.common.store_fill import fill  # noqa: E402
from dashboards.sql_fragments import gap_quantile  # noqa: E402
from helpers.servers.serving import serve_process  # noqa: E402
from legato_ingest.dashboards.files import load, queries  # noqa: E402
from legato_ingest.dashboards.macros import Range, with_macros  # noqa: E402

RANGES_S = {"1 h": 3_600, "24 h": 86_400, "30 d": 30 * 86_400}
RUNS = 5
OURS = f"""
SELECT model, {gap_quantile(0.99, "buckets")} / 1e6
FROM
(
    SELECT model, sumMap(gap_buckets) AS buckets
    FROM stream_minutes FINAL
    WHERE minute > now() - INTERVAL 1 HOUR AND vantage = 'client'
    GROUP BY model
)
ORDER BY model"""
# Of the timelines themselves, as exactly as the span events.
EXACT = """
SELECT model, quantileExact(0.99)(gap) / 1e6
FROM
(
    WITH arrayFilter((at, kind) -> kind IN (1, 2, 3), arrayMap(at -> toInt64(at), arrayCumSum(dt_us)), chunk_kind) AS reads
    SELECT model, arrayJoin(arrayPopFront(arrayDifference(reads))) AS gap
    FROM streams
    WHERE start_time > now() - INTERVAL 1 HOUR AND vantage = 'client'
)
GROUP BY model
ORDER BY model"""
SPAN_EVENTS = """
SELECT SpanAttributes['gen_ai.request.model'] AS model, quantileExact(0.99)(gap) / 1e9
FROM
(
    SELECT SpanAttributes, arrayJoin(arrayPopFront(arrayDifference(arrayMap(at -> toUnixTimestamp64Nano(at), Events.Timestamp)))) AS gap
    FROM otel_traces
    WHERE Timestamp > now() - INTERVAL 1 HOUR AND SpanAttributes['stream.vantage'] = 'client'
)
GROUP BY model
ORDER BY model"""


def panels(stream: str, span: Range) -> Iterator[tuple[str, str]]:
    """Each panel's name and SQL over a range, with its dashboard's own defaults, and this stream."""
    for board in load(ROOT / "dashboards"):
        for variable in board["templating"].get("list", []):
            if variable["name"] == "stream":
                variable["current"]["value"] = stream
        for question in queries(board):
            if question.kind == "panel":
                yield f"{board['title']}: {question.name}", with_macros(question.target["rawSql"], span)


# As of Grafana: kept alive. A new client for each question takes 19 ms, which are Python's.
_CLIENT = httpx.Client(timeout=120)


def timed(read: str, sql: str) -> float:
    """Milliseconds of a question. Raises ``SystemExit`` when it is not answered."""
    started = time.perf_counter()
    reply = _CLIENT.post(f"{read}/?default_format=Native", content=sql)
    took = (time.perf_counter() - started) * 1000
    if reply.status_code != 200:
        raise SystemExit(f"a panel was not answered: {reply.text[:500]}\n{sql[:2000]}")
    return took


def measure(store: pathlib.Path) -> dict[str, Any]:
    """Measure all panels over all ranges on this store, with a separate `legato serve`."""
    # Rollups rest, because after a recomputation of all minutes they compute all hours again.
    quiet = {"LEGATO_CHUNKING_EVERY_S": "1000000", "LEGATO_ROLLUP_EVERY_S": "1000000", "LEGATO_RETENTION_DAYS": "0"}
    with serve_process(store, **quiet) as served:

        def one(sql: str) -> list[Any]:
            return list(json.loads(_CLIENT.post(f"{served.read}/?default_format=JSONCompact", content=sql).text)["data"])

        ((stream,),) = one("SELECT lower(hex(any(trace_id))) FROM verdicts WHERE start_time > now() - INTERVAL 90 MINUTE")
        ((size, chunks, streams),) = one(
            "SELECT (SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND table = 'stream_revs'),"
            " sum(chunks), sum(streams) FROM stream_minutes FINAL"
        )
        found: dict[str, list[float]] = {}
        cold: list[tuple[float, str]] = []
        for words, length_s in RANGES_S.items():
            for name, sql in panels(stream, until_now(length_s)):
                # The first query of a kind after a start reads indexes from disk: reported separately.
                cold.append((timed(served.read, sql), f"{name}, {words}"))
                found[f"{name}, {words}"] = [timed(served.read, sql) for _ in range(RUNS)]
        asked = {"ours": OURS, "exact": EXACT, "span_events": SPAN_EVENTS}
        questions = {name: [timed(served.read, sql) for _ in range(RUNS)] for name, sql in asked.items()}
    slowest = sorted(((quantile(times, 0.95), name) for name, times in found.items()), reverse=True)
    for took, name in slowest[:12]:
        print(f"  {took:7.0f} ms  {name}")
    return {
        "p95_ms": slowest[0][0],
        "p95_of_all_ms": quantile([took for times in found.values() for took in times], 0.95),
        "slowest": slowest[0][1],
        "cold_ms": max(cold)[0],
        "panels": len(found),
        "bytes_per_chunk": int(size) / int(chunks),
        "n_streams": int(streams),
        "n_chunks": int(chunks),
        **{f"p99_by_model_{name}_ms": quantile(times, 0.5) for name, times in questions.items()},
    }


def main() -> None:
    """Fill, measure, fill up, measure again."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--streams", type=int, default=10_000_000, help="how many in the end; a tenth of them first")
    options.add_argument(
        "--store", type=pathlib.Path, help="keep the store in this folder; one that was filled before is measured as it is"
    )
    options.add_argument("--fill", nargs=3, metavar=("STORE", "FIRST", "LAST"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.fill:
        fill(pathlib.Path(given.fill[0]), int(given.fill[1]), int(given.fill[2]), given.streams, random.Random(7))
        return
    print(describe("chdb", "clickhouse-connect", "numpy", "pyarrow"))
    results = []
    with contextlib.ExitStack() as stack:
        folder = given.store or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        store, first, filled = folder / "store", 0, folder / "filled"
        for last in (given.streams // 10, given.streams):
            started, have = time.monotonic(), int(filled.read_text()) if filled.exists() else 0
            if have > last:
                # Filled up before: a tenth of it cannot be measured any more.
                continue
            if have < last:
                words = [sys.executable, __file__, "--streams", str(given.streams), "--fill", str(store), str(first), str(last)]
                subprocess.run(words, check=True)
                filled.write_text(str(last))
            took_s = time.monotonic() - started
            print(f"{last:,} streams filled and rolled up in {took_s:.0f} s; the slowest panels, {RUNS} runs each:", flush=True)
            results.append(measure(store))
            first = last
    large, growth = results[-1], {}
    if len(results) == 2:
        growth = {"growth_1m_10m": large["p95_ms"] / results[0]["p95_ms"], "p95_ms_at_a_tenth": results[0]["p95_ms"]}
    print(json.dumps({**large, **growth, "runs": RUNS}))


if __name__ == "__main__":
    main()
