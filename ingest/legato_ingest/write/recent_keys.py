"""The keys of the rows that were offered to one table recently: a row with another key and a recent time cannot be in the store.

Only the sole writer of a store can know this; with several instances, each row is looked up. Tenants share the room for keys: what one has
beyond its share is forgotten, and then rows of that tenant alone are looked up. The module says which rows may be stored. The exact
comparison with the stored rows is that of `dedup`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from legato_ingest.storage import Store
from legato_ingest.storage.sql import time_ns, unquoted
from legato_ingest.write.dedup import nanoseconds

__all__ = ["RecentKeys", "RecentRows"]

_MINUTE_NS = 60_000_000_000
# Keys are compared and forgotten in spans of this length. A key has no time, and a sender may correct the start of a span by some seconds.
_SPAN_NS = _MINUTE_NS
# About 25 MB. Of 5,000 engine steps a second these are the last minute.
_KEYS_MAX = 300_000
# What a span takes beside its keys, counted in keys: one key in each span must not take more memory.
_SPAN_KEYS = 5
# What a tenant takes beside its spans.
_TENANT_KEYS = 5
# Tenants without keys take at most this part of the room.
_WITHOUT_KEYS = 0.125
# So much of the room is used after some keys were forgotten: then it is not full again with the next row.
_KEPT = 0.875


@dataclass(slots=True)
class _Tenant:
    """``until``: rows up to this span are looked up. ``spans``: the hashes of the keys in later ones. ``count``: their room."""

    until: int
    spans: dict[int, set[int]] = field(default_factory=dict)
    count: int = _TENANT_KEYS

    def forget(self, count_max: float) -> None:
        """Forget the oldest spans until the others take at most so much room."""
        for span in sorted(self.spans):
            if self.count <= count_max:
                return
            self.count -= len(self.spans.pop(span)) + _SPAN_KEYS
            self.until = span


class RecentKeys:
    """Hashes of the keys of all stored rows with a time (ns) after ``since_ns``, or after that of their tenant in ``of_tenants``.

    When they take more room than ``keys_max``, the oldest are forgotten of the tenants with the most.
    """

    def __init__(self, since_ns: int, keys_max: int = _KEYS_MAX, of_tenants: Mapping[str, int] | None = None) -> None:
        self._until, self._keys_max = since_ns // _SPAN_NS, keys_max
        self._tenants = {name: _Tenant(max(at_ns, since_ns) // _SPAN_NS) for name, at_ns in (of_tenants or {}).items()}
        self._count = _TENANT_KEYS * len(self._tenants)
        if self._count > keys_max:
            self._forget()

    def may_be_stored(self, keys: Sequence[tuple[Any, ...]], times_ns: Sequence[int] | NDArray[np.int64]) -> list[bool]:
        """Return for each row whether it may be stored, and remember all rows: they are stored next, or sent again.

        Each key begins with the tenant. ``times_ns``: the time of each row in ns since the epoch.
        """
        if not keys:
            return []
        names = list(map(itemgetter(0), keys))
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        of_rows, spans = np.fromiter(map(numbers.__getitem__, names), np.int64, len(names)), np.asarray(times_ns, np.int64) // _SPAN_NS
        # Rows of one tenant and span are compared at once, and one by one only if one of them is known.
        order = np.lexsort((spans, of_rows))
        of_rows, spans = of_rows[order], spans[order]
        hashes = np.fromiter(map(hash, keys), np.int64, len(keys))[order].tolist()
        firsts = np.flatnonzero(np.diff(of_rows, prepend=-1) | np.diff(spans, prepend=spans[:1] - 1))
        tenants, known = [self._tenant(name) for name in numbers], list[bool]()
        parts = zip(of_rows[firsts].tolist(), spans[firsts].tolist(), firsts.tolist(), [*firsts[1:].tolist(), len(keys)], strict=True)
        for number, span, first, end in parts:
            known += self._known(tenants[number], span, hashes[first:end])
        if self._count > self._keys_max:
            self._forget()
        out = np.empty(len(keys), np.bool_)
        out[order] = known
        result: list[bool] = out.tolist()
        return result

    def _tenant(self, name: str) -> _Tenant:
        if (tenant := self._tenants.get(name)) is None:
            tenant = self._tenants[name] = _Tenant(self._until)
            self._count += tenant.count
        return tenant

    def _known(self, tenant: _Tenant, span: int, hashes: list[int]) -> Iterable[bool]:
        """Return for each key of a tenant and span whether it may be stored, and remember all."""
        if span <= tenant.until:
            return [True] * len(hashes)
        before = tenant.count
        if (own := tenant.spans.get(span)) is None:
            own = tenant.spans[span] = set()
            tenant.count += _SPAN_KEYS
        new, size = set(hashes), len(own)
        if len(new) == len(hashes) and own.isdisjoint(new):
            own |= new
            known = [False] * len(hashes)
        else:
            known = [_is_in(own, hashed) for hashed in hashes]
        tenant.count += len(own) - size
        self._count += tenant.count - before
        return known

    def _forget(self) -> None:
        """Make room: every tenant may have as much as fits, equally many, and what they do not need is for the others."""
        counts = np.sort(np.fromiter((tenant.count for tenant in self._tenants.values()), np.int64, len(self._tenants)))
        shares = (_KEPT * self._keys_max - np.cumsum(counts) + counts) / np.arange(len(counts), 0, -1)
        share = shares[np.argmax(counts > shares)]
        for tenant in self._tenants.values():
            tenant.forget(share)
        self._forget_tenants()
        self._count = sum(tenant.count for tenant in self._tenants.values())

    def _forget_tenants(self) -> None:
        """Forget tenants without keys: those of which no more is known than of a new one, and others beyond their part of the room.

        From new tenants more rows are looked up then. The latest times are kept: one tenant far ahead must not concern others.
        """
        without = [tenant.until for tenant in self._tenants.values() if not tenant.spans]
        beyond = len(without) - int(_WITHOUT_KEYS * self._keys_max / _TENANT_KEYS)
        if beyond > 0:
            self._until = max(self._until, sorted(without)[beyond - 1])
        self._tenants = {name: tenant for name, tenant in self._tenants.items() if tenant.spans or tenant.until > self._until}


def _is_in(known: set[int], hashed: int) -> bool:
    """Return whether a hash is known, and add it."""
    is_known = hashed in known
    known.add(hashed)
    return is_known


class RecentRows:
    """The recent keys of each table of a store. ``is_sole``: no other process writes into the store; else every row is looked up."""

    def __init__(self, store: Store, *, is_sole: bool) -> None:
        self._store, self._is_sole = store, is_sole
        self._tables: dict[str, RecentKeys] = {}

    def maybe_stored(self, table: str, at: str, rows: pa.Table, keys: Sequence[tuple[Any, ...]]) -> pa.Table:
        """Return the rows that the store may hold, and remember all rows.

        ``at``: their time column; ``keys``: the key of each row, which begins with its tenant.
        """
        if not self._is_sole or not rows.num_rows:
            return rows
        if table not in self._tables:
            self._tables[table] = self._as_of_now(table, at)
        mask = self._tables[table].may_be_stored(keys, nanoseconds(rows[at]))
        return rows.filter(pa.array(mask, pa.bool_())) if any(mask) else rows.slice(0, 0)

    def _as_of_now(self, table: str, at: str) -> RecentKeys:
        """Return no keys: rows until the end of this minute, or until the last stored row of their tenant, are looked up."""
        minute_ns = (time.time_ns() // _MINUTE_NS + 1) * _MINUTE_NS - 1
        later = self._store.select(
            f"SELECT tenant, toUnixTimestamp64Nano(max({at})) FROM {table} WHERE {at} > {time_ns(minute_ns)} GROUP BY tenant"
        )
        return RecentKeys(minute_ns, of_tenants={unquoted(tenant): int(last_ns) for tenant, last_ns in later})
