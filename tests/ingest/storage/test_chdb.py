"""The store: what a failure leaves behind, and which errors pass."""

from __future__ import annotations

import pytest

from legato_ingest.errors import LegatoError, StoreRefused
from legato_ingest.storage import Store

# How much a failed query has written by then is a matter of luck.
TRIES = 8
FAILING = "SELECT throwIf(number = 1000000), number FROM numbers(2000000)"


def test_a_failed_read_does_not_spoil_the_writers_next(store: Store) -> None:
    """The look-up of known rows stands on this: a wrong answer there would store a row twice or lose one."""
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


def test_a_failed_query_does_not_spoil_the_readers_next(store: Store) -> None:
    """Nobody sees rows of another's query."""
    store.query_bytes("SELECT 1")
    answers = []
    for _ in range(TRIES):
        with pytest.raises(StoreRefused):
            store.query_bytes("SELECT number FROM numbers(200000)")
        answers.append(store.query_bytes("SELECT 1")[-9:])
        store.query_bytes("SELECT 'settled'")
    assert answers == [b"1\n"] * TRIES


def test_a_reader_cannot_write(store: Store) -> None:
    """Its handle is read-only for good, also when asked to be otherwise."""
    for sql in ("CREATE TABLE x (a UInt8) ENGINE = Memory", "TRUNCATE TABLE rejected", "SET readonly = 0", "SET max_memory_usage = 0"):
        with pytest.raises(StoreRefused):
            store.query_bytes(sql)
    assert store.query_bytes("SELECT value FROM system.settings WHERE name = 'readonly'") == b"1\n"


def test_a_reader_keeps_its_limits(store: Store) -> None:
    """The limits that the store was opened with hold on every read handle."""
    sql = "SELECT value FROM system.settings WHERE name = 'max_result_rows'"
    assert store.query_bytes(sql) == b"100000\n"
    assert store.select(sql) == [("0",)]
