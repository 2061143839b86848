"""Values in the text of statements: they come back unchanged, and conditions on times select the intended rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from helpers.platform.examples import examples
from legato_ingest.storage import Store
from legato_ingest.storage.sql import after_until_ms, between_ns, integers, quoted, quoted_all, texts, time_ns, tuples, unquoted


@pytest.mark.parametrize("value", ["", "plain", "it's", "\\", "nul\0byte", "ünï", "') OR 1 --"])
def test_a_text_comes_back(store: Store, value: str) -> None:
    """Whatever it contains, also as bytes in an Arrow result."""
    assert store.select(f"SELECT {quoted(value)}") == [(value,)]
    (row,) = store.select_arrow(f"SELECT {quoted(value)} AS value").to_pylist()
    assert unquoted(row["value"]) == value and unquoted(7) == 7


def test_bytes_and_lists_are_compared(store: Store) -> None:
    """An id of random bytes is found in a list."""
    assert store.select(f"SELECT toFixedString({quoted(bytes(8))}, 8) IN ({quoted_all([bytes(8), b'12345678'])})") == [(1,)]


@pytest.mark.parametrize("count", [1, 1_000, 1_001, 100_000])
def test_texts_are_compared(store: Store, count: int) -> None:
    """Each text of a list is in it, whatever bytes it has, and no other. ClickHouse takes 100,000 of them."""
    odd = [b"", b"\0", b"\0\0", b"a,b", b"'", b"\\", b"\xff\xfe", "\u00fc".encode()]
    values = [*odd, *(b"%d\0" % number for number in range(count))][:count]
    probes = [*odd, b"0\0", b"0", b"a", b",", b"\0\0\0", b"%d\0" % (count - 9)]
    sql = f"SELECT groupArray(hex(value)) FROM (SELECT arrayJoin([{quoted_all(probes)}]) AS value) WHERE value IN ({texts(values)})"
    ((found,),) = store.select(sql)
    assert sorted(bytes.fromhex(each) for each in found) == sorted(each for each in probes if each in values)


@pytest.mark.parametrize("count", [1, 1_000, 1_001, 100_000])
@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_integers_are_compared(store: Store, count: int, kind: type[np.int64] | type[np.uint64]) -> None:
    """Each number of a list is in it, also the least and the greatest, and no other."""
    limits = np.iinfo(kind)
    values: NDArray[Any] = np.unique(np.array([limits.min, limits.max, *range(7, 3 * count, 3)], kind)[:count])
    name = "Int64" if kind is np.int64 else "UInt64"
    probes = ", ".join(f"to{name}('{value}')" for value in (limits.min, limits.max, 7, 8, 3 * count + 9))
    ((found,),) = store.select(f"SELECT arrayFilter(value -> {{}}, [{probes}])".format(f"value IN ({integers(values)})"))
    assert list(found) == [value for value in (limits.min, limits.max, 7, 8, 3 * count + 9) if value in values]
    assert len(integers(values)) < 21 * len(values) + 200


TEXT = st.text(st.sampled_from("a,'\\\0\u00fc"), max_size=3)
ROW = st.tuples(TEXT, st.binary(min_size=2, max_size=2), st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1))


@given(st.lists(ROW, min_size=4, max_size=8), st.integers(0, 3))
@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tuples_come_back(store: Store, rows: list[tuple[str, bytes, int, int]], first: int) -> None:
    """Each row as it is, also from the middle of a table; a text that is in many rows is sent once."""
    kinds = pa.string(), pa.binary(2), pa.uint64(), pa.timestamp("ns")
    columns = [pa.chunked_array([pa.array(values, kind)]).slice(first) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    found = store.select_arrow(tuples(columns))
    assert list(zip(*(column.to_pylist() for column in found.columns), strict=True)) == [
        (text.encode(), *rest) for text, *rest in rows[first:]
    ]
    assert len(tuples([pa.chunked_array([["long" * 1000] * 100])])) < 2 * 4000 + 100 * 40


def test_times_are_exact(store: Store) -> None:
    """To the nanosecond; a negative time becomes 1970."""
    assert store.select(f"SELECT toUnixTimestamp64Nano({time_ns(1_700_000_000_123_456_789)})") == [(1_700_000_000_123_456_789,)]
    assert store.select(f"SELECT toUnixTimestamp64Nano({time_ns(-5)})") == [(0,)]


def test_limits_of_conditions(store: Store) -> None:
    """``between_ns`` includes both limits, ``after_until_ms`` only the upper one."""
    rows = "SELECT groupArray(ms) FROM (SELECT number + 9 AS ms, fromUnixTimestamp64Milli(toInt64(ms), 'UTC') AS at FROM numbers(4)) WHERE"
    assert store.select(f"{rows} {between_ns('at', 10_000_000, 11_000_000)}") == [([10, 11],)]
    assert store.select(f"{rows} {after_until_ms('at', 10, 12)}") == [([11, 12],)]
