"""What one tenant may take of the server: bytes a second, bytes that wait, and names an hour.

One idea: whoever is over a limit is told 429 and when to come back, before anything of the request is kept; the others notice nothing. A
rate is a balance that fills with time and may be overdrawn by one request, so a body of any size comes through when its time has come.
What is counted as a name is what multiplies rows of minutes and series: it reads that of rows, and never a request.
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
from legato_ingest.otlp.stream_rows import Batch

__all__ = ["TenantLimits", "names_of"]

# Each combination of these is a row of `stream_minutes` a minute; each series is one that every panel over it carries.
_STREAM_NAMES = (*DIMENSIONS, "emitter", "engine_id")

# So many seconds of its rate a tenant may save up.
_BURST_S = 10.0
_HOUR_S = 3600.0
# Longer than this nobody should be told to wait: a limit may be raised meanwhile.
_RETRY_AFTER_S_MAX = 60


def names_of(batch: Batch) -> set[int]:
    """Hashes of the names that a request's rows bring: combinations of a stream's names, and series of samples."""
    return {hash(each) for each in (*_distinct(batch.revs, _STREAM_NAMES), *_distinct(batch.samples, ("series",)))}


def _distinct(rows: pa.Table, columns: Sequence[str]) -> Iterable[tuple[object, ...]]:
    if not rows.num_rows:
        return ()
    found = rows.group_by(list(columns)).aggregate([])
    return zip(*(column.to_pylist() for column in found.columns), strict=True)


@dataclass(slots=True)
class _Account:
    balance: float
    at: float
    waiting: int = 0
    hour: int = -1
    names: set[int] = field(default_factory=set)


class TenantLimits:
    """Limits of each tenant; 0 is none. ``clock`` gives seconds of a monotonic clock. Use from any thread. Raises ``Overloaded``.

    ``waiting_bytes_max`` bounds bodies that were received and not yet answered, ``names_max`` the distinct names of an hour.
    """

    def __init__(self, *, bytes_per_s: int, waiting_bytes_max: int, names_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_s = bytes_per_s
        self._waiting_bytes_max = waiting_bytes_max
        self._names_max = names_max
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._lock = threading.Lock()

    @contextmanager
    def request(self, tenant: str) -> Iterator[Callable[[int], None]]:
        """Around one request: a function that charges bytes of its body as they come. What waits is let go at the end."""
        own = 0

        def charge(size: int) -> None:
            nonlocal own
            with self._lock:
                account = self._account(tenant)
                over = self._waiting_bytes_max and account.waiting > own and account.waiting + size > self._waiting_bytes_max
                if over:
                    raise Overloaded(f"{account.waiting} bytes of the tenant {tenant} wait already, at most {self._waiting_bytes_max} may")
                account.waiting += size
                account.balance -= size
                own += size

        self._check_rate(tenant)
        try:
            yield charge
        finally:
            with self._lock:
                self._account(tenant).waiting -= own

    def check_names(self, tenant: str, names: Iterable[int]) -> None:
        """Note the hashes of a request's names; refuse it when the tenant has brought too many in this hour."""
        with self._lock:
            account, now = self._account(tenant), self._clock()
            if account.hour != now // _HOUR_S:
                account.hour, account.names = int(now // _HOUR_S), set()
            both = account.names.union(names)
            # The first request of an hour passes, however many it brings: it would be refused for ever.
            if account.names and len(both) > max(self._names_max, len(account.names)):
                raise Overloaded(
                    f"the tenant {tenant} has brought {len(both)} names in this hour, at most {self._names_max} may be: does a route, a "
                    "model or a metric's attribute hold an id?",
                    min(_RETRY_AFTER_S_MAX, math.ceil(_HOUR_S - now % _HOUR_S)),
                )
            account.names = both

    def _check_rate(self, tenant: str) -> None:
        if not self._bytes_per_s:
            return
        with self._lock:
            balance = self._account(tenant).balance
        if balance < 0:
            wait = min(_RETRY_AFTER_S_MAX, math.ceil(-balance / self._bytes_per_s))
            raise Overloaded(f"the tenant {tenant} sends more than {self._bytes_per_s} bytes a second", wait)

    def _account(self, tenant: str) -> _Account:
        """The tenant's account as it is now. Tenants come from tokens, so there are as many as somebody made."""
        now, full = self._clock(), self._bytes_per_s * _BURST_S
        account = self._accounts.setdefault(tenant, _Account(full, now))
        account.balance = min(full, account.balance + (now - account.at) * self._bytes_per_s)
        account.at = now
        return account
