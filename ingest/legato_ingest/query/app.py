"""The read endpoint: the part of ClickHouse's HTTP interface that its clients need, and ``/slo``.

The guard (``sql_guard``) checks each statement, which then runs on a read-only handle with fixed limits. A reader can therefore change
neither data nor limits: settings in the URL are ignored, and GET and POST behave the same. Without tokens and password only requests to
loopback names are accepted; no reply may be read by a web page of another origin. A tenant's reader gets a handle that returns only the
tenant's rows. This module writes nothing and caches no result.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from legato_ingest.auth.authenticate import Authenticator
from legato_ingest.errors import BadRequest, Denied, StoreError, StoreRestarting, release
from legato_ingest.metrics import Metrics
from legato_ingest.query.clickhouse_http import ReadRequest, foreign, read_request
from legato_ingest.query.reads import Reads, Result, compressed
from legato_ingest.replies import reads_as
from legato_ingest.settings import Settings

__all__ = ["create_app", "status_of"]

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


Handler = Callable[[Request, str], Awaitable[Response]]


def create_app(settings: Settings, reads: Reads, metrics: Metrics) -> FastAPI:
    """Return the app of the read port."""
    app = FastAPI(title="Legato read", docs_url=None, redoc_url=None, openapi_url=None)
    endpoint = _Endpoint(settings, reads, metrics)
    app.add_api_route("/ping", endpoint.open(_ping), methods=["GET"], response_model=None)
    app.add_api_route("/slo", endpoint.authenticated(endpoint.slo), methods=["GET"], response_model=None)
    app.add_api_route("/", endpoint.authenticated(endpoint.answer), methods=["GET", "POST"], response_model=None)
    return app


async def _ping(request: Request, tenant: str) -> Response:
    return Response("Ok.\n", media_type=_PLAIN)


class _Endpoint:
    """The handlers of one app and what they share: the statements of readers, and the credentials."""

    def __init__(self, settings: Settings, reads: Reads, metrics: Metrics) -> None:
        self._settings, self._reads, self._metrics = settings, reads, metrics
        self._authenticator = Authenticator(settings)

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
        if read.sql.strip().rstrip(";") == _GO_HELLO and read.default_format == "Native":
            hello = partial(_hello, self._reads)
            return _reply(read, await self._reads.limited(partial(compressed, hello) if read.gzip else hello, tenant))
        return _reply(read, await self._reads.run(read.sql, read.parameters, read.default_format, tenant, is_compressed=read.gzip))

    def _guarded(self, handler: Handler, tenant_of: Callable[[Request], str]) -> Callable[[Request], Awaitable[Response]]:
        """The handler behind the checks of Host, Origin and credentials; every failure is counted and replied in ClickHouse's form."""

        async def guarded(request: Request) -> Response:
            try:
                refusal = foreign(request, self._settings.read_host, self._authenticator.guards_reading)
                if refusal:
                    self._metrics.queries.labels("foreign").inc()
                    return Response(refusal + "\n", 403, media_type=_PLAIN)
                tenant = tenant_of(request)
                if tenant:
                    reads_as(request.scope, tenant)
                return await handler(request, tenant)
            except (BadRequest, StoreError) as error:
                response = self._failed(error)
                release(error)
                return response

        return guarded

    def _failed(self, error: BadRequest | StoreError) -> Response:
        """Count a query that failed, and return the response."""
        if isinstance(error, Denied):
            self._metrics.queries.labels("denied").inc()
            return _error(str(error), 403, code=_AUTHENTICATION_FAILED)
        if isinstance(error, BadRequest):
            busy = error.status == 503
            self._metrics.queries.labels("busy" if busy else "error").inc()
            headers = {"Retry-After": str(self._settings.retry_after_s)} if busy else None
            return _error(str(error), error.status, headers, _TOO_MANY_SIMULTANEOUS_QUERIES if busy else 0)
        self._metrics.queries.labels("error").inc()
        return _store_error(error)


def _reply(read: ReadRequest, result: Result) -> Response:
    headers = {
        "X-ClickHouse-Format": result.format,
        "X-ClickHouse-Timezone": result.zone,
        "X-ClickHouse-Server-Display-Name": "legato",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    if read.query_id:
        headers["X-ClickHouse-Query-Id"] = read.query_id
    if read.gzip:
        headers["Content-Encoding"] = "gzip"
    return Response(result.content, 200, headers, media_type=_TYPES.get(result.format, "application/octet-stream"))


def status_of(error: StoreError) -> tuple[int, int]:
    """Return the HTTP status and ClickHouse's code of an error; the code is 0 if it is not known."""
    found = _ERROR_CODE.search(str(error))
    code = error.code or (int(found.group(1)) if found else 0)
    return 503 if isinstance(error, StoreRestarting) else _STATUS.get(code, 500), code


def _store_error(error: StoreError) -> Response:
    status, code = status_of(error)
    return _error(str(error), status, {"Retry-After": "1"} if status == 503 else {}, code)


def _error(message: str, status: int, headers: dict[str, str] | None = None, code: int = 0) -> Response:
    found = _ERROR_CODE.search(message)
    code = code or (int(found.group(1)) if found else 0)
    if not found:
        message = f"Code: {code}. DB::Exception: {message}"
    return Response(message.strip() + "\n", status, {"X-ClickHouse-Exception-Code": str(code), **(headers or {})}, media_type=_PLAIN)


def _hello(reads: Reads) -> Result:
    """One Native block at revision 54460: BlockInfo, then name, type, no custom serialisation and one value for each column."""
    version, timezone = reads.store.query_bytes("SELECT version(), timezone()").decode().rstrip("\n").split("\t")

    def text(value: str) -> bytes:
        raw = value.encode()
        return bytes([len(raw)]) + raw

    columns = (("displayName()", "legato"), ("version()", version), ("revision()", None), ("timezone()", timezone))
    block = b"\x01\x00\x02\xff\xff\xff\xff\x00" + bytes([len(columns), 1])
    for name, value in columns:
        block += text(name) + text("UInt32" if value is None else "String") + b"\x00"
        block += bytes(4) if value is None else text(value)
    return Result(block, "Native", timezone)
