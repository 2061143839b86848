"""Leases: on a store shared by several instances, only the holder of a lease does work that must not run twice.

The holder renews its row in `leases` every 5 s; other instances take over only after the row is 30 s old. Waiting instances queue in the
order of their claims, and each confirms its turn a second time, more than 4 s after its claim, before it acts. ClickHouse has no
compare-and-swap, so a process that was suspended in the middle of its work can overlap with its successor for a moment. That costs work and
changes nothing: verdicts and rollups are written completely, and every instance computes the same.
"""

from __future__ import annotations

import time

import pyarrow as pa

from legato_ingest.metrics import Metrics
from legato_ingest.periodic import PeriodicTask
from legato_ingest.storage import Store

__all__ = ["EVERY_S", "EXPIRES_S", "WORK", "Lease", "claim"]

WORK = "work"
"""The lease of all work that one instance does for all others."""
EVERY_S = 5.0
EXPIRES_S = 30
# Longer than an insert takes to become visible to other instances.
_CONFIRM_S = 4.0
_NEVER_MS = 4_000_000_000_000


class Lease:
    """The lease ``name`` of ``store``, claimed for ``holder`` from ``start()`` until ``close()``."""

    def __init__(self, store: Store, name: str, holder: str, metrics: Metrics) -> None:
        self._store, self._name, self._holder = store, name, holder
        self._claimed_ms = 0
        self._claimed_at = self._written_at = 0.0
        self._acting = False
        self._task = PeriodicTask("lease", self.step, EVERY_S, metrics, 0.0)

    def start(self) -> None:
        """Claim the lease, and renew it periodically."""
        self._task.start()

    def close(self) -> None:
        """Release the lease, so that the next instance need not wait until it expires."""
        self._task.close()
        if self._acting:
            self._acting = False
            self._write(released=True)

    @property
    def held(self) -> bool:
        """Whether this instance may act now. False also if it could not renew the lease for 15 s."""
        return self._acting and time.monotonic() - self._written_at < EXPIRES_S / 2

    def step(self) -> None:
        """Write or renew the claim, and check which instance is first."""
        if time.monotonic() - self._written_at > EXPIRES_S:
            self._acting, self._claimed_ms = False, 0
        if not self._claimed_ms:
            self._claimed_ms, self._claimed_at = self._store.clock_ms(), time.monotonic()
        self._write()
        first = self._first()
        if self._acting:
            # If two instances act, the one with the later claim stops.
            self._acting = first == self._holder
        elif first == self._holder and time.monotonic() - self._claimed_at > _CONFIRM_S:
            self._acting = True
            self._write()

    def _first(self) -> str:
        """Return the instance that acts, or the first one in the queue; empty without a valid claim."""
        rows = self._store.select(
            "SELECT holder FROM leases FINAL"
            f" WHERE lease = '{self._name}' AND seen_at > now64(3) - INTERVAL {EXPIRES_S} SECOND"
            " ORDER BY acting DESC, claimed_at, holder LIMIT 1"
        )
        return str(rows[0][0]) if rows else ""

    def _write(self, *, released: bool = False) -> None:
        # A released claim sorts after all others until it expires.
        claimed_ms = _NEVER_MS if released else self._claimed_ms
        self._store.insert("leases", claim(self._name, self._holder, claimed_ms, acting=self._acting))
        self._written_at = time.monotonic()


def claim(lease: str, holder: str, claimed_ms: int, *, acting: bool) -> pa.Table:
    """Return the row of `leases` of a claim since ``claimed_ms`` (Unix ms)."""
    row = {
        "tenant": pa.array([""]),
        "lease": pa.array([lease]),
        "holder": pa.array([holder]),
        "claimed_at": pa.array([claimed_ms], pa.timestamp("ms", "UTC")),
        "acting": pa.array([acting]),
    }
    return pa.table(row)
