"""The web page's app: static files, dashboards, queries of panels, the page of a stream, and sessions.

A browser gets what the read endpoint would give to the same credentials: statements pass the same guard, limits and tenant filters. Every
response forbids inline scripts, frames and other origins; a request of a page of another origin is refused. The app writes nothing.
"""

from __future__ import annotations

import base64
import pathlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel, Field, ValidationError
from starlette.staticfiles import StaticFiles

from legato_ingest.auth.authenticate import Authenticator
from legato_ingest.errors import BadRequest, Denied, LegatoError, StoreError
from legato_ingest.metrics import Metrics
from legato_ingest.query.app import status_of
from legato_ingest.query.clickhouse_http import foreign
from legato_ingest.query.reads import Reads
from legato_ingest.settings import Settings
from legato_ingest.web.panel_queries import Boards, PanelQuery
from legato_ingest.web.session import Sessions
from legato_ingest.web.vendor import plotly_file

__all__ = ["create_app"]

_STATIC = pathlib.Path(__file__).parent / "static"
_COLUMNS = "JSONColumnsWithMetadata"
_BODY_BYTES_MAX = 2**20
# The page loads scripts, styles and data from its own origin only. Charts draw images from blobs and data URLs of their own making.
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
_PAGES = ("/", "/d/{uid}", "/d/{uid}/{slug}", "/stream/{identity}")

Handler = Callable[[Request, str], Awaitable[Response]]
Model = TypeVar("Model", bound=BaseModel)


class _Login(BaseModel):
    """What the login form sends: a token, or a user and a password."""

    user: str = Field("", max_length=256)
    password: str = Field(min_length=1, max_length=4_096)


def create_app(settings: Settings, reads: Reads, metrics: Metrics, boards: Boards) -> FastAPI:
    """Return the app of the web page's port."""
    app = FastAPI(title="Legato", docs_url=None, redoc_url=None, openapi_url=None)
    page = _Page(settings, reads, metrics, boards)
    for path in _PAGES:
        app.add_api_route(path, page.public(_shell), methods=["GET"], response_model=None)
    app.add_api_route("/static/vendor/plotly.min.js", page.public(_plotly), methods=["GET"], response_model=None)
    app.add_api_route("/api/session", page.session, methods=["POST", "DELETE"], response_model=None)
    for path, handler, method in (
        ("/api/dashboards", page.dashboards, "GET"),
        ("/api/dashboards/{uid}", page.dashboard, "GET"),
        ("/api/query", page.query, "POST"),
        ("/api/query/sql", page.statement, "POST"),
        ("/api/streams/{identity}", page.stream, "GET"),
    ):
        app.add_api_route(path, page.authenticated(handler), methods=[method], response_model=None)
    app.mount("/static", _guarded_static(page))
    return app


async def _shell(request: Request, tenant: str) -> Response:
    return FileResponse(_STATIC / "index.html", headers={"Cache-Control": "no-cache"})


async def _plotly(request: Request, tenant: str) -> Response:
    return FileResponse(plotly_file(), media_type="text/javascript", headers={"Cache-Control": "no-cache"})


def _guarded_static(page: _Page) -> Callable[..., Awaitable[None]]:
    """The files of `static/`, behind the check of Host and Origin and with the headers of every response."""
    files = StaticFiles(directory=_STATIC)

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        async def respond(request: Request, tenant: str) -> Response:
            response = await files.get_response(files.get_path(scope), scope)
            response.headers["Cache-Control"] = "no-cache"
            return response

        response = await page.public(respond)(Request(scope, receive))
        await response(scope, receive, send)

    return guarded


