"""The embedded store: a failed query affects no later one, and readers can neither write nor lift their limits."""

from __future__ import annotations

import pytest

from legato_ingest.errors import LegatoError, StoreRefused
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
