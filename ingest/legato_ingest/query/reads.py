"""Runs the statements of readers: checked by the guard, on a read-only handle, with limits on how many run and wait.

The read endpoint and the web page share one ``Reads``, so that both have the same limits. It checks no credentials: a caller passes the
tenant that the request reads as.
"""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol, TypeVar

import anyio.to_thread

from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import BadRequest, QueryEnded, StoreRefused, StoreRestarting
from legato_ingest.metrics import Metrics
from legato_ingest.query.clickhouse_http import Encoded
from legato_ingest.query.ended_queries import EndedQueries, form_of
from legato_ingest.query.row_counts import without_rows_before_limit
from legato_ingest.query.sql_guard import Guard, bound
from legato_ingest.query.sql_text import CanonicalText, check_format
from legato_ingest.query.turns import Turns
from legato_ingest.quoting import Value, parameter
from legato_ingest.settings import Settings

__all__ = ["QueryStore", "Reads", "Result", "Run", "compressed", "content_of"]

Run = Callable[[str, Mapping[str, Value]], list[dict[str, Any]]]
"""Returns the rows of a statement, each by column name; values are bound to the statement's parameters."""
Out = TypeVar("Out")
# A statement counts as one for so many characters of its text and its parameters, so that those that wait take a bounded amount of memory.
_LENGTH_OF_ONE = 65_536
# Bytes of JSON of one statement of a page. As Python's objects they take eight times as much.
_PAGE_ROWS_BYTES_MAX = 32 * 2**20
# While statements of tenants under suspicion run alone, the others may wait for so many times the time of a statement.
_SUSPECT_TIMES = 4
# Codes of statements that would read or return too much: without the key they read more.
_TOO_MUCH = frozenset((158, 160, 307, 396))


def _settled(tenant: str, stale_max_s: float) -> Callable[[], None]:
    """Return a function that waits for nothing: every acknowledged row is in the store."""
    return lambda: None


def compressed(work: Callable[[], Result]) -> Result:
    """Return the result of ``work`` with gzip, in the thread of the work: megabytes take most of a second."""
    result = work()
    return result._replace(content=gzip.compress(result.content, 1))


class QueryStore(Protocol):
    """The part of a store that readers use."""

    def query_bytes(self, sql: str, params: Any = None, fmt: str = "TabSeparated", tenant: str = ALL_TENANTS) -> bytes:
        """Return the result of a statement in a format, from a handle that cannot write and returns only this tenant's rows."""
        ...


class Result(NamedTuple):
    """The result of a statement, its format, and the store's time zone."""

    content: bytes
    format: str
    zone: str


def content_of(store: QueryStore, statement: CanonicalText, values: Mapping[str, Any], chosen: str, tenant: str) -> bytes:
    """Run a checked statement. If it fails with the conditions for the primary key, the one without them gives the result, or the error."""
    try:
        return store.query_bytes(statement.sql, values, chosen, tenant)
    except StoreRefused as error:
        if statement.without_key is None or error.code in _TOO_MUCH:
            raise
    return store.query_bytes(statement.without_key, values, chosen, tenant)


