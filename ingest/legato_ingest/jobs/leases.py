"""Whose turn it is to do what only one instance may do at a time, on a store that several share.

One idea: who acts says so in the store every few seconds, and nobody else acts until that has lapsed; of those who wait the first to come
is next, and looks twice, some seconds apart, before it acts. ClickHouse has no compare-and-swap, so a process that was frozen in the middle
of its work may act beside the next for a moment: what is done under a lease (verdicts, minutes) is computed whole, and the same by whoever
does it, so that costs work and changes nothing.
"""

from __future__ import annotations

import time

import pyarrow as pa

from legato_ingest.metrics import Metrics
from legato_ingest.periodic import Background
from legato_ingest.storage.chdb import Store

__all__ = ["Lease"]

_EVERY_S = 5.0
_LAPSED_S = 30
# Longer than an insert takes to be seen by others.
_LOOK_AGAIN_S = 4.0
_NEVER_MS = 4_000_000_000_000


class Lease:
    """The lease ``name`` of ``store``, wanted by ``holder`` from ``start()`` until ``close()``."""

    def __init__(self, store: Store, name: str, holder: str, metrics: Metrics) -> None:
        self._store, self._name, self._holder = store, name, holder
        self._claimed_ms = 0
        self._claimed_at = self._said_at = 0.0
        self._acting = False
        self._background = Background("lease", self.step, _EVERY_S, metrics, 0.0)

    def start(self) -> None:
        """Want it from now on."""
        self._background.start()

    def close(self) -> None:
        """Let go of it, so that the next need not wait until it lapses."""
        self._background.close()
        if self._acting:
            self._acting = False
            self._say(gone=True)

    @property
    def held(self) -> bool:
        """Whether this one may act now. False also where it could not say so for too long."""
        return self._acting and time.monotonic() - self._said_at < _LAPSED_S / 2

    def step(self) -> None:
        """Say that it is wanted or held, and see whose turn it is."""
        if time.monotonic() - self._said_at > _LAPSED_S:
            self._acting, self._claimed_ms = False, 0
        if not self._claimed_ms:
            self._claimed_ms, self._claimed_at = self._store.clock_ms(), time.monotonic()
        self._say()
        first = self._first()
        if self._acting:
            # Of two that act, which should not be, the later to come gives way.
            self._acting = first == self._holder
        elif first == self._holder and time.monotonic() - self._claimed_at > _LOOK_AGAIN_S:
            self._acting = True
            self._say()

    def _first(self) -> str:
        """Who acts, or the first of those who wait."""
        rows = self._store.select(
            "SELECT holder FROM leases FINAL"
            f" WHERE lease = '{self._name}' AND seen_at > now64(3) - INTERVAL {_LAPSED_S} SECOND"
            " ORDER BY acting DESC, claimed_at, holder LIMIT 1"
        )
        return str(rows[0][0]) if rows else ""

    def _say(self, *, gone: bool = False) -> None:
        moment = pa.timestamp("ms", "UTC")
        row = {
            "tenant": pa.array([""]),
            "lease": pa.array([self._name]),
            "holder": pa.array([self._holder]),
            # Who is gone comes after everybody else, until it lapses.
            "claimed_at": pa.array([_NEVER_MS if gone else self._claimed_ms], moment),
            "acting": pa.array([self._acting]),
        }
        self._store.insert("leases", pa.table(row))
        self._said_at = time.monotonic()
