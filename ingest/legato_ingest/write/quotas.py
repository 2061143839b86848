"""Quotas of one tenant: bytes per second, in-flight bytes, and distinct label combinations per hour (the cardinality limit).

A request over a quota is refused with 429 and a time to retry after, before anything of it is stored; other tenants are not affected. The
rate is a balance that grows with time and may be overdrawn by one request at a time, so that a body of any size is accepted after a wait.
The cardinality counts what multiplies rows of the rollups and series of samples; it is taken from converted rows.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from legato_ingest.definitions import DIMENSIONS
from legato_ingest.errors import Overloaded
from legato_ingest.otlp.batch import Batch

__all__ = ["TenantQuotas", "label_hashes"]

# Each combination of these columns is one row of `stream_minutes` per minute.
_STREAM_LABELS = (*DIMENSIONS, "emitter", "engine_id")

# A tenant can save up its rate over this time. What was saved up arrives within a moment and delays the acknowledgements of other tenants:
# ten seconds of a rate took a second to convert. Loki's and Tempo's default limits allow bursts of 1.5 and 1.3 s.
_BURST_S = 1.5
_HOUR_S = 3600.0
# The longest Retry-After: a quota may be raised in the meantime.
_RETRY_AFTER_S_MAX = 60
# Replies to requests over the rate are held back for so long, and are so far apart. A sender that ignores Retry-After and repeats at once
# would take time from the other tenants: 136 refused requests a second made their p99 a quarter longer.
_HOLD_S, _HOLD_S_MAX, _REFUSALS_APART_S = 0.25, 2.0, 0.025
# A body that overdraws the rate may arrive so much later than it would at the rate.
_SLOW_S = 10.0


def label_hashes(batch: Batch) -> set[int]:
    """Return a hash of each distinct combination of stream labels and of each distinct series of samples in a batch."""
    return {hash(each) for each in (*_distinct(batch.revs, _STREAM_LABELS), *_distinct(batch.samples, ("series",)))}


def _distinct(rows: pa.Table, columns: Sequence[str]) -> Iterable[tuple[object, ...]]:
    if not rows.num_rows:
        return ()
    found = rows.group_by(list(columns)).aggregate([])
    return zip(*(column.to_pylist() for column in found.columns), strict=True)


@dataclass(slots=True)
class _Account:
    """The use of one tenant: balance of its rate in bytes at the time ``at``, bytes in flight, label hashes of the hour ``hour``.

    ``overdrawer`` is the request in flight that has overdrawn the balance, since ``overdrawn_at`` with ``overdrawn`` bytes. ``refusal_at``
    is the time of the last reply over the rate.
    """

    balance: float
    at: float
    in_flight: int = 0
    overdrawer: object = None
    overdrawn_at: float = 0.0
    overdrawn: int = 0
    refusal_at: float = float("-inf")
    hour: int = -1
    labels: set[int] = field(default_factory=set)


class TenantQuotas:
    """The quotas, the same for each tenant; 0 disables one. Thread-safe. All methods raise ``Overloaded`` over a quota.

    ``in_flight_bytes_max`` limits the bodies that were received and not yet answered, ``cardinality_max`` the distinct label combinations
    of an hour. ``clock`` returns the seconds of a monotonic clock.
    """

    def __init__(
        self, *, bytes_per_s: int, in_flight_bytes_max: int, cardinality_max: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._in_flight_bytes_max = in_flight_bytes_max
        self._cardinality_max = cardinality_max
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._lock = threading.Lock()

    @contextmanager
    def request(self, tenant: str) -> Iterator[Callable[[int], None]]:
        """Enter for one request: checks the rate and yields a function that counts bytes of its body as in flight, until exit."""
        own, this = 0, object()

        def count(size: int) -> None:
            nonlocal own
            with self._lock:
                account = self._account(tenant)
                most = self._in_flight_bytes_max
                if most and account.in_flight > own and account.in_flight + size > most:
                    raise Overloaded(f"{account.in_flight} bytes of the tenant {tenant} are in flight, at most {most} are allowed")
                # The end of a body has no bytes: it is paid.
                if size and self._bytes_per_s and account.overdrawer is not this:
                    self._overdraw(tenant, account, size, this)
                account.in_flight += size
                account.balance -= size
                account.overdrawn += size if account.overdrawer is this else 0
                own += size

        with self._lock:
            self._check_rate(tenant, self._account(tenant))
        try:
            yield count
        finally:
            with self._lock:
                account = self._account(tenant)
                account.in_flight -= own
                if account.overdrawer is this:
                    account.overdrawer = None

    def check_cardinality(self, tenant: str, labels: Iterable[int]) -> None:
        """Add the label hashes of a request to those of the hour. Raises ``Overloaded`` when they exceed the limit; then none is added."""
        with self._lock:
            account, now = self._account(tenant), self._clock()
            if account.hour != now // _HOUR_S:
                account.hour, account.labels = int(now // _HOUR_S), set()
            both = account.labels.union(labels)
            # The first request of an hour is accepted with any number of labels: otherwise it would be refused for ever.
            if account.labels and len(both) > max(self._cardinality_max, len(account.labels)):
                raise Overloaded(
                    f"the tenant {tenant} has sent {len(both)} combinations of labels in this hour, at most {self._cardinality_max} are "
                    "allowed: check whether a route, a model or a metric's attribute holds an id",
                    min(_RETRY_AFTER_S_MAX, math.ceil(_HOUR_S - now % _HOUR_S)),
                )
            account.labels = both

    def _overdraw(self, tenant: str, account: _Account, size: int, request: object) -> None:
        """Let a request take bytes from the balance, which it may overdraw as the only one. Raises ``Overloaded``.

        Requests that began before the balance was spent would overdraw it one after another. The one that overdraws it is not replaced, as
        of several large bodies none would arrive; one that arrives slower than the rate keeps the others waiting for ``_SLOW_S`` at most.
        """
        self._check_rate(tenant, account)
        if account.balance >= size:
            return
        is_slow = account.at - account.overdrawn_at > account.overdrawn / self._bytes_per_s + _SLOW_S
        if account.overdrawer is not None and not is_slow:
            raise self._over_rate(tenant, account)
        account.overdrawer, account.overdrawn_at, account.overdrawn = request, account.at, 0

    def _check_rate(self, tenant: str, account: _Account) -> None:
        if self._bytes_per_s and account.balance < 0:
            raise self._over_rate(tenant, account)

    def _over_rate(self, tenant: str, account: _Account) -> Overloaded:
        wait = min(_RETRY_AFTER_S_MAX, max(1, math.ceil(-account.balance / self._bytes_per_s)))
        account.refusal_at = min(account.at + _HOLD_S_MAX, max(account.at + _HOLD_S, account.refusal_at + _REFUSALS_APART_S))
        hold_s = account.refusal_at - account.at
        return Overloaded(f"the tenant {tenant} sends more than {self._bytes_per_s} bytes per second", wait, hold_s)

    def _account(self, tenant: str) -> _Account:
        """Return the tenant's account with its balance as of now. The number of tenants is bounded, because they come from tokens."""
        now, full = self._clock(), self._bytes_per_s * _BURST_S
        account = self._accounts.setdefault(tenant, _Account(full, now))
        account.balance = min(full, account.balance + (now - account.at) * self._bytes_per_s)
        account.at = now
        return account
