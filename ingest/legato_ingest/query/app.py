"""The read-only door: enough of ClickHouse's HTTP interface for its clients.

One idea: a statement is judged by `sql_guard`, then run on a read-only handle with fixed limits, so a reader can change neither data nor
limits: settings in the URL are ignored, GET and POST are the same. Only loopback names may ask, or whoever gives a token or the password
where there are any, and no answer may be read by a page of another origin. A tenant's reader gets a handle that sees this tenant's rows
alone. It writes nothing and caches no result.
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

from legato_ingest.auth.authenticate import Gate
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import BadRequest, Denied, StoreError
from legato_ingest.metrics import Metrics
from legato_ingest.query.clickhouse_http import Question, has_foreign_origin, is_local, question_of
from legato_ingest.query.sql_guard import Guard, bound
from legato_ingest.settings import Settings

__all__ = ["Answers", "create_app"]

_ERROR_CODE = re.compile(r"Code: (\d+)")
# As ClickHouse answers: what the asker got wrong is 400, what is not there 404. Everything else is 500: 503 and 504 would make drivers
# ask a heavy question again.
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
# The statement that clickhouse-go asks first. Its answer is one block at the protocol's revision; the revision 0 in it makes the driver
# read every later block as plain Native, which is what the engine writes.
_GO_HELLO = "SELECT displayName(), version(), revision(), timezone()"


class Answers(Protocol):
    """What this module needs of a store."""

    def query_bytes(self, sql: str, params: Any = None, fmt: str = "TabSeparated", tenant: str = ALL_TENANTS) -> bytes:
        """The result of a statement in a format, on a handle that cannot write and sees this tenant's rows alone."""
        ...


def create_app(settings: Settings, store: Answers, metrics: Metrics) -> FastAPI:
    """The app of the read port."""
    app = FastAPI(title="Legato read", docs_url=None, redoc_url=None, openapi_url=None)
    gate = Gate(settings)
    own = settings.server.database if settings.server else "default"
    guard = Guard(lambda sql, parameters: store.query_bytes(sql, parameters, "TabSeparatedRaw"), own)
    running = anyio.CapacityLimiter(settings.queries_max)
    admitted = 0

    @lru_cache(maxsize=1)
    def timezone() -> str:
        return store.query_bytes("SELECT timezone()").decode().strip()

    def work(question: Question, tenant: str) -> tuple[bytes, str, str]:
        if question.sql.strip().rstrip(";") == _GO_HELLO and question.default_format == "Native":
            return _hello(store), "Native", timezone()
        statement = guard.check(question.sql, question.parameters)
        chosen = statement.format or question.default_format
        return store.query_bytes(statement.sql, bound(statement, question.parameters), chosen, tenant), chosen, timezone()

    async def answer(request: Request, tenant: str) -> Response:
        question = await question_of(request)
        if not question.sql.strip():
            return Response("Ok.\n", media_type=_PLAIN)
        # Counted here, between two awaits: the limiter's own queue is entered only after it has yielded to others that would pass too.
        nonlocal admitted
        if admitted >= settings.queries_max + settings.queries_waiting_max:
            running_and_waiting = f"{settings.queries_max} queries run and {settings.queries_waiting_max} wait"
            raise BadRequest(f"{running_and_waiting}: ask again in {settings.retry_after_s} s", 503)
        admitted += 1
        started = time.perf_counter()
        try:
            result, chosen, zone = await anyio.to_thread.run_sync(work, question, tenant, limiter=running)
        finally:
            admitted -= 1
        metrics.query_seconds.observe(time.perf_counter() - started)
        return _reply(question, result, chosen, zone)

    async def ping(request: Request, tenant: str) -> Response:
        return Response("Ok.\n", media_type=_PLAIN)

    app.add_api_route("/ping", _guarded(ping, settings, gate, metrics), methods=["GET"], response_model=None)
    app.add_api_route("/", _guarded(answer, settings, gate, metrics, "ok"), methods=["GET", "POST"], response_model=None)
    return app


Handler = Callable[[Request, str], Awaitable[Response]]


def _guarded(
    handler: Handler, settings: Settings, gate: Gate, metrics: Metrics, counted: str = ""
) -> Callable[[Request], Awaitable[Response]]:
    """The handler behind the check of who asks; every refusal is counted and answered in ClickHouse's words."""

    async def guarded(request: Request) -> Response:
        try:
            foreign = _foreign(request, settings.read_host, gate)
            if foreign is not None:
                metrics.queries.labels("foreign").inc()
                return foreign
            # A ping tells nothing, so health checks need no token.
            response = await handler(request, gate.reader(request) if counted else "")
        except Denied as error:
            metrics.queries.labels("denied").inc()
            return _error(str(error), 403, code=_AUTHENTICATION_FAILED)
        except BadRequest as error:
            busy = error.status == 503
            metrics.queries.labels("busy" if busy else "error").inc()
            headers = {"Retry-After": str(settings.retry_after_s)} if busy else None
            return _error(str(error), error.status, headers, _TOO_MANY_SIMULTANEOUS_QUERIES if busy else 0)
        except StoreError as error:
            metrics.queries.labels("error").inc()
            return _store_error(error)
        if counted:
            metrics.queries.labels(counted).inc()
        return response

    return guarded


def _foreign(request: Request, host: str, gate: Gate) -> Response | None:
    """The refusal of a page that was served by somebody else, and of a name that was bent to this host."""
    if not gate.guards_reading and not is_local(request, host):
        words = "the Host (or Origin) is no loopback name; use http://127.0.0.1 or http://localhost\n"
        return Response(words, 403, media_type=_PLAIN)
    if has_foreign_origin(request, host):
        return Response("the Origin is no loopback name: pages of other sites may not ask\n", 403, media_type=_PLAIN)
    return None


def _reply(question: Question, result: bytes, chosen: str, zone: str) -> Response:
    headers = {
        "X-ClickHouse-Format": chosen,
        "X-ClickHouse-Timezone": zone,
        "X-ClickHouse-Server-Display-Name": "legato",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    if question.query_id:
        headers["X-ClickHouse-Query-Id"] = question.query_id
    if question.gzip:
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


def _hello(store: Answers) -> bytes:
    """One Native block at revision 54460: BlockInfo, then name, type, no custom serialisation and one value a column."""
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
