"""A test double of the part of Grafana's HTTP API that `legato dashboards` uses, with a real store behind its data source.

It answers with Grafana's status codes and messages, which are taken from Grafana's sources, and keeps the objects that a client creates.
Its ClickHouse plugin expands macros with `with_macros` and queries a real read endpoint. So tests need no Grafana.
"""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio.to_thread
import httpx
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from helpers.servers.serving import served
from legato_ingest.dashboards.macros import MacroError, Range, with_macros

__all__ = ["TOKEN", "USER", "GrafanaDouble", "grafana_double"]

TOKEN, USER = "glsa_only_for_tests", ("admin", "only for tests")
PLUGIN = "grafana-clickhouse-datasource"
_PATIENCE_S = 60


@dataclass
class GrafanaDouble:
    """The objects and requests that the double keeps, and its injected faults."""

    folders: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Any] = field(default_factory=dict)
    boards: dict[str, Any] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)
    queries: list[Any] = field(default_factory=list)
    # Injected faults: no plugin, paths with a fixed error, and an HTML page instead of JSON ("404" or another status).
    has_plugin: bool = True
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)
    page: str = ""
    # If set, every request waits for this event.
    stuck: threading.Event | None = None
    url: str = ""
    prefix: str = ""

    def path_of(self, board: Any) -> str:
        """The URL path of a dashboard."""
        return f"{self.prefix}/d/{board['uid']}/{board['title'].lower().replace(' ', '-')}"


@contextlib.contextmanager
def grafana_double(**given: Any) -> Iterator[GrafanaDouble]:
    """Run a double and yield it."""
    double = GrafanaDouble(**given)
    with served(_app(double)) as url:
        double.url = url + double.prefix
        yield double


def _message(status: int, message: str) -> JSONResponse:
    return JSONResponse({"message": message}, status)


def _authorized(request: Request) -> bool:
    basic = base64.b64encode(":".join(USER).encode()).decode()
    return request.headers.get("authorization") in (f"Bearer {TOKEN}", f"Basic {basic}")


def _app(double: GrafanaDouble) -> FastAPI:
    app = FastAPI(openapi_url=None)

    @app.middleware("http")
    async def intercept(request: Request, call_next: Any) -> Response:
        path = f"{request.method} {request.url.path.removeprefix(double.prefix)}"
        if double.stuck is not None:
            await anyio.to_thread.run_sync(double.stuck.wait, _PATIENCE_S)
        if double.page:
            return HTMLResponse("<!DOCTYPE html><html>nothing to see</html>", 404 if double.page == "404" else int(double.page))
        if not _authorized(request):
            return _message(401, "Invalid API key" if "authorization" in request.headers else "Unauthorized")
        if path in double.refused:
            return _message(*double.refused[path])
        if request.method != "GET" and not path.endswith("/ds/query"):
            double.writes.append(path)
        reply: Response = await call_next(request)
        return reply

    _folders(app, double)
    _sources(app, double)
    _boards(app, double)

    @app.post(f"{double.prefix}/api/ds/query")
    async def query(request: Request) -> JSONResponse:
        body = await request.json()
        double.queries.append(body)
        results = {one["refId"]: await _result(double, one, body) for one in body["queries"]}
        status = next((result["status"] for result in results.values() if "error" in result), 200)
        return JSONResponse({"results": results}, status)

    return app


def _folders(app: FastAPI, double: GrafanaDouble) -> None:
    @app.get(f"{double.prefix}/api/folders")
    def every() -> Any:
        return list(double.folders.values())

    @app.get(double.prefix + "/api/folders/{uid}")
    def one(uid: str) -> Any:
        return double.folders.get(uid) or _message(404, "folder not found")

    @app.post(f"{double.prefix}/api/folders")
    async def create(request: Request) -> Any:
        made = await request.json()
        made["url"] = f"{double.prefix}/dashboards/f/{made['uid']}/{made['title'].lower()}"
        double.folders[made["uid"]] = made
        return made


