"""The read endpoint: the part of ClickHouse's HTTP interface that its clients need, and ``/slo``.

The guard (``sql_guard``) checks each statement, which then runs on a read-only handle with fixed limits. A reader can therefore change
neither data nor limits: settings in the URL are ignored, and GET and POST behave the same. Without tokens and password only requests to
loopback names are accepted; no reply may be read by a web page of another origin. A tenant's reader gets a handle that returns only the
tenant's rows. This module writes nothing and caches no result.
"""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, Protocol

import anyio.to_thread
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from legato_ingest.auth.authenticate import Authenticator
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import BadRequest, Denied, StoreError
from legato_ingest.metrics import Metrics
from legato_ingest.query.clickhouse_http import ReadRequest, has_foreign_origin, is_local, read_request
from legato_ingest.query.sql_guard import Guard, bound
from legato_ingest.settings import Settings

__all__ = ["QueryStore", "create_app"]

_ERROR_CODE = re.compile(r"Code: (\d+)")
# As in ClickHouse: 400 for a mistake in the statement, 404 for a missing table, column or function, 403 for a denied one. All others are
# 500, because drivers repeat a request after 503 and 504, which a heavy query must not be.
_STATUS = {
    497: 403, 164: 403, 516: 403,
    6: 400, 26: 400, 27: 400, 36: 400, 38: 400, 41: 400, 42: 400, 43: 400, 53: 400, 62: 400, 456: 400, 457: 400,
    46: 404, 47: 404, 60: 404, 73: 404, 81: 404, 115: 404,
}  # fmt: skip
_AUTHENTICATION_FAILED = 516
_TOO_MANY_SIMULTANEOUS_QUERIES = 202
_PLAIN = "text/plain; charset=utf-8"
_TYPES = {
    "JSON": "application/json; charset=utf-8", "JSONCompact": "application/json; charset=utf-8",
    "JSONEachRow": "application/x-ndjson; charset=utf-8", "CSV": "text/csv; charset=utf-8", "CSVWithNames": "text/csv; charset=utf-8",
    "TabSeparated": "text/tab-separated-values; charset=utf-8",
}  # fmt: skip
# The first statement of clickhouse-go. The reply is one block at the protocol's revision; the revision 0 inside makes the driver read every
# later block as plain Native, the format that the engine writes.
_GO_HELLO = "SELECT displayName(), version(), revision(), timezone()"


class QueryStore(Protocol):
    """The part of a store that the read endpoint uses."""

    def query_bytes(self, sql: str, params: Any = None, fmt: str = "TabSeparated", tenant: str = ALL_TENANTS) -> bytes:
        """Return the result of a statement in a format, from a handle that cannot write and returns only this tenant's rows."""
        ...


Handler = Callable[[Request, str], Awaitable[Response]]


def create_app(settings: Settings, store: QueryStore, metrics: Metrics) -> FastAPI:
    """Return the app of the read port."""
    app = FastAPI(title="Legato read", docs_url=None, redoc_url=None, openapi_url=None)
    endpoint = _Endpoint(settings, store, metrics)
    app.add_api_route("/ping", endpoint.open(_ping), methods=["GET"], response_model=None)
    app.add_api_route("/slo", endpoint.authenticated(endpoint.slo), methods=["GET"], response_model=None)
    app.add_api_route("/", endpoint.authenticated(endpoint.answer), methods=["GET", "POST"], response_model=None)
    return app


async def _ping(request: Request, tenant: str) -> Response:
    return Response("Ok.\n", media_type=_PLAIN)


