"""The embedded store: a failed query affects no later one, and readers can neither write nor lift their limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Queue

import pytest

from helpers.servers.waiting import until
from legato_ingest.errors import LegatoError, StoreError, StoreRefused, StoreUnavailable
from legato_ingest.storage import Store

# How much output a failed query leaves behind is random, so each test tries several times.
TRIES = 8
FAILING = "SELECT throwIf(number = 1000000), number FROM numbers(2000000)"


def test_a_failed_read_does_not_affect_the_next_of_the_writer(store: Store) -> None:
    """Deduplication depends on this: a wrong result of its lookup would store a row twice or lose one."""
    answers = []
    for _ in range(TRIES):
        with pytest.raises(StoreRefused):
            store.select(FAILING)
        try:
            answers.append(store.select("SELECT 7, 8"))
        except LegatoError as error:
            answers.append([(str(error),)])
        store.select("SELECT 'settled'")
    assert answers == [[(7, 8)]] * TRIES


def test_a_failed_query_does_not_affect_the_next_of_a_reader(store: Store) -> None:
    """A query returns no rows of the query before it."""
    store.query_bytes("SELECT 1")
    answers = []
    for _ in range(TRIES):
        with pytest.raises(StoreRefused):
            store.query_bytes("SELECT number FROM numbers(200000)")
        answers.append(store.query_bytes("SELECT 1")[-9:])
        store.query_bytes("SELECT 'settled'")
    assert answers == [b"1\n"] * TRIES


def test_a_reader_cannot_write(store: Store) -> None:
    """A reading client stays read-only, and no statement can change that."""
    for sql in ("CREATE TABLE x (a UInt8) ENGINE = Memory", "TRUNCATE TABLE rejected", "SET readonly = 0", "SET max_memory_usage = 0"):
        with pytest.raises(StoreRefused):
            store.query_bytes(sql)
    assert store.query_bytes("SELECT value FROM system.settings WHERE name = 'readonly'") == b"1\n"


def test_a_reader_keeps_its_limits(store: Store) -> None:
    """Every reading client has the limits that the store was opened with; the writing client has none."""
    sql = "SELECT value FROM system.settings WHERE name = 'max_result_rows'"
    assert store.query_bytes(sql) == b"100000\n"
    assert store.select(sql) == [("0",)]


def test_the_end_of_reads_cancels_no_statement_of_legatos_own(store: Store) -> None:
    """A worker that is in the middle of its run ends it. What is cancelled may succeed later, so no row is blamed for it."""
    statement = "SELECT count() FROM numbers(1000000000000) WHERE sipHash64(number) = {}"
    ended, reading, working = Queue[tuple[str, type, int]](), store.clone(), store.clone()

    def run(who: str, call: Callable[[str], object], number: int) -> None:
        try:
            call(statement.format(number))
        except StoreError as error:
            ended.put((who, type(error), error.code))

    threads = [threading.Thread(target=run, args=each) for each in (("reader", reading.query_bytes, 1), ("worker", working.select, 2))]
    for thread in threads:
        thread.start()
    running = "SELECT count() FROM system.processes WHERE query LIKE '%sipHash64(number) = %' AND query NOT LIKE '%processes%'"
    try:
        until(lambda: store.select(running) == [(2,)])
        store.clone().end_reads()
        assert ended.get(timeout=30) == ("reader", StoreUnavailable, 394) and store.select(running) == [(1,)]
    finally:
        store.command("KILL QUERY WHERE query LIKE '%sipHash64(number) = %' ASYNC")
        for thread in threads:
            thread.join()
        reading.close()
        working.close()
    assert ended.get(timeout=30) == ("worker", StoreUnavailable, 394)


def test_a_mutation_of_many_parts_ends_within_seconds(store: Store) -> None:
    """The engine mutates four parts at once and pauses before the next four. With a first pause of 10 s an upgrade took minutes."""
    store.command("CREATE TABLE parted (k UInt64, part UInt8) ENGINE = MergeTree ORDER BY k PARTITION BY part")
    try:
        store.command("INSERT INTO parted SELECT number, number % 12 FROM numbers(1200)")
        before_s = time.monotonic()
        store.command("ALTER TABLE parted DELETE WHERE k < 600 SETTINGS mutations_sync = 1")
        assert time.monotonic() - before_s < 12
        assert store.select("SELECT count(), min(k) FROM parted") == [(600, 600)]
    finally:
        store.command("DROP TABLE parted")
