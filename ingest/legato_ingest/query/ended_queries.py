"""What is known of statements that ended the process of the store, and which statements are therefore refused.

A reader with a statement that goes beyond all limits stops all queries for a second or two. So a statement that did so twice is refused; a
tenant with several such statements may only repeat what was answered before, as its dashboards do, and with still more of them nothing.
Where other statements ran beside, nothing says which one was the cause: then their tenants are under suspicion for a while. A statement of
such a tenant runs while no other reader's does (``turns``), so that the next end has a known cause. The module runs no statement.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Collection

from legato_ingest.errors import StoreRefused
from legato_ingest.query.sql_template import generalize

__all__ = ["EndedQueries", "form_of"]

# How long an end counts, and how long a tenant is under suspicion. Statements that end within so long end with one process.
_SECONDS, _ONE_END_S = 600.0, 1.0
# So many ends: of a statement, after which it is refused; of a tenant, after which new statements are refused, and all.
_OF_STATEMENT, _NEW_OF_TENANT, _ALL_OF_TENANT = 2, 3, 6
# Statements that ended the process, and those that were answered, of all tenants; the oldest are forgotten.
_ENDED_MAX, _ANSWERED_MAX = 256, 32_768
# Longer statements have no time range that is left out of their form.
_LENGTH_MAX = 65_536
# ClickHouse's code QUERY_IS_PROHIBITED.
_QUERY_REFUSED = 392

_NEVER = (float("-inf"), float("-inf"))
_Key = tuple[str, str]
"""The tenant and the form of a statement."""


def form_of(sql: str) -> str:
    """Return a digest of the statement without the numbers of a Grafana time range, as far as it has them."""
    general = generalize(sql) if len(sql) <= _LENGTH_MAX else None
    return hashlib.sha256((general.text if general is not None else sql).encode("utf-8", "replace")).hexdigest()


class EndedQueries:
    """The statements of all tenants. Several threads may use it at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered = OrderedDict[_Key, None]()
        # When they ended the process, the last times.
        self._of_statement = OrderedDict[_Key, list[float]]()
        self._of_tenant: dict[str, list[float]] = {}
        # Since when, and until when, a tenant is under suspicion.
        self._suspected: dict[str, tuple[float, float]] = {}

    def is_suspect(self, tenant: str) -> bool:
        """Return whether the tenant is under suspicion: each of its statements has to run beside no other reader's."""
        return self._suspected.get(tenant, _NEVER)[1] > time.monotonic()

    def has_suspects(self) -> bool:
        """Return whether any tenant is under suspicion."""
        with self._lock:
            return any(until_s > time.monotonic() for _, until_s in self._suspected.values())

    def expect_allowed(self, tenant: str, form: str) -> None:
        """Raise ``StoreRefused`` if the statement is refused."""
        with self._lock:
            of_tenant = _recent(self._of_tenant.get(tenant, []))
            if of_tenant >= _ALL_OF_TENANT:
                raise _refused(f"queries took too much time or memory {of_tenant} times within 10 minutes")
            if _recent(self._of_statement.get((tenant, form), [])) >= _OF_STATEMENT:
                raise _refused("this query took too much time or memory twice")
            if of_tenant >= _NEW_OF_TENANT and (tenant, form) not in self._answered:
                raise _refused(f"queries took too much time or memory {of_tenant} times within 10 minutes, and this one is new")

    def answered(self, tenant: str, form: str) -> None:
        """Take note that the statement was answered."""
        with self._lock:
            self._answered[tenant, form] = None
            self._answered.move_to_end((tenant, form))
            if len(self._answered) > _ANSWERED_MAX:
                self._answered.popitem(last=False)

    def ended(self, tenant: str, form: str, tenants: Collection[str], *, is_alone: bool) -> None:
        """Take note that the process ended during the statement. ``tenants``: those with statements that ran; ``is_alone``: it was this one
        alone, and none of Legato either."""
        with self._lock:
            if is_alone:
                self._charge_statement(tenant, form)
                self._charge(tenant)
            else:
                self._suspect(tenant, tenants)

    def crashed(self, tenant: str, tenants: Collection[str], *, is_fault: bool) -> None:
        """Take note that the process crashed during a statement; ``is_fault``: by a fault of the engine or for want of memory.

        The cause may also be work of the engine itself, such as a merge, so no tenant is charged for the first crash.
        """
        if is_fault:
            with self._lock:
                self._suspect(tenant, tenants)

    def _suspect(self, tenant: str, tenants: Collection[str]) -> None:
        """Charge a tenant under suspicion if no other tenant's statement ran; else begin or prolong the suspicion."""
        now_s = time.monotonic()
        since_s, until_s = self._suspected.get(tenant, _NEVER)
        if until_s <= now_s:
            since_s = now_s
        elif set(tenants) <= {tenant} and now_s - since_s > _ONE_END_S:
            self._charge(tenant, since_s)
        self._suspected[tenant] = since_s, now_s + _SECONDS

    def _charge_statement(self, tenant: str, form: str) -> None:
        self._answered.pop((tenant, form), None)
        times_s = self._of_statement.pop((tenant, form), [])
        self._of_statement[tenant, form] = [*times_s[1 - _OF_STATEMENT :], time.monotonic()]
        if len(self._of_statement) > _ENDED_MAX:
            self._of_statement.popitem(last=False)

    def _charge(self, tenant: str, suspected_s: float | None = None) -> None:
        """Charge a tenant with an end, and with the one that began the suspicion at ``suspected_s`` if it is the first."""
        now_s = time.monotonic()
        times_s = [at_s for at_s in self._of_tenant.get(tenant, []) if now_s - at_s < _SECONDS]
        if not times_s and suspected_s is not None:
            times_s = [suspected_s]
        if not times_s or now_s - times_s[-1] > _ONE_END_S:
            times_s = [*times_s[1 - _ALL_OF_TENANT :], now_s]
        self._of_tenant[tenant] = times_s


def _recent(times_s: list[float]) -> int:
    now_s = time.monotonic()
    return sum(now_s - at_s < _SECONDS for at_s in times_s)


def _refused(why: str) -> StoreRefused:
    return StoreRefused(
        f"Code: {_QUERY_REFUSED}. DB::Exception: {why}: change the query, for example to fewer rows or smaller "
        f"arguments, or retry in {_SECONDS / 60:.0f} minutes",
        _QUERY_REFUSED,
    )
