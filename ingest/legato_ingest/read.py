"""The read-only door: enough of ClickHouse's HTTP interface for its clients.

One idea: a statement is judged by `sql_guard`, then run on a read-only handle with fixed limits, so a reader can change neither data nor
limits. The Host header must be a loopback name: a web page that rebinds its own name to 127.0.0.1 gets nothing. It writes nothing and
caches no result.
"""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Mapping

import anyio
from fastapi import FastAPI, Request, Response

from legato_ingest.errors import StoreRefused, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.settings import Settings
from legato_ingest.sql_guard import Guard
from legato_ingest.store import Store

__all__ = ["create_app"]

_HOSTS = frozenset(("localhost", "127.0.0.1", "[::1]"))
_FORMAT_NAME = re.compile(r"\w{1,64}")
_ERROR_CODE = re.compile(r"Code: (\d+)")
_STATUS = {497: 403, 164: 403, 62: 400, 53: 400, 46: 404, 47: 404, 60: 404, 81: 404, 159: 504, 241: 507, 396: 413}
_PLAIN = "text/plain; charset=utf-8"
_TYPES = {"JSON": "application/json", "JSONCompact": "application/json", "CSV": "text/csv; charset=utf-8"}
# The statement that clickhouse-go asks first, and its answer at the protocol revision of that one reply: revision 0 makes the driver
# read every later block as plain Native, which is what the engine writes.
_GO_HELLO = "SELECT displayName(), version(), revision(), timezone()"


def create_app(settings: Settings, store: Store, metrics: Metrics) -> FastAPI:
    """The app of the read port."""
    app = FastAPI(title="Legato read", docs_url=None, redoc_url=None, openapi_url=None)
    guard = Guard(lambda sql, parameters: store.query_bytes(sql, parameters, "TabSeparatedRaw"))
    running = anyio.CapacityLimiter(settings.queries_max)

    def work(text: str, parameters: Mapping[str, str], default_format: str) -> tuple[bytes, str]:
        if text.strip().rstrip(";") == _GO_HELLO and default_format == "Native":
            return _hello(store), "Native"
        statement = guard.check(text, parameters)
        chosen = statement.format or default_format
        return store.query_bytes(statement.sql, parameters, chosen), chosen

    async def answer(request: Request) -> Response:
        if request.headers.get("host", "").rsplit(":", 1)[0] not in _HOSTS:
            return Response("the Host header is no loopback name\n", 403, media_type=_PLAIN)
        text = "\n".join(part for part in (request.query_params.get("query", ""), (await _body(request))) if part)
        if not text.strip():
            return Response("Ok.\n", media_type=_PLAIN)
        if running.borrowed_tokens >= settings.queries_max and running.statistics().tasks_waiting >= settings.queries_max:
            metrics.queries.labels("busy").inc()
            return Response("too many queries run already\n", 503, {"Retry-After": str(settings.retry_after_s)}, media_type=_PLAIN)
        default_format = request.headers.get("x-clickhouse-format") or request.query_params.get("default_format") or "TabSeparated"
        if not _FORMAT_NAME.fullmatch(default_format):
            return Response("no such format\n", 400, media_type=_PLAIN)
        started = time.perf_counter()
        try:
            result, chosen = await anyio.to_thread.run_sync(work, text, _parameters(request), default_format, limiter=running)
        except (StoreRefused, StoreUnavailable) as error:
            metrics.queries.labels("error").inc()
            return _error(error)
        metrics.queries.labels("ok").inc()
        metrics.query_seconds.observe(time.perf_counter() - started)
        return _reply(request, result, chosen)

    app.add_api_route("/", answer, methods=["GET", "POST"])

    @app.get("/ping")
    async def ping() -> Response:
        return Response("Ok.\n", media_type=_PLAIN)

    return app


async def _body(request: Request) -> str:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > 4 * 2**20:
            break
        parts.append(part)
    return b"".join(parts).decode("utf-8", "replace")


def _parameters(request: Request) -> dict[str, str]:
    """Bound parameters: ``param_name=value`` in the URL. All other parameters, settings among them, are ignored."""
    return {key.removeprefix("param_"): value for key, value in request.query_params.items() if key.startswith("param_")}


def _reply(request: Request, result: bytes, chosen: str) -> Response:
    headers = {"X-ClickHouse-Format": chosen, "X-ClickHouse-Timezone": "UTC", "X-ClickHouse-Server-Display-Name": "legato"}
    if "gzip" in request.headers.get("accept-encoding", "") and request.query_params.get("enable_http_compression") == "1":
        headers["Content-Encoding"] = "gzip"
        result = gzip.compress(result, 1)
    return Response(result, 200, headers, media_type=_TYPES.get(chosen, _PLAIN if chosen.startswith("Tab") else "application/octet-stream"))


def _error(error: StoreRefused | StoreUnavailable) -> Response:
    message = str(error).strip()
    found = _ERROR_CODE.search(message)
    code = error.code if isinstance(error, StoreRefused) and error.code else int(found.group(1)) if found else 0
    if not found:
        message = f"Code: {code}. DB::Exception: {message}"
    return Response(message + "\n", _STATUS.get(code, 500), {"X-ClickHouse-Exception-Code": str(code)}, media_type=_PLAIN)


def _hello(store: Store) -> bytes:
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