class _Page:
    """The handlers of one app and what they share."""

    def __init__(self, settings: Settings, reads: Reads, metrics: Metrics, boards: Boards) -> None:
        self._settings, self._reads, self._metrics, self._boards = settings, reads, metrics, boards
        self._authenticator, self._sessions = Authenticator(settings), Sessions()

    def public(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """A handler without data, which needs no credentials."""
        return self._guarded(handler, lambda request: "")

    def authenticated(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """A handler that receives the tenant that the request or its session reads as."""
        return self._guarded(handler, lambda request: self._authenticator.reader(self._sessions.authorized(request)))

    async def session(self, request: Request) -> Response:
        """POST: begin a session with credentials, if they may read. DELETE: end it."""
        return await self.public(self._end_session if request.method == "DELETE" else self._begin_session)(request)

    async def dashboards(self, request: Request, tenant: str) -> Response:
        """The dashboards in their order, and whether readers log in."""
        return _json({"dashboards": self._boards.listed(), "has_login": self._authenticator.guards_reading})

    async def dashboard(self, request: Request, tenant: str) -> Response:
        """A dashboard's own JSON."""
        board = self._boards.by_uid.get(request.path_params["uid"])
        if board is None:
            raise BadRequest(f"no dashboard {request.path_params['uid']!r}", 404)
        return _json(board)

    async def query(self, request: Request, tenant: str) -> Response:
        """The result of a dashboard's query, by column, in ClickHouse's format JSONColumnsWithMetadata."""
        sql = self._boards.statement(await _body(request, PanelQuery))
        result = await self._reads.run(sql, {}, _COLUMNS, tenant)
        self._metrics.queries.labels("ok").inc()
        return Response(result.content, media_type="application/json", headers={"Cache-Control": "no-store"})

    async def statement(self, request: Request, tenant: str) -> Response:
        """The SQL that ``query`` runs."""
        return _json({"sql": self._boards.statement(await _body(request, PanelQuery))})

    async def stream(self, request: Request, tenant: str) -> Response:
        """What the page of a stream shows."""
        raise BadRequest("not built yet", 404)

    async def _begin_session(self, request: Request, tenant: str) -> Response:
        given = await _body(request, _Login)
        authorization = _authorization(given)
        headers = [pair for pair in request.scope["headers"] if pair[0] not in (b"authorization", b"cookie")]
        claimed = Request({**request.scope, "headers": [*headers, (b"authorization", authorization.encode("latin-1"))]})
        self._authenticator.reader(claimed)
        response = _json({"ok": True})
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
                refusal = _refusal(request, self._settings.read_host, self._authenticator.guards_reading)
                response = _error(refusal, 403) if refusal else await handler(request, tenant_of(request))
            except Denied as error:
                self._metrics.queries.labels("denied").inc()
                response = _error(str(error), 401)
            except BadRequest as error:
                self._metrics.queries.labels("busy" if error.status == 503 else "error").inc()
                response = _error(str(error), error.status)
            except StoreError as error:
                self._metrics.queries.labels("error").inc()
                response = _error(str(error), status_of(error)[0])
            except LegatoError as error:
                self._metrics.queries.labels("error").inc()
                response = _error(str(error), 400)
            response.headers.update(_HEADERS)
            return response

        return guarded


def _refusal(request: Request, host: str, is_guarded: bool) -> str:
    """Return why a request of another page is refused; empty for all others.

    Another port of this host is another origin, but not another site, so browsers send cookies from there; Sec-Fetch-Site says so.
    """
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none") and request.url.path.startswith("/api/"):
        return "the request came from a page of another origin"
    return foreign(request, host, is_guarded)


async def _body(request: Request, model: type[Model]) -> Model:
    """Parse a JSON body. Raises ``BadRequest``."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise BadRequest("the body must be JSON (Content-Type: application/json)", 415)
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > _BODY_BYTES_MAX:
            raise BadRequest(f"the body has more than {_BODY_BYTES_MAX} bytes", 413)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise BadRequest(f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}") from None


def _authorization(given: _Login) -> str:
    """The value of an Authorization header: Basic with a user, Bearer for a token alone."""
    if given.user:
        return "Basic " + base64.b64encode(f"{given.user}:{given.password}".encode()).decode()
    return "Bearer " + given.password.encode().decode("latin-1")


def _json(content: Any) -> Response:
    return JSONResponse(content, headers={"Cache-Control": "no-store"})


def _error(message: str, status: int) -> Response:
    return JSONResponse({"error": message}, status, headers={"Cache-Control": "no-store"})