class _Endpoint:
    """The handlers of one app and what they share: the guard, the credentials, and the limits on concurrent queries."""

    def __init__(self, settings: Settings, store: QueryStore, metrics: Metrics) -> None:
        self._settings, self._store, self._metrics = settings, store, metrics
        self._authenticator = Authenticator(settings)
        own = settings.server.database if settings.server else "default"
        self._guard = Guard(lambda sql, parameters: store.query_bytes(sql, parameters, "TabSeparatedRaw"), own)
        self._running = anyio.CapacityLimiter(settings.queries_max)
        self._admitted = 0
        self._timezone = lru_cache(maxsize=1)(lambda: store.query_bytes("SELECT timezone()").decode().strip())

    def open(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """A handler that needs no credentials: its reply contains no data."""
        return self._guarded(handler, lambda request: "")

    def authenticated(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """A handler that receives the tenant that the request's credentials read as."""
        return self._guarded(handler, self._authenticator.reader)

    async def slo(self, request: Request, tenant: str) -> Response:
        """The SLO's limits and the stall threshold of this server, in ms."""
        settings = self._settings
        limits = {"gap_ms": settings.slo_gap_ms, "first_output_ms": settings.slo_first_output_ms, "stall_ms": settings.stall_ms}
        return JSONResponse(limits, headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"})

    async def answer(self, request: Request, tenant: str) -> Response:
        """Run one statement."""
        read = await read_request(request)
        if read.sql.strip():
            response = await self._run(read, tenant)
        else:
            response = Response("Ok.\n", media_type=_PLAIN)
        self._metrics.queries.labels("ok").inc()
        return response

    async def _run(self, read: ReadRequest, tenant: str) -> Response:
        # Counted between two awaits: a request enters the limiter's own queue only after it has yielded to requests that would pass too.
        queries_max, waiting_max = self._settings.queries_max, self._settings.queries_waiting_max
        if self._admitted >= queries_max + waiting_max:
            raise BadRequest(f"{queries_max} queries run and {waiting_max} wait: retry in {self._settings.retry_after_s} s", 503)
        self._admitted += 1
        started = time.perf_counter()
        try:
            result, chosen, zone = await anyio.to_thread.run_sync(self._work, read, tenant, limiter=self._running)
        finally:
            self._admitted -= 1
        self._metrics.query_seconds.observe(time.perf_counter() - started)
        return _reply(read, result, chosen, zone)

    def _work(self, read: ReadRequest, tenant: str) -> tuple[bytes, str, str]:
        """Check and run a statement, in a thread: the result, its format, and the store's time zone."""
        if read.sql.strip().rstrip(";") == _GO_HELLO and read.default_format == "Native":
            return _hello(self._store), "Native", self._timezone()
        statement = self._guard.check(read.sql, read.parameters)
        chosen = statement.format or read.default_format
        result = self._store.query_bytes(statement.sql, bound(statement, read.parameters), chosen, tenant)
        return result, chosen, self._timezone()

    def _guarded(self, handler: Handler, tenant_of: Callable[[Request], str]) -> Callable[[Request], Awaitable[Response]]:
        """The handler behind the checks of Host, Origin and credentials; every failure is counted and replied in ClickHouse's form."""

        async def guarded(request: Request) -> Response:
            try:
                foreign = _foreign(request, self._settings.read_host, self._authenticator)
                if foreign is not None:
                    self._metrics.queries.labels("foreign").inc()
                    return foreign
                return await handler(request, tenant_of(request))
            except Denied as error:
                self._metrics.queries.labels("denied").inc()
                return _error(str(error), 403, code=_AUTHENTICATION_FAILED)
            except BadRequest as error:
                busy = error.status == 503
                self._metrics.queries.labels("busy" if busy else "error").inc()
                headers = {"Retry-After": str(self._settings.retry_after_s)} if busy else None
                return _error(str(error), error.status, headers, _TOO_MANY_SIMULTANEOUS_QUERIES if busy else 0)
            except StoreError as error:
                self._metrics.queries.labels("error").inc()
                return _store_error(error)

        return guarded


def _foreign(request: Request, host: str, authenticator: Authenticator) -> Response | None:
    """The refusal for a web page of another origin and for a foreign name that resolves to this host; None for all other requests."""
    if not authenticator.guards_reading and not is_local(request, host):
        message = "the Host (or Origin) is not a loopback name; use http://127.0.0.1 or http://localhost\n"
        return Response(message, 403, media_type=_PLAIN)
    if has_foreign_origin(request, host):
        return Response("the Origin is not a loopback name: web pages of other sites may not query\n", 403, media_type=_PLAIN)
    return None


def _reply(read: ReadRequest, result: bytes, chosen: str, zone: str) -> Response:
    headers = {
        "X-ClickHouse-Format": chosen,
        "X-ClickHouse-Timezone": zone,
        "X-ClickHouse-Server-Display-Name": "legato",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    if read.query_id:
        headers["X-ClickHouse-Query-Id"] = read.query_id
    if read.gzip:
        headers["Content-Encoding"] = "gzip"
        result = gzip.compress(result, 1)
    return Response(result, 200, headers, media_type=_TYPES.get(chosen, "application/octet-stream"))


def _store_error(error: StoreError) -> Response:
    found = _ERROR_CODE.search(str(error))
    code = error.code or (int(found.group(1)) if found else 0)
    return _error(str(error), _STATUS.get(code, 500), {}, code)


def _error(message: str, status: int, headers: dict[str, str] | None = None, code: int = 0) -> Response:
    found = _ERROR_CODE.search(message)
    code = code or (int(found.group(1)) if found else 0)
    if not found:
        message = f"Code: {code}. DB::Exception: {message}"
    return Response(message.strip() + "\n", status, {"X-ClickHouse-Exception-Code": str(code), **(headers or {})}, media_type=_PLAIN)


def _hello(store: QueryStore) -> bytes:
    """One Native block at revision 54460: BlockInfo, then name, type, no custom serialisation and one value for each column."""
    version, timezone = store.query_bytes("SELECT version(), timezone()").decode().rstrip("\n").split("\t")

    def text(value: str) -> bytes:
        raw = value.encode()
        return bytes([len(raw)]) + raw

    columns = (("displayName()", "legato"), ("version()", version), ("revision()", None), ("timezone()", timezone))
    block = b"\x01\x00\x02\xff\xff\xff\xff\x00" + bytes([len(columns), 1])
    for name, value in columns:
        block += text(name) + text("UInt32" if value is None else "String") + b"\x00"
        block += bytes(4) if value is None else text(value)
    return block
