"""Throughput of `legato serve` for packed timelines and metrics, its peak memory, and the latency of its acknowledgements.

    python bench/ingest.py [--streams 60000] [--chunks 200] [--points 200000] [--core 0]

The bench runs the command `legato serve` with an embedded store in a new folder and sends to it over HTTP. The server is pinned to one
core, the sender to the others. Phase 1 sends as fast as requests are acknowledged: bodies of 500 streams, eight requests at a time. It ends
when all rows are in the store. Phase 2 sends single streams at 50 per second while the heaviest report query runs continuously, and times
each acknowledgement. Phase 3 sends metrics: bodies of four scrapes of 500 series (gauges, sums, histograms with 19 buckets; 11
attributes per row), and then all of them again.
Last line: one JSON object with `chunks_per_s_packed`, `peak_rss_mb`, `ack_p99_ms`, `points_per_s`, `points_per_s_again`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import sys
import tempfile
import threading
import time

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from bench.common.machine import describe, median, quantile  # noqa: E402
from helpers.builders.points import gauge, histogram, metrics_request, total  # noqa: E402
from helpers.builders.spans import native_span, request  # noqa: E402
from helpers.servers.serving import Served, serve_process  # noqa: E402
from legato._timeline import pack  # noqa: E402

STREAMS_A_BODY = 500
SENDERS = 8
SCRAPES_A_BODY = 4
METRICS, SERIES_A_METRIC = 50, 10
HEAVY = """
SELECT model, count(), quantileExact(0.99)(gap_p99_us), quantileExact(0.99)(gap_max_us), avg(jitter_ratio),
       sumMap(gap_bucket, gap_bucket_count), countIf(gap_max_us <= 400000) / count()