class Reads:
    """The statements of all readers of one store.

    A reader sees its tenant's rows of all requests that were acknowledged before, or ``stale_max_s`` earlier. ``begin_settling`` asks for
    their insert when a query arrives, so that it is done when the query's turn comes, and returns the function that waits for it.
    """

    def __init__(
        self, settings: Settings, store: QueryStore, metrics: Metrics, begin_settling: Callable[[str, float], Callable[[], None]] = _settled
    ) -> None:
        self._settings, self._metrics, self.store, self._begin_settling = settings, metrics, store, begin_settling
        own = settings.server.database if settings.server else "default"
        # The guard's statements read no table, so most statements of a tenant need one client.
        self._guard = Guard(lambda sql, parameters, tenant: store.query_bytes(sql, parameters, "TabSeparatedRaw", tenant), own)
        self._settling, self._running = anyio.CapacityLimiter(settings.queries_max), anyio.CapacityLimiter(settings.queries_max)
        # How many statements of each tenant run or wait; a tenant has half of the places that the others leave at most.
        self._admitted = Counter[str]()
        self._ended, self._turns = EndedQueries(), Turns(settings.queries_max)
        # A place to run is always left for other tenants: a tenant's further statements wait for its own.
        self._of_tenant: dict[str, anyio.CapacityLimiter] = {}
        self.timezone = lru_cache(maxsize=1)(lambda: store.query_bytes("SELECT timezone()").decode().strip())

    async def run(
        self,
        sql: str,
        parameters: Mapping[str, Any],
        default_format: str,
        tenant: str,
        *,
        is_compressed: bool = False,
        stale_max_s: float = 0.0,
    ) -> Result:
        """Check and run one statement, and compress its result if asked. Raises ``BadRequest`` (503: too many) or ``StoreError``."""
        count = 1 + (len(sql) + sum(len(str(value)) for value in parameters.values())) // _LENGTH_OF_ONE
        work = partial(self._work, sql, parameters, default_format, tenant)
        return await self.limited(partial(compressed, work) if is_compressed else work, tenant, count, stale_max_s)

    async def view(self, work: Callable[[Run], Out], tenant: str) -> Out:
        """Return the result of ``work``, which runs several statements one after another: they count as one towards the limits.

        All of them together may take twice the time of one statement. Raises what ``run`` and ``work`` raise.
        """

        def timed() -> Out:
            until_s = time.monotonic() + 2 * self._settings.query_seconds_max
            return work(partial(self._rows, tenant, until_s))

        return await self.limited(timed, tenant)

    async def limited(self, work: Callable[[], Out], tenant: str, count: int = 1, stale_max_s: float = 0.0) -> Out:
        """Run ``work`` in a thread, counted as so many statements of the tenant. Raises ``BadRequest`` (status 503) beyond the limits on
        their number."""
        # Counted between two awaits: a request enters the limiter's own queue only after it has yielded to requests that would pass too.
        queries_max, waiting_max = self._settings.queries_max, self._settings.queries_waiting_max
        most, own, total = queries_max + waiting_max, self._admitted[tenant], self._admitted.total()
        if total >= most or (tenant != ALL_TENANTS and own and 2 * (own + count) > most - total + own):
            raise BadRequest(f"{queries_max} queries run and {waiting_max} wait: retry in {self._settings.retry_after_s} s", 503)
        self._admitted[tenant] += count
        started, settle = time.perf_counter(), self._begin_settling(tenant, stale_max_s)

        def settled() -> float:
            began = time.perf_counter()
            settle()
            return time.perf_counter() - began

        def in_time(settling_s: float) -> Out:
            waited_s = time.perf_counter() - started - settling_s
            if waited_s > self._settings.query_seconds_max * (_SUSPECT_TIMES if self._ended.has_suspects() else 1):
                # Its client has probably left; a page or Grafana would wait as long for the next one.
                raise BadRequest(f"this query waited for {waited_s:.0f} s: retry in {self._settings.retry_after_s} s", 503)
            return work()

        try:
            async with self._place(tenant):
                settling_s = await anyio.to_thread.run_sync(settled, limiter=self._settling)
                # Asked until its turn comes: tenants come under suspicion while their statements wait.
                async with self._turns.turn(tenant, partial(self._ended.is_suspect, tenant)):
                    result = await anyio.to_thread.run_sync(in_time, settling_s, limiter=self._running)
        finally:
            self._admitted[tenant] -= count
        self._metrics.query_seconds.observe(time.perf_counter() - started)
        return result

    def _place(self, tenant: str) -> anyio.CapacityLimiter:
        """Return what limits how many statements of a tenant run: all but one of the places, if there are other tenants.

        Of a tenant under suspicion it is two, one that runs alone and one that waits.
        """
        most = 2 if self._ended.is_suspect(tenant) else max(1, self._settings.queries_max - (tenant != ALL_TENANTS))
        place = self._of_tenant.setdefault(tenant, anyio.CapacityLimiter(most))
        place.total_tokens = most
        return place

    def _rows(self, tenant: str, until_s: float, sql: str, values: Mapping[str, Value]) -> list[dict[str, Any]]:
        if time.monotonic() > until_s:
            raise BadRequest(f"this page takes longer than {2 * self._settings.query_seconds_max} s: choose a shorter range")
        result = self._work(sql, {name: Encoded(parameter(value)) for name, value in values.items()}, "JSONEachRow", tenant)
        if len(result.content) > _PAGE_ROWS_BYTES_MAX:
            raise BadRequest(
                f"this page would read {len(result.content)} bytes of rows, at most {_PAGE_ROWS_BYTES_MAX} are read: use a query (SQL)"
            )
        return [json.loads(line) for line in result.content.splitlines()]

    def _work(self, sql: str, parameters: Mapping[str, Any], default_format: str, tenant: str) -> Result:
        form = form_of(sql)
        self._ended.expect_allowed(tenant, form)
        try:
            statement = self._guard.check(sql, parameters, tenant)
            chosen = statement.format or default_format
            check_format(chosen)
            content = content_of(self.store, statement, bound(statement, parameters), chosen, tenant)
            content = content if tenant == ALL_TENANTS else without_rows_before_limit(content, chosen)
        except QueryEnded as error:
            self._ended.ended(tenant, form, error.tenants, is_alone=error.is_alone)
            raise
        except StoreRestarting as error:
            self._ended.crashed(tenant, error.tenants, is_fault=error.is_fault)
            raise
        self._ended.answered(tenant, form)
        return Result(content, chosen, self.timezone())
