"""What is known of statements that ended the process of the store, and which statements are therefore refused.

A reader with a statement that goes beyond all limits stops all queries for a second or two. So a statement that did so twice is refused; a
tenant with several such statements may only repeat what was answered before, as its dashboards do, and with still more of them nothing.
Where statements of several tenants ran, nothing says which one was the cause: then these tenants are under suspicion for a while, and their
statements run one at a time, so that the next end has a known cause. The module runs no statement.
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

# How long an end counts, and how long a tenant is under suspicion that was one of several. A dashboard repeats its statements every few
# seconds. Several statements of one tenant that end within so long end with one process.
_SECONDS, _SUSPECTED_S, _ONE_END_S = 600.0, 60.0, 1.0
# So many ends: of a statement, after which it is refused; of a tenant, after which new statements are refused, and all.
_OF_STATEMENT, _NEW_OF_TENANT, _ALL_OF_TENANT = 2, 3, 6
# Statements that ended the process, and those of a tenant that were answered; the oldest are forgotten.
_ENDED_MAX, _ANSWERED_MAX = 256, 2_048
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
        self._answered: dict[str, OrderedDict[str, None]] = {}
        # When they ended the process, the last times.
        self._of_statement = OrderedDict[_Key, list[float]]()
        self._of_tenant: dict[str, list[float]] = {}
        # Since when, and until when, a tenant is under suspicion.
        self._suspected: dict[str, tuple[float, float]] = {}

    def is_suspect(self, tenant: str) -> bool:
        """Return whether the tenant is under suspicion: the statements of all such tenants have to run one at a time."""
        return self._suspected.get(tenant, _NEVER)[1] > time.monotonic()

    def expect_allowed(self, tenant: str, form: str) -> None:
        """Raise ``StoreRefused`` if the statement is refused."""
        with self._lock:
            of_tenant = _recent(self._of_tenant.get(tenant, []))
            if of_tenant >= _ALL_OF_TENANT:
                raise _refused(f"queries took too much time or memory {of_tenant} times within 10 minutes")
            if _recent(self._of_statement.get((tenant, form), [])) >= _OF_STATEMENT:
                raise _refused("this query took too much time or memory twice")
            if of_tenant >= _NEW_OF_TENANT and form not in self._answered.get(tenant, ()):
                raise _refused(f"queries took too much time or memory {of_tenant} times within 10 minutes, and this one is new")

    def answered(self, tenant: str, form: str) -> None:
        """Take note that the statement was answered."""
        with self._lock:
            own = self._answered.setdefault(tenant, OrderedDict())
            own[form] = None
            own.move_to_end(form)
            if len(own) > _ANSWERED_MAX:
                own.popitem(last=False)

    def ended(self, tenant: str, form: str, tenants: Collection[str], *, is_alone: bool) -> None:
        """Take note that the process ended during the statement. ``tenants``: those with statements that ran; ``is_alone``: it was this one
        alone, and none of Legato either."""
        with self._lock:
            if is_alone:
                self._charge_statement(tenant, form)
                self._charge(tenant)
            else:
                self._suspect(tenant, tenants)

    def crashed(self, tenant: str, form: str, tenants: Collection[str], *, is_alone: bool, is_fault: bool) -> None:
        """Take note that the process crashed during the statement; ``is_fault``: by a fault of the engine, and not from outside."""
        if is_fault:
            self.ended(tenant, form, tenants, is_alone=is_alone)

    def _suspect(self, tenant: str, tenants: Collection[str]) -> None:
        """Charge a tenant under suspicion if only its statements ran; put a tenant under suspicion that was not.

        Suspects never run together. So where a suspect ran beside other tenants, one of these is probably the cause, and they stay under
        suspicion for longer.
        """
        before_s = time.monotonic() - _ONE_END_S
        suspects = {each for each in tenants if self.is_suspect(each) and self._suspected[each][0] < before_s}
        is_only = set(tenants) <= {tenant}
        if is_only and tenant in suspects:
            self._charge(tenant)
        elif tenant not in suspects:
            self._begin_suspicion(tenant, _SECONDS if is_only or suspects else _SUSPECTED_S)

    def _begin_suspicion(self, tenant: str, seconds: float) -> None:
        """Begin or prolong it. What begins again soon lasts long."""
        now_s = time.monotonic()
        since_s, until_s = self._suspected.get(tenant, _NEVER)
        if until_s <= now_s:
            seconds, since_s = (_SECONDS if now_s - since_s < _SECONDS else seconds), now_s
        self._suspected[tenant] = since_s, max(until_s, now_s + seconds)

    def _charge_statement(self, tenant: str, form: str) -> None:
        self._answered.get(tenant, OrderedDict()).pop(form, None)
        times_s = self._of_statement.pop((tenant, form), [])
        self._of_statement[tenant, form] = [*times_s[1 - _OF_STATEMENT :], time.monotonic()]
        if len(self._of_statement) > _ENDED_MAX:
            self._of_statement.popitem(last=False)

    def _charge(self, tenant: str) -> None:
        times_s, now_s = self._of_tenant.get(tenant, []), time.monotonic()
        if not times_s or now_s - times_s[-1] > _ONE_END_S:
            self._of_tenant[tenant] = [*times_s[1 - _ALL_OF_TENANT :], now_s]


def _recent(times_s: list[float]) -> int:
    now_s = time.monotonic()
    return sum(now_s - at_s < _SECONDS for at_s in times_s)


def _refused(why: str) -> StoreRefused:
    return StoreRefused(
        f"Code: {_QUERY_REFUSED}. DB::Exception: {why}: choose a shorter range, or smaller arguments, or retry in "
        f"{_SECONDS / 60:.0f} minutes",
        _QUERY_REFUSED,
    )
