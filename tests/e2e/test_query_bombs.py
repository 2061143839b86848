"""Hostile queries against `legato serve`: they end within their limits, and no sender notices."""

from __future__ import annotations

import itertools
import pathlib
import threading
import time

import httpx
import pytest

from bench.common.bystander import Sender
from bench.crash_pipelines.serve import bearer, store_pid
from bench.query_attack.grammar import statements
from bench.query_bombs import corpus
from helpers.servers.serving import Served, serve_process
from helpers.servers.waiting import until
from legato_ingest.auth.tokens import READ, add
from legato_ingest.query.sql_functions import allows
from legato_ingest.storage.process_memory import anonymous_bytes

LIMITS = {"LEGATO_QUERY_SECONDS_MAX": "1", "LEGATO_QUERY_MEMORY_BYTES_MAX": str(2**28)}
# The engine interrupts the first, refuses the memory of the second at once, and does neither with the last.
BOMBS = {
    "SELECT count() FROM numbers(100000000000) WHERE cityHash64(number) = 1": "159",
    "SELECT arraySum(range(number + 100000000)) FROM numbers(1)": "241",
    "SELECT hasAny(arrayMap(i -> cityHash64(i), range(200000)), range(300000))": "159",
}
# Functions with which one statement took gigabytes or minutes in ClickHouse 26.9, in the order in which they were found.
WITHOUT_BOUNDS = (
    "arrayLevenshteinDistance arrayLevenshteinDistanceWeighted JSON_VALUE JSON_QUERY arraySimilarity hierarchicalKMeans mannWhitneyUTest "
    "estimateCompressionRatio printf formatRow toDecimalString ngrams sparseGrams arrayShingles URLHierarchy arrayFold timeSlots "
    "countSubstringsCaseInsensitiveUTF8 cutURLParameter multiMatchAllIndices multiMatchAnyIndex multiSearchAny editDistance"
)


def ask(served: Served, sql: str, token: str = "") -> httpx.Response:
    """Send a statement as a reader does, perhaps with a token."""
    return httpx.post(served.read, content=sql.encode(), headers=bearer(token), timeout=60)


def restarts(served: Served) -> float:
    """Return how often the process of the store was started again."""
    lines = httpx.get(f"{served.otlp}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("legato_store_restarts_total{"))


def test_functions_without_bounds_are_refused() -> None:
    """None of them is on the list, with any combinator of an aggregate."""
    names = WITHOUT_BOUNDS.split()
    assert [name for name in names if allows(name) or allows(f"{name}If") or allows(f"{name}State")] == []
    assert len(corpus()) > 150


def test_queries_beyond_their_limits_end_and_no_sender_notices(tmp_path: pathlib.Path) -> None:
    """Each gets ClickHouse's code for its limit, a statement that repeats it is refused, and all acknowledged streams are stored."""
    with serve_process(tmp_path / "store", **LIMITS) as served:
        sender = Sender(f"{served.otlp}/v1/traces")
        thread = threading.Thread(target=sender.run)
        thread.start()
        try:
            until(lambda: sender.sent)
            replies = {sql: ask(served, sql) for sql in BOMBS}
            assert {sql: reply.headers["X-ClickHouse-Exception-Code"] for sql, reply in replies.items()} == BOMBS
            assert restarts(served) == 1
            again = [ask(served, list(BOMBS)[-1]).headers["X-ClickHouse-Exception-Code"] for _ in range(3)]
            assert again == ["159", "392", "392"] and restarts(served) == 2
        finally:
            sender.stop.set()
            thread.join()
        assert sender.failures == 0 and sender.sent > 10
        assert int(ask(served, "SELECT count() FROM streams WHERE service_name = 'honest'").text) == sender.sent


@pytest.mark.long
def test_no_statement_of_the_allowed_functions_escapes_its_limits(tmp_path: pathlib.Path) -> None:
    """Five minutes of random statements: each is answered within seconds, in bounded memory. Many tenants take turns, because a tenant with
    several statements that end the process of the store is refused all."""
    path = tmp_path / "tokens.json"
    tokens = [add(path, f"reader-{number}", f"tenant-{number}", READ) for number in range(50)]
    with serve_process(tmp_path / "store", LEGATO_TOKENS_FILE=str(path), **LIMITS) as served:
        rest, readers = anonymous_bytes(store_pid(served.process.pid)) or 0, itertools.cycle(tokens)
        names = {name.lower(): name for name in ask(served, "SELECT name FROM system.functions", tokens[0]).text.split()}
        until_s = time.monotonic() + 300
        for sql in itertools.takewhile(lambda _: time.monotonic() < until_s, statements(names, seed=time.time_ns())):
            started = time.monotonic()
            reply = ask(served, sql, next(readers))
            memory = anonymous_bytes(store_pid(served.process.pid)) or 0
            assert reply.status_code in (200, 400, 403, 404, 500, 503) and time.monotonic() - started < 20, sql
            assert memory - rest < 2**30, sql
