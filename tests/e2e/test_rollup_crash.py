"""`legato serve` is killed between what it acknowledged and its minutes, again and again: after the last start the minutes are true."""

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
PATIENCE_S = 20
# What panels would add up, and the same from the streams; a stream that is over changes no more.
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
    """Post bodies, all of which are acknowledged. The gaps in their streams are of 50 or of 450 ms."""
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
    """The rows of a query through the read door."""
    return [tuple(row.values()) for row in Reader(served.read).rows(sql)]


def settled(served: Served, gap_ms: int = 400) -> bool:
    """Whether the minutes say what the streams do, within some seconds."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if rows(served, BY_MINUTE) == rows(served, BY_STREAM.format(gap_ms=gap_ms)):
            return True
        time.sleep(0.05)
    return False


@contextlib.contextmanager
def killed(store: pathlib.Path, every_s: str) -> Iterator[Served]:
    """`legato serve` that ends by SIGKILL: no handler runs, nothing is flushed."""
    with serve_process(store, LEGATO_ROLLUP_EVERY_S=every_s) as served:
        yield served
        served.process.kill()
        served.process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A store whose processes were killed right after they had acknowledged: one that never computed a minute, one that always did."""
    path = tmp_path_factory.mktemp("rollup") / "store"
    for seed, every_s in enumerate(("3600", "0.02")):
        with killed(path, every_s) as served:
            send(served, seed)
    return path


def test_after_kills_the_minutes_are_those_of_the_streams(store: pathlib.Path) -> None:
    """Everything acknowledged is in them, once; a change of the SLO is when `legato rollup` has been through the admin door."""
    with serve_process(store, LEGATO_ROLLUP_EVERY_S="0.05", LEGATO_SLO_GAP_MS="400") as served:
        assert settled(served)
        ((streams, good),) = rows(served, "SELECT sum(streams), sum(good) FROM stream_minutes FINAL")
        assert streams == 2 * BODIES * SPANS and 0 < int(str(good)) < streams
    with serve_process(store, LEGATO_ROLLUP_EVERY_S="0.05", LEGATO_SLO_GAP_MS="500") as served:
        assert settled(served, 400), "what was computed stays"
        done = legato("rollup", "--since", "all", environ=served.environ)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[1:3] == ["minutes", "computed,"]
        assert settled(served, 500)
        assert rows(served, "SELECT sum(good) FROM stream_minutes FINAL") == [(streams,)]
