"""`legato serve` is killed after it acknowledged spans and before it rolled them up. After a restart the 1-minute rollups are complete."""

from __future__ import annotations

import contextlib
import pathlib
import random
import time
from collections.abc import Iterator

import httpx
import pytest

from helpers.builders.spans import SECOND_NS, native_span, request, steady_timeline
from helpers.servers.serving import Served, legato, serve_process
from legato_ingest.cli.client import Reader

BODIES, SPANS = 12, 20
PATIENCE_S = 120
# The sums that panels show, and the same sums from the streams. The streams have ended, so their rows do not change any more.
BY_MINUTE = """
SELECT toUnixTimestamp(minute) AS at, model, sum(streams) AS streams, sum(good) AS good, sum(chunks) AS chunks
FROM stream_minutes FINAL GROUP BY at, model HAVING streams > 0 ORDER BY at, model
"""
BY_STREAM = """
SELECT toUnixTimestamp(toStartOfMinute(start_time)) AS at, model, count() AS streams, countIf(gap_max_us <= 1000 * {gap_ms}) AS good,
    sum(chunks) AS chunks
FROM streams GROUP BY at, model ORDER BY at, model
"""


def send(served: Served, seed: int) -> None:
    """Post request bodies and check that each is acknowledged. The gaps in their streams are 50 ms or 450 ms."""
    rng = random.Random(seed)
    for _ in range(BODIES):
        body = request()
        for _ in range(SPANS):
            start = time.time_ns() - rng.randrange(60, 3600) * SECOND_NS
            attributes = {
                "legato.stream.timeline": steady_timeline(8, rng.choice((50_000, 450_000))),
                "gen_ai.request.model": rng.choice("ab"),
            }
            native_span(body, attributes, start_ns=start, rng=rng)
        reply = httpx.post(f"{served.otlp}/v1/traces", content=body.SerializeToString(), headers={"Content-Type": "application/x-protobuf"})
        assert reply.status_code == 200 and not reply.content


def rows(served: Served, sql: str) -> list[tuple[object, ...]]:
    """The rows of a query at the read endpoint."""
    return [tuple(row.values()) for row in Reader(served.read).rows(sql)]


def rollups_match(served: Served, gap_ms: int = 400) -> bool:
    """Whether the 1-minute rollups equal the sums over the streams within 20 s."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if rows(served, BY_MINUTE) == rows(served, BY_STREAM.format(gap_ms=gap_ms)):
            return True
        time.sleep(0.05)
    return False


@contextlib.contextmanager
def killed(store: pathlib.Path, every_s: str) -> Iterator[Served]:
    """Run `legato serve` and end it with SIGKILL: no handler runs, nothing is flushed."""
    with serve_process(store, LEGATO_ROLLUP_EVERY_S=every_s) as served:
        yield served
        served.process.kill()
        served.process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A store of two killed processes: one never ran its rollup worker, the other ran it every 0.02 s. Both had acknowledged all spans."""
    path = tmp_path_factory.mktemp("rollup") / "store"
    for seed, every_s in enumerate(("3600", "0.02")):
        with killed(path, every_s) as served:
            send(served, seed)
    return path


def test_rollups_match_the_streams_after_kills(store: pathlib.Path) -> None:
    """Every acknowledged stream is counted once. A changed SLO applies to old minutes only after a command recomputed them."""
    with serve_process(store, LEGATO_ROLLUP_EVERY_S="0.05", LEGATO_SLO_GAP_MS="400") as served:
        assert rollups_match(served)
        ((streams, good),) = rows(served, "SELECT sum(streams), sum(good) FROM stream_minutes FINAL")
        assert streams == 2 * BODIES * SPANS and 0 < int(str(good)) < streams
    with serve_process(store, LEGATO_ROLLUP_EVERY_S="0.05", LEGATO_SLO_GAP_MS="500") as served:
        assert rollups_match(served, 400), "minutes that were computed before keep the old SLO"
        done = legato("objectives", "apply", environ=served.environ)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("1 objective unchanged; ") and " minutes computed, " in done.stdout
        assert rollups_match(served, 500)
        assert rows(served, "SELECT sum(good) FROM stream_minutes FINAL") == [(streams,)]
