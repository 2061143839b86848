"""The web page's app: static files, dashboards, queries of panels, the page of a stream, and sessions.

A browser gets what the read endpoint would give to the same credentials: statements pass the same guard, limits and tenant filters. Every
response forbids inline scripts, frames and other origins; a request of a page of another origin is refused. The app writes nothing.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from legato_ingest.auth.authenticate import Authenticator
from legato_ingest.errors import BadRequest, Denied, LegatoError, StoreError, release
from legato_ingest.metrics import Metrics
from legato_ingest.query.app import status_of
from legato_ingest.query.reads import Reads, Result
from legato_ingest.replies import reads_as
from legato_ingest.reports import incident
from legato_ingest.settings import Settings
from legato_ingest.web.now_feed import NowFeed
from legato_ingest.web.panel_queries import Boards, PanelQuery
from legato_ingest.web.request_models import IncidentRange, Login, Statement, authorization_of, json_body, refusal, url_parameters
from legato_ingest.web.session import Sessions
from legato_ingest.web.static_files import html, static_files
from legato_ingest.web.stream_view import NoSuchStream, stream_view

__all__ = ["create_app"]

_COLUMNS = "JSONColumnsWithMetadata"
# The panels of a page may lack what was acknowledged in this time: otherwise each of its queries waits for an insert, one after another.
_STALE_S_MAX = 1.0
# The page loads scripts, styles and data from its own origin only. Charts draw images from blobs and data URLs that they make.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# Every address of the page is answered with the same HTML; the scripts draw what the address names.
_PAGES = ("/", "/d/{uid}", "/d/{uid}/{slug}", "/stream/{identity:path}", "/blame", "/incident", "/sql")

Handler = Callable[[Request, str], Awaitable[Response]]


def create_app(
    settings: Settings, reads: Reads, metrics: Metrics, boards: Boards, is_stopping: Callable[[], bool] = lambda: False
) -> FastAPI:
    """Return the app of the web page's port. ``is_stopping``: whether the server stops, which ends the events of Now."""
    app = FastAPI(title="Legato", docs_url=None, redoc_url=None, openapi_url=None)
    page = _Page(settings, reads, metrics, boards, NowFeed(reads, is_stopping))
    for path in _PAGES:
        app.add_api_route(path, page.public(html), methods=["GET"], response_model=None)
    app.add_api_route("/api/now", page.public(page.now), methods=["GET"], response_model=None)
    app.add_api_route("/api/session", page.session, methods=["POST", "DELETE"], response_model=None)
    for path, handler, method in (
        ("/api/dashboards", page.dashboards, "GET"),
        ("/api/dashboards/{uid}", page.dashboard, "GET"),
        ("/api/query", page.query, "POST"),
        ("/api/query/sql", page.statement, "POST"),
        ("/api/incident", page.incident, "GET"),
        ("/api/sql", page.sql, "POST"),
        ("/api/streams/{identity:path}", page.stream, "GET"),
    ):
        app.add_api_route(path, page.authenticated(handler), methods=[method], response_model=None)
    app.mount("/static", static_files(page.public))
    return app


