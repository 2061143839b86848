"""The keys of the rows that were offered to one table recently: a row with another key and a recent time cannot be in the store.

Only the sole writer of a store can know this; with several instances, each row is looked up. The module says which rows may be stored. The
exact comparison with the stored rows is that of `dedup`.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence

import pyarrow as pa

from legato_ingest.storage import Store
from legato_ingest.storage.sql import time_ns
from legato_ingest.write.dedup import values

__all__ = ["RecentKeys", "RecentRows"]

_MINUTE_NS = 60_000_000_000
# About 25 MB. Of 5,000 engine steps a second these are the last minute.
_KEYS_MAX = 300_000


class RecentKeys:
    """Hashes of the keys of all stored rows with a time (ns) after ``since_ns``, by minute. The oldest minutes are forgotten."""

    def __init__(self, since_ns: int, keys_max: int = _KEYS_MAX) -> None:
        self._since_ns = since_ns
        self._keys_max = keys_max
        self._minutes: dict[int, set[int]] = {}
        self._count = 0

    def may_be_stored(self, keys: Sequence[Hashable], times_ns: Sequence[int]) -> list[bool]:
        """Return for each row whether it may be stored, and remember all rows: they are stored next, or sent again."""
        out = [at_ns <= self._since_ns or self._is_known(key, at_ns) for key, at_ns in zip(keys, times_ns, strict=True)]
        while self._count > self._keys_max:
            self._forget_a_minute()
        return out

    def _is_known(self, key: Hashable, at_ns: int) -> bool:
        minute = self._minutes.setdefault(at_ns // _MINUTE_NS, set())
        hashed = hash(key)
        if hashed in minute:
            return True
        minute.add(hashed)
        self._count += 1
        return False

    def _forget_a_minute(self) -> None:
        oldest = min(self._minutes)
        self._count -= len(self._minutes.pop(oldest))
        self._since_ns = max(self._since_ns, (oldest + 1) * _MINUTE_NS - 1)


class RecentRows:
    """The recent keys of each table of a store. ``is_sole``: no other process writes into the store; else every row is looked up."""

    def __init__(self, store: Store, *, is_sole: bool) -> None:
        self._store, self._is_sole = store, is_sole
        self._tables: dict[str, RecentKeys] = {}

    def maybe_stored(self, table: str, at: str, rows: pa.Table, keys: Sequence[Hashable]) -> pa.Table:
        """Return the rows that the store may hold, and remember all rows. ``at``: their time column; ``keys``: the key of each row."""
        if not self._is_sole or not rows.num_rows:
            return rows
        if table not in self._tables:
            self._tables[table] = self._as_of_now(table, at)
        times_ns = values(rows[at].cast(pa.int64()))
        mask = self._tables[table].may_be_stored(keys, times_ns)
        return rows.filter(pa.array(mask, pa.bool_())) if any(mask) else rows.slice(0, 0)

    def _as_of_now(self, table: str, at: str) -> RecentKeys:
        """Return no keys: rows until the end of this minute, or until the last stored row, are looked up."""
        minute_ns = (time.time_ns() // _MINUTE_NS + 1) * _MINUTE_NS - 1
        ((last_ns,),) = self._store.select(f"SELECT toUnixTimestamp64Nano(max({at})) FROM {table} WHERE {at} > {time_ns(minute_ns)}")
        return RecentKeys(max(minute_ns, int(last_ns)))
