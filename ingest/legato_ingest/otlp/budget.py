"""What one request may use: chunks, memory of its rows, days of each table, rows of `rejected`. It is counted before anything is decoded.

A packed timeline of some bytes can declare 65,536 chunks, a shared attribute is in each row of a request, and steps can be hours apart: the
bytes of a body limit none of this. So every item is charged with what it declares, and one that exceeds the budget is rejected alone. The
module decodes nothing.

Rows of up to four times the bytes of their item are always accepted. What rows take beyond that comes from one pool of the request, of
which a single item has a part only. So the rows of a request take at most 64 MiB and four times its body, and their conversion 64 MiB more.
Honest requests need that much: rows of 8,192 streams of 1,000 chunks take 140 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from legato_ingest.otlp.batch import DAY_NS, Limits

__all__ = ["ITEMS_MAX", "LISTED_MAX", "POOL_MAX_BYTES", "SHARE", "Budget", "OverBudget", "Place", "TooMany", "recent_days"]

_MIB = 2**20
SHARE = 4
"""Bytes of rows for each byte of their item that are always accepted."""
POOL_MAX_BYTES = 64 * _MIB
"""The largest pool."""
# The pool of a body: so many bytes, and so many for each of its bytes. What one small request (``split``) takes of it at most: its rows are
# in memory twice. What one item takes of it: a step of one byte is a row of 130.
_POOL, _POOL_A_BYTE, _SMALL_POOL, _ITEM, _ITEM_A_BYTE = 8 * _MIB, 64, 32 * _MIB, _MIB, 160
ITEMS_MAX = 8_192
"""Items of one small request."""
# Rows of `rejected`, and senders of ignored items, of one request. More are counted, but not listed.
LISTED_MAX, _SENDERS_MAX = 1_024, 1_024
_NO_DAYS: frozenset[int] = frozenset()
# A table, and the first and the last time (ns) of rows in it.
Place = tuple[str, int, int]


class OverBudget(ValueError):
    """An item that exceeds the budget of its request. ``reason`` is that of its rejection."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class TooMany(ValueError):
    """A request with more items, or messages, than may be parsed at once."""


def recent_days(now_ns: int) -> tuple[int, int]:
    """Return today and yesterday (UTC), in days since the epoch. Rows of other days are late, or early."""
    return now_ns // DAY_NS, now_ns // DAY_NS - 1


@dataclass(slots=True)
class Budget:
    """What is left to one request. ``pool`` is the memory for rows beyond ``SHARE`` times their items, ``small_pool`` what the small
    request that is being converted may take of it; that has at most ``items_max`` items.

    ``days`` holds the days of each table with rows. ``tenant_bytes`` are in every row. ``listed`` and ``senders`` are the rejected items
    that may still have a row, and the senders of ignored items that may still be named. ``taken`` is the memory of the rows so far.
    """

    chunks: int
    pool: int
    days_max: int
    recent: tuple[int, int]
    tenant_bytes: int = 0
    small_pool: int = _SMALL_POOL
    items_max: int = ITEMS_MAX
    listed: int = LISTED_MAX
    senders: int = _SENDERS_MAX
    days: dict[str, set[int]] = field(default_factory=dict)
    taken: int = 0

    @classmethod
    def of(cls, limits: Limits, body_bytes: int, tenant: str, now_ns: int) -> Budget:
        """Return the budget of a request with a body of this size."""
        pool = min(limits.row_bytes_max, POOL_MAX_BYTES, _POOL + _POOL_A_BYTE * body_bytes)
        return cls(limits.chunks_per_request_max, pool, limits.days_max, recent_days(now_ns), len(tenant.encode()))

    def copy(self) -> Budget:
        """Return a budget that can be spent without this one, for the next small request. It takes this one's place if that succeeds."""
        budget = copy(self)
        budget.small_pool = _SMALL_POOL
        budget.days = {table: set(days) for table, days in self.days.items()}
        return budget

    def take(self, places: Sequence[Place], *, rows: int, row_bytes: int, item_bytes: int, chunks: int = 0) -> None:
        """Take what an item declares. Raises ``OverBudget``; then nothing is taken."""
        if chunks > self.chunks:
            raise OverBudget("chunk_budget", f"{chunks} chunks, but only {self.chunks} more are allowed in this request")
        size = row_bytes + rows * self.tenant_bytes
        beyond = size - SHARE * item_bytes
        if beyond > 0:
            if beyond > min(self.pool, self.small_pool, _ITEM + _ITEM_A_BYTE * item_bytes):
                raise OverBudget("budget", f"rows of {size} bytes from an item of {item_bytes}: too many for what is left to this request")
        for table, first_ns, last_ns in places:
            day = first_ns // DAY_NS
            if day not in self.days.get(table, _NO_DAYS) or last_ns // DAY_NS != day:
                self._take_days(
                    [(table, day) for table, first, last in places for day in self._new_days(table, first // DAY_NS, last // DAY_NS)]
                )
                break
        self.chunks -= chunks
        self.taken += size
        if beyond > 0:
            self._take_pool(beyond)

    def take_sizes(self, row_bytes: NDArray[np.int64], item_bytes: NDArray[np.int64], wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Take the wanted rows from the first on, and return which of them fit."""
        sizes = row_bytes + self.tenant_bytes
        beyond = np.maximum(sizes - SHARE * item_bytes, 0)
        ends = np.cumsum(np.where(wanted, beyond, 0))
        fits: NDArray[np.bool_] = wanted & ((beyond == 0) | (ends <= min(self.pool, self.small_pool)))
        self.taken += int(sizes[fits].sum())
        self._take_pool(int(beyond[fits].sum()))
        return fits

    def _take_pool(self, size: int) -> None:
        self.pool -= size
        self.small_pool -= size

    def take_times(self, table: str, times_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Take the days of these rows, those of the first rows first, and return which rows are on a day that may be stored."""
        found, first = np.unique(times_ns // DAY_NS, return_index=True)
        known = self.days.get(table, _NO_DAYS)
        room = self.days_max - len(self.recent) - len(known - {*self.recent})
        others = [day for day in found[np.argsort(first)].tolist() if day not in known and day not in self.recent][: max(room, 0)]
        good = {*known, *self.recent, *others}
        self._take_days([(table, day) for day in good.intersection(found.tolist())])
        fits: NDArray[np.bool_] = np.isin(times_ns // DAY_NS, list(good))
        return fits

    def lists(self) -> bool:
        """Return whether one more rejected item may have a row; the others are only counted."""
        self.listed -= 1
        return self.listed >= 0

    def _new_days(self, table: str, first: int, last: int) -> Sequence[int]:
        """Return the days from ``first`` to ``last`` on which the table has no row yet. Raises ``OverBudget``.

        Today and yesterday always have room, so that late rows displace none of now.
        """
        known = self.days.get(table, _NO_DAYS)
        if first == last and first in known:
            return ()
        if last - first >= self.days_max:
            raise OverBudget("partition_budget", f"rows on {last - first + 1} days, a request may have {self.days_max} in one table")
        new, most = [day for day in range(first, last + 1) if day not in known], self.days_max - len(self.recent)
        if sum(day not in self.recent for day in (*known, *new)) > most and any(day not in self.recent for day in new):
            raise OverBudget(
                "partition_budget", f"rows on a further day: a request may have rows of today, yesterday and {most} other days in one table"
            )
        return new

    def _take_days(self, new: Sequence[tuple[str, int]]) -> None:
        for table, day in new:
            self.days.setdefault(table, set()).add(day)