class _Page:
    """The handlers of one app and what they share."""

    def __init__(self, settings: Settings, reads: Reads, metrics: Metrics, boards: Boards, feed: NowFeed) -> None:
        self._settings, self._reads, self._metrics, self._boards, self._feed = settings, reads, metrics, boards, feed
        self._authenticator, self._sessions = Authenticator(settings), Sessions()

    def public(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """A handler without data, which needs no credentials."""
        return self._guarded(handler, lambda request: "")

    def authenticated(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """A handler that receives the tenant that the request or its session reads as."""
        return self._guarded(handler, self._tenant)

    async def session(self, request: Request) -> Response:
        """POST: begin a session with credentials, if they may read. DELETE: end it."""
        return await self.public(self._end_session if request.method == "DELETE" else self._begin_session)(request)

    async def dashboards(self, request: Request, tenant: str) -> Response:
        """The dashboards in their order, whether readers log in, and the text above every page."""
        has_login, notice = self._authenticator.guards_reading, self._settings.web_notice
        return _json({"dashboards": self._boards.listed(), "has_login": has_login, "notice": notice})

    async def dashboard(self, request: Request, tenant: str) -> Response:
        """A dashboard's own JSON."""
        board = self._boards.by_uid.get(request.path_params["uid"])
        if board is None:
            raise BadRequest(f"no dashboard {request.path_params['uid']!r}", 404)
        return _json(board)

    async def query(self, request: Request, tenant: str) -> Response:
        """The result of a dashboard's query, by column, in ClickHouse's format JSONColumnsWithMetadata."""
        sql = self._boards.statement(await json_body(request, PanelQuery))
        return self._result(await self._reads.run(sql, {}, _COLUMNS, tenant, stale_max_s=_STALE_S_MAX))

    async def statement(self, request: Request, tenant: str) -> Response:
        """The SQL that ``query`` runs."""
        return _json({"sql": self._boards.statement(await json_body(request, PanelQuery))})

    async def sql(self, request: Request, tenant: str) -> Response:
        """The result of a user's own statement, in the form of ``query``."""
        given = await json_body(request, Statement)
        result = await self._reads.run(given.sql, {}, _COLUMNS, tenant)
        if result.format != _COLUMNS:
            raise BadRequest(f"the statement ends with FORMAT {result.format}: leave FORMAT out, the page reads its own")
        return self._result(result)

    async def stream(self, request: Request, tenant: str) -> Response:
        """The recordings, stalls, verdicts and engine of a stream, gzipped: half an hour of steps is 5 MB."""
        view = partial(stream_view, identity=request.path_params["identity"], stall_us=round(self._settings.stall_ms * 1_000))
        try:
            response = await self._reads.view(lambda run: _gzipped_json(view(run)), tenant)
        except NoSuchStream as error:
            raise BadRequest(str(error), 404) from None
        self._metrics.queries.labels("ok").inc()
        return response

    def _result(self, result: Result) -> Response:
        self._metrics.queries.labels("ok").inc()
        return Response(result.content, media_type="application/json", headers={"Cache-Control": "no-store"})

    async def incident(self, request: Request, tenant: str) -> Response:
        """The report of ``legato incident`` about a range, as Markdown."""
        given = url_parameters(request, IncidentRange)
        asked = incident.IncidentQuery(given.from_ms * 10**6, given.to_ms * 10**6, given.service)
        found = await self._reads.view(lambda run: incident.fetch(run, asked), tenant)
        self._metrics.queries.labels("ok").inc()
        return _json({"markdown": incident.render(found)})

    async def now(self, request: Request, tenant: str) -> Response:
        """Server-sent events with what runs now. The credentials are checked at every event."""
        tenant_of = partial(self._tenant, request)
        return StreamingResponse(self._feed.events(tenant_of), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    def _tenant(self, request: Request) -> str:
        """The tenant that a request or its session reads as. Raises ``Denied``."""
        return self._authenticator.reader(self._sessions.authorized(request))

    async def _begin_session(self, request: Request, tenant: str) -> Response:
        given = await json_body(request, Login)
        authorization = authorization_of(given)
        headers = [pair for pair in request.scope["headers"] if pair[0] not in (b"authorization", b"cookie")]
        claimed = Request({**request.scope, "headers": [*headers, (b"authorization", authorization.encode("latin-1"))]})
        self._authenticator.reader(claimed)
        response = _json({"ok": True})
        self._sessions.end(request, response)
        self._sessions.begin(response, authorization, secure=request.url.scheme == "https")
        return response

    async def _end_session(self, request: Request, tenant: str) -> Response:
        response = _json({"ok": True})
        self._sessions.end(request, response)
        return response

    def _guarded(self, handler: Handler, tenant_of: Callable[[Request], str]) -> Callable[[Request], Awaitable[Response]]:
        """The handler behind the checks of Host, Origin and credentials, with errors as JSON and the headers of every response."""

        async def guarded(request: Request) -> Response:
            try:
                refused = refusal(request, self._settings.read_host, self._authenticator.guards_reading)
                tenant = "" if refused else tenant_of(request)
                if tenant:
                    reads_as(request.scope, tenant)
                response = _error(refused, 403) if refused else await handler(request, tenant)
            except LegatoError as error:
                response = self._failed(error)
                release(error)
            response.headers.update(_HEADERS)
            return response

        return guarded

    def _failed(self, error: LegatoError) -> Response:
        """Count a query that failed, and return the response."""
        if isinstance(error, Denied):
            outcome, status = "denied", 401
        elif isinstance(error, BadRequest):
            outcome, status = "busy" if error.status == 503 else "error", error.status
        else:
            outcome, status = "error", status_of(error)[0] if isinstance(error, StoreError) else 400
        self._metrics.queries.labels(outcome).inc()
        return _error(str(error), status)


def _json(content: Any) -> Response:
    return JSONResponse(content, headers={"Cache-Control": "no-store"})


def _gzipped_json(content: Any) -> Response:
    packed = gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 1)
    return Response(packed, headers={"Cache-Control": "no-store", "Content-Encoding": "gzip"}, media_type="application/json")


def _error(message: str, status: int) -> Response:
    return JSONResponse({"error": message}, status, headers={"Cache-Control": "no-store"})