def _sources(app: FastAPI, double: GrafanaDouble) -> None:
    @app.get(double.prefix + "/api/datasources/uid/{uid}")
    def one(uid: str) -> Any:
        return double.sources.get(uid) or _message(404, "Data source not found")

    @app.post(f"{double.prefix}/api/datasources")
    async def create(request: Request) -> Any:
        made = await request.json()
        if any(made["name"] == each["name"] for each in double.sources.values()):
            return _message(409, "data source with the same name already exists")
        double.sources[made["uid"]] = made
        return {"datasource": made, "id": 1, "message": "Datasource added", "name": made["name"]}

    @app.get(double.prefix + "/api/datasources/uid/{uid}/health")
    async def health(uid: str) -> Any:
        if not double.has_plugin:
            return _message(500, "Unable to find datasource plugin")
        reply = await _queried(_where(double.sources[uid]), "SELECT 1")
        if isinstance(reply, str):
            return JSONResponse({"status": "ERROR", "message": reply}, 400)
        return {"status": "OK", "message": "Data source is working"}


def _boards(app: FastAPI, double: GrafanaDouble) -> None:
    @app.get(double.prefix + "/api/dashboards/uid/{uid}")
    def one(uid: str) -> Any:
        return double.boards.get(uid) or _message(404, "Dashboard not found")

    @app.post(f"{double.prefix}/api/dashboards/db")
    async def save(request: Request) -> Any:
        body = await request.json()
        board = body["dashboard"]
        existing = double.boards.get(board["uid"])
        if existing and existing["meta"].get("provisioned"):
            return _message(400, "Cannot save provisioned dashboard")
        if existing and not body.get("overwrite"):
            return JSONResponse({"message": "The dashboard has been changed by someone else", "status": "version-mismatch"}, 412)
        version = 1 + (existing["dashboard"]["version"] if existing else 0)
        meta = {"url": double.path_of(board), "folderUid": body["folderUid"], "provisioned": False}
        double.boards[board["uid"]] = {"dashboard": {**board, "id": len(double.boards) + 1, "version": version}, "meta": meta}
        return {"uid": board["uid"], "url": meta["url"], "status": "success", "version": version}


def _where(source: Any) -> str:
    options = source["jsonData"]
    assert options["protocol"] == "http" and not options["secure"]
    return f"http://{options['host']}:{options['port']}"


async def _queried(url: str, sql: str) -> Any:
    """The JSON result of a query at the read endpoint, or the error text of the plugin."""
    try:
        async with httpx.AsyncClient(timeout=_PATIENCE_S) as client:
            reply = await client.post(url, params={"default_format": "JSONCompact"}, content=sql.encode())
    except httpx.TransportError:
        return "error querying the database: dial tcp: connect: connection refused"
    return reply.json() if reply.status_code == 200 else f"error querying the database: {reply.text}"


async def _result(double: GrafanaDouble, query: Any, body: Any) -> Any:
    """The result of a query as the plugin's back end returns it: frames or an error."""
    source = double.sources.get(query["datasource"]["uid"])
    if source is None or query["datasource"]["type"] != PLUGIN:
        return {"error": "data source not found", "status": 404}
    try:
        sql = with_macros(query["rawSql"], Range(int(body["from"]), int(body["to"]), query["intervalMs"]))
    except MacroError as error:
        return {"error": str(error), "status": 400}
    reply = await _queried(_where(source), sql)
    if isinstance(reply, str):
        return {"error": reply, "status": 400}
    columns = [list(column) for column in zip(*reply["data"], strict=True)]
    if query["format"] == 0 and columns and columns[0] != sorted(columns[0]):
        return {"error": "input data must be wide series but got type not: rows do not ascend in time", "status": 400}
    # The plugin returns no fields for a result without rows.
    fields = [{"name": column["name"]} for column in reply["meta"]] if columns else []
    return {"status": 200, "frames": [{"schema": {"refId": query["refId"], "fields": fields}, "data": {"values": columns}}]}
