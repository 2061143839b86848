"""Values in the text of statements: they come back unchanged, and conditions on times select the intended rows."""

from __future__ import annotations

import pytest

from legato_ingest.storage import Store
from legato_ingest.storage.sql import after_until_ms, between_ns, quoted, quoted_all, time_ns, unquoted


@pytest.mark.parametrize("value", ["", "plain", "it's", "\\", "nul\0byte", "ünï", "') OR 1 --"])
def test_a_text_comes_back(store: Store, value: str) -> None:
    """Whatever it contains, also as bytes in an Arrow result."""
    assert store.select(f"SELECT {quoted(value)}") == [(value,)]
    (row,) = store.select_arrow(f"SELECT {quoted(value)} AS value").to_pylist()
    assert unquoted(row["value"]) == value and unquoted(7) == 7


def test_bytes_and_lists_are_compared(store: Store) -> None:
    """An id of random bytes is found in a list."""
    assert store.select(f"SELECT toFixedString({quoted(bytes(8))}, 8) IN ({quoted_all([bytes(8), b'12345678'])})") == [(1,)]


def test_times_are_exact(store: Store) -> None:
    """To the nanosecond; a negative time becomes 1970."""
    assert store.select(f"SELECT toUnixTimestamp64Nano({time_ns(1_700_000_000_123_456_789)})") == [(1_700_000_000_123_456_789,)]
    assert store.select(f"SELECT toUnixTimestamp64Nano({time_ns(-5)})") == [(0,)]


def test_limits_of_conditions(store: Store) -> None:
    """``between_ns`` includes both limits, ``after_until_ms`` only the upper one."""
    rows = "SELECT groupArray(ms) FROM (SELECT number + 9 AS ms, fromUnixTimestamp64Milli(toInt64(ms), 'UTC') AS at FROM numbers(4)) WHERE"
    assert store.select(f"{rows} {between_ns('at', 10_000_000, 11_000_000)}") == [([10, 11],)]
    assert store.select(f"{rows} {after_until_ms('at', 10, 12)}") == [([11, 12],)]