FROM streams GROUP BY model FORMAT JSON
"""


def timelines(chunks: int, rng: random.Random, count: int = 400) -> list[tuple[int, bytes]]:
    """Return random timelines as engines make them: 25 ms per step with stalls in 2 % of steps; holds are log-normal around 200 µs."""
    out = []
    for _ in range(count):
        time_us, times = rng.randrange(100_000, 900_000), []
        for _ in range(chunks):
            time_us += 200_000 if rng.random() < 0.02 else max(0, int(rng.gauss(25_000, 3_000)))
            times.append(time_us)
        sizes = [0, *(rng.randint(1, 9) for _ in range(chunks - 2)), 0]
        holds = [int(rng.lognormvariate(5.3, 1.98)) // 64 for _ in range(chunks)]
        out.append((time_us, pack(times, sizes, None, [0, *[1] * (chunks - 2), 7], holds)))
    return out


def body(streams: int, pool: list[tuple[int, bytes]], rng: random.Random) -> bytes:
    """Return a request of this many streams with different ids, which started within the last 70 s."""
    out: ExportTraceServiceRequest = request({"service.name": "bench"})
    for _ in range(streams):
        duration_us, timeline = rng.choice(pool)
        attributes = {
            "gen_ai.client.operation.time_to_first_chunk": 0.4,
            "gen_ai.response.time_to_first_chunk": 0.4,
            "gen_ai.server.ttft": 0.4,
            "langfuse.observation.completion_start_time": "2026-11-21T00:00:00.000000Z",
            "legato.stream.timeline": timeline,
            "legato.stream.gap_max": 0.2,
            "legato.stream.stalls": 0,
            "client.address": "127.0.0.1",
            "client.port": 40_000 + rng.randrange(20_000),
            "server.address": "127.0.0.1",
            "server.port": 8_000,
        }
        start = time.time_ns() - 70_000_000_000 + rng.randrange(60_000_000_000)
        native_span(out, attributes, start_ns=start, duration_ns=duration_us * 1000 + 5_000, rng=rng)
    content: bytes = out.SerializeToString()
    return content


def rss_peak_mb(served: Served) -> float:
    """Return the peak memory of the server in MiB, from the kernel's high-water mark."""
    status = pathlib.Path(f"/proc/{served.process.pid}/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def query(served: Served, sql: str) -> bytes:
    """Run a query at the read endpoint and return its result."""
    reply = httpx.post(served.read, content=sql, timeout=60)
    reply.raise_for_status()
    return reply.content


def scrapes(count: int, rng: random.Random) -> list[bytes]:
    """Return bodies with this many points in total, of one engine with one scrape per second."""
    resource = {"legato.engine.id": "node-1:8000", "host.name": "node-1", **{f"k8s.label.{i}": f"some-value-{i}" for i in range(6)}}
    bounds, out, now = [0.01 * (i + 1) for i in range(18)], list[bytes](), time.time_ns()
    for number in range(count // (SCRAPES_A_BODY * METRICS * SERIES_A_METRIC)):
        body = metrics_request(resource)
        for scrape in range(SCRAPES_A_BODY):
            at = now - (number * SCRAPES_A_BODY + scrape) * 1_000_000_000
            for metric, series in ((i, j) for i in range(METRICS) for j in range(SERIES_A_METRIC)):
                labels = {"model_name": "Qwen/Qwen2", "engine": "0", "n": str(series)}
                if metric % 10 == 9:
                    histogram(body, f"vllm:histogram_{metric}", bounds, [10] * 19, at, attributes=labels)
                elif metric % 2:
                    total(body, f"vllm:total_{metric}", rng.random(), at, attributes=labels, start_time_unix_nano=now - 10**15)
                else:
                    gauge(body, f"vllm:gauge_{metric}", rng.randrange(10**6), at, attributes=labels)
        out.append(body.SerializeToString())
    return out


def send(client: httpx.Client, url: str, content: bytes) -> float:
    """Send a body until it is acknowledged, and return the seconds."""
    started = time.perf_counter()
    while True:
        reply = client.post(url, content=content, headers={"Content-Type": "application/x-protobuf"})
        if reply.status_code == 200:
            return time.perf_counter() - started
        if reply.status_code not in (429, 503):
            raise SystemExit(f"{reply.status_code}: {reply.content[:200]!r}")
        time.sleep(0.05)


def feed(served: Served, bodies: list[bytes], path: str = "/v1/traces") -> float:
    """Send all bodies and return the seconds from the first request until all rows are in the store."""
    url = f"{served.otlp}{path}"
    with httpx.Client(timeout=120) as client, concurrent.futures.ThreadPoolExecutor(SENDERS) as pool:
        started = time.perf_counter()
        for done in [pool.submit(send, client, url, content) for content in bodies]:
            done.result()
        # A query waits for the insert of what was acknowledged before it.
        query(served, "SELECT 1")
        return time.perf_counter() - started


def acknowledge(served: Served, singles: list[bytes], pace_s: float) -> tuple[list[float], int]:
    """Send bodies at an even pace during heavy queries. Returns the seconds of each acknowledgement and the number of queries."""
    url, stop, ran = f"{served.otlp}/v1/traces", threading.Event(), [0]

    def run_queries() -> None:
        while not stop.is_set():
            query(served, HEAVY)
            ran[0] += 1

    querying = threading.Thread(target=run_queries)
    querying.start()
    with httpx.Client(timeout=120) as client, concurrent.futures.ThreadPoolExecutor(16) as pool:
        waiting = []
        for i, content in enumerate(singles):
            due = time.perf_counter() + pace_s
            waiting.append(pool.submit(send, client, url, content))
            time.sleep(max(0.0, due - time.perf_counter()) if i + 1 < len(singles) else 0)
        seconds = [done.result() for done in waiting]
    stop.set()
    querying.join()
    return seconds, ran[0]


def main() -> None:
    """Run all phases and print the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--streams", type=int, default=60_000)
    options.add_argument("--chunks", type=int, default=200)
    options.add_argument("--points", type=int, default=200_000)
    options.add_argument("--core", type=int, default=0)
    options.add_argument("--singles", type=int, default=1_500)
    given = options.parse_args()
    others = os.sched_getaffinity(0) - {given.core}
    os.sched_setaffinity(0, others or {given.core})
    rng = random.Random(1)
    pool = timelines(given.chunks, rng)
    bodies = [body(STREAMS_A_BODY, pool, rng) for _ in range(given.streams // STREAMS_A_BODY)]
    warm = [body(STREAMS_A_BODY, pool, rng) for _ in range(8)]
    pinned = ("taskset", "-c", str(given.core))
    with tempfile.TemporaryDirectory() as folder, serve_process(pathlib.Path(folder) / "store", prefix=pinned) as served:
        feed(served, warm)
        seconds = feed(served, bodies)
        singles = [body(1, pool, rng) for _ in range(given.singles)]
        acks, ran = acknowledge(served, singles, 0.02)
        rss = rss_peak_mb(served)
        stored = int(query(served, "SELECT count() FROM streams FORMAT TSV"))
        metrics_bodies = scrapes(given.points, rng)
        fresh, again = (feed(served, metrics_bodies, "/v1/metrics") for _ in range(2))
        # Without the server's self-monitoring.
        points = int(query(served, "SELECT count() FROM node_samples WHERE NOT startsWith(metric, 'legato_') FORMAT TSV"))
    sent = STREAMS_A_BODY * (len(bodies) + len(warm)) + len(singles)
    if stored != sent:
        raise SystemExit(f"{sent} streams were acknowledged, but {stored} are stored")
    if points != len(metrics_bodies) * SCRAPES_A_BODY * METRICS * SERIES_A_METRIC:
        raise SystemExit(f"{points} points are stored after {len(metrics_bodies)} bodies were acknowledged twice")
    chunks = STREAMS_A_BODY * len(bodies) * given.chunks
    size = sum(map(len, bodies)) / chunks
    print(describe("chdb", "numpy", "pyarrow", "protobuf"))
    print(f"{chunks:,} chunks in {len(bodies)} requests ({size:.2f} B per chunk): {seconds:.1f} s, server on one core")
    print(f"{len(acks):,} single streams at 50 per second during {ran} report queries: median {1000 * median(acks):.0f} ms")
    figures = {
        "chunks_per_s_packed": round(chunks / seconds),
        "peak_rss_mb": round(rss),
        "ack_p50_ms": round(1000 * median(acks), 1),
        "ack_p99_ms": round(1000 * quantile(acks, 0.99), 1),
        "n_chunks": chunks,
        "n_acks": len(acks),
        "points_per_s": round(points / fresh),
        "points_per_s_again": round(points / again),
        "n_points": points,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
