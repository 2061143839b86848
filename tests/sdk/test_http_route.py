"""`http.route` is what the application's code names, never the path of a request: a path may contain text of a prompt."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import fastapi
import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Host, Mount, Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket

from helpers.builders.formats import FORMATS
from legato import asgi, wsgi
from legato._http_route import Address, asgi_template

Spans = Callable[[], list[ReadableSpan]]
EVENTS = FORMATS["openai-chat"].events


async def answer(request: Request) -> StreamingResponse:
    """Stream events."""

    async def events() -> AsyncIterator[bytes]:
        for event in EVENTS:
            yield event

    return StreamingResponse(events(), media_type="text/event-stream")


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """An application without a framework."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await send({"type": "http.response.body", "body": b"".join(EVENTS)})


async def talk(socket: WebSocket) -> None:
    """Answer each message with events."""
    await socket.accept()
    async for _ in socket.iter_text():
        for event in EVENTS:
            await socket.send_text(event.decode())


def routed() -> Starlette:
    """Return an application of Starlette's with mounts, one of them for an application of FastAPI's with an included router."""
    api, router = fastapi.FastAPI(), fastapi.APIRouter(prefix="/inner")
    router.add_api_route("/ask/{question}", answer, methods=["POST"], response_model=None)
    api.include_router(router, prefix="/v1")
    api.add_route("/raw/{question}", answer, methods=["POST"])
    own = [Route("/chat", answer, methods=["POST"]), Route("/ask/{question:path}", answer, methods=["POST"])]
    mounts = [
        Mount("/of/{tenant}", routes=[Mount("", routes=own)]),
        Mount("/api/{version}", app=api),
        Mount("/bare/{text}", app=bare),
        Host("other", Starlette(routes=own)),
    ]
    return Starlette(routes=[*mounts, *own])


def route_of(spans: Spans, app: Any, path: str, root: str = "", **options: Any) -> Any:
    """Return the route of the last stream, and check that no text of the path is in any attribute."""

    async def asked() -> None:
        transport = httpx.ASGITransport(asgi.StreamMiddleware(app, **options), root_path=root)
        async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
            assert (await client.post(root + path)).status_code == 200

    asyncio.run(asked())
    span = spans()[-1]
    found = dict(span.attributes or {})
    assert "secret" not in repr((span.name, found))
    return found.get("http.route")


@pytest.mark.parametrize("root", ["", "/secret"])
@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/chat", "/chat"),
        ("/ask/a secret question/and more", "/ask/{question:path}"),
        ("/of/secret/ask/secret", "/of/{tenant}/ask/{question:path}"),
        ("/of/secret/chat", "/of/{tenant}/chat"),
        ("/api/secret/v1/inner/ask/secret", "/api/{version}/v1/inner/ask/{question}"),
        ("/api/1/raw/secret", "/api/{version}/raw/{question}"),
        ("/bare/secret/any", None),
        ("/bare/secret/v1/chat/completions", "/v1/chat/completions"),
    ],
)
def test_the_template_is_exported(spans: Spans, path: str, root: str, route: str | None) -> None:
    """Of Starlette and FastAPI with their mounts, without the prefix of the server; where an application has none, a known address."""
    assert route_of(spans, routed(), path, root) == route


def test_a_middleware_inside_the_application_has_the_template(spans: Spans) -> None:
    """`add_middleware`, as vLLM adds it: also of a route that is found by its host."""
    app = routed()
    app.add_middleware(asgi.StreamMiddleware)

    async def asked() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://other") as client:
            await client.post("/ask/secret")

    asyncio.run(asked())
    assert [(span.attributes or {}).get("http.route") for span in spans()] == ["/ask/{question:path}"]


def test_an_older_starlette_names_only_the_endpoint() -> None:
    """Before 1.0 it notes no route, and its mounts cut the path."""

    def other() -> None:
        """Answer nothing."""

    inner = [Route("/{a}/{b}", other), Route("/{question}", other), Route("/more/{question}", answer)]
    router = SimpleNamespace(routes=[Mount("/m/{tenant}", routes=inner)])
    scope = {"router": router, "endpoint": other, "root_path": "/prefix/m/secret", "app_root_path": "/prefix", "path": "/secret"}
    assert asgi_template(scope) == "/m/{tenant}/{question}"
    assert asgi_template({**scope, "path": "/prefix/m/secret/one/secret"}) == "/m/{tenant}/{a}/{b}"
    assert asgi_template({**scope, "root_path": "/elsewhere"}) == asgi_template({**scope, "root_path": "/prefix/n"}) == ""


@pytest.mark.parametrize(
    ("path", "paths", "route"),
    [
        ("/v1/chat/completions", None, "/v1/chat/completions"),
        ("/secret/v1/messages", None, "/v1/messages"),
        ("/openai/deployments/secret/chat/completions", None, "/chat/completions"),
        ("/chat", None, None),
        ("/secret/chat", ("/chat", "t/chat"), "t/chat"),
        ("/secret/v1/responses", "responses", "responses"),
    ],
)
def test_without_a_framework_only_known_suffixes_are_exported(spans: Spans, path: str, paths: Any, route: str | None) -> None:
    """Those of ``paths``, and those of the usual interfaces."""
    assert route_of(spans, bare, path, paths=paths) == route


def test_the_route_of_a_websocket(spans: Spans) -> None:
    """As of a request."""
    app = asgi.StreamMiddleware(Starlette(routes=[WebSocketRoute("/ws/{question}/talk", talk)]), paths=("/talk",))
    with TestClient(app) as client, client.websocket_connect("/ws/secret/talk") as socket:
        socket.send_text("question")
        for _ in EVENTS:
            socket.receive_text()
    assert [(span.attributes or {})["http.route"] for span in spans()] == ["/ws/{question}/talk"]


@pytest.mark.parametrize("kind", ["text/event-stream", "text/plain"])
@pytest.mark.parametrize(
    ("noted", "route"),
    [
        ({"werkzeug.request": SimpleNamespace(url_rule=SimpleNamespace(rule="/ask/<question>"))}, "/ask/<question>"),
        ({"bottle.route": SimpleNamespace(rule="/ask/<q>")}, "/ask/<q>"),
        ({"werkzeug.request": SimpleNamespace(url_rule=None)}, None),
        ({}, None),
    ],
)
def test_wsgi_frameworks(spans: Spans, kind: str, noted: dict[str, Any], route: str | None) -> None:
    """Flask forgets its request before the body is read."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ.update(noted)
        start_response("200 OK", [("Content-Type", kind)])
        environ.update(dict.fromkeys(noted))
        return iter(EVENTS)

    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/ask/secret", "SCRIPT_NAME": "/secret"}
    assert list(wsgi.StreamMiddleware(app)(environ, lambda *_: None)) == [*EVENTS]
    (span,) = spans()
    assert (span.attributes or {}).get("http.route") == route and "secret" not in repr(span.attributes)


class Handler:
    """Stands for Django's."""

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/event-stream")])
        return iter(EVENTS)


class AsyncHandler(Handler):
    """Stands for Django's, under ASGI."""

    __call__ = staticmethod(bare)  # type: ignore[assignment]


@pytest.fixture
def django(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two modules of Django's that are used, with one path."""
    base, urls = ModuleType("django.core.handlers.base"), ModuleType("django.urls")
    base.BaseHandler, routes = Handler, {"/ask/sécret": "^ask/(?P<question>.+)$", "/chat/": "chat/"}  # type: ignore[attr-defined]
    urls.resolve = lambda path: SimpleNamespace(route=routes[path])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, base.__name__, base)
    monkeypatch.setitem(sys.modules, urls.__name__, urls)


@pytest.mark.usefixtures("django")
@pytest.mark.parametrize(
    ("path", "route"),
    [("/ask/sécret", "/ask/(?P<question>.+)"), ("/chat/", "/chat/"), ("/no/sécret", None), ("/no/v1/messages", "/v1/messages")],
)
def test_django(spans: Spans, path: str, route: str | None) -> None:
    """Its routes begin without a slash. Another middleware may be between."""

    class Between:
        application = Handler()

        def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
            return self.application(environ, start_response)

    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": path.encode().decode("latin-1")}
    assert list(wsgi.StreamMiddleware(Between())(environ, lambda *_: None)) == [*EVENTS]
    assert [(span.attributes or {}).get("http.route") for span in spans()] == [route]
    assert route_of(spans, AsyncHandler(), path, "/prefix") == route


def test_a_fault_of_a_template_leaves_the_route_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address that is known in any case stays."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")

    def broken() -> str:
        raise AttributeError

    assert Address("/secret/v1/messages", None, broken).route() == "/v1/messages"
    assert Address("/secret", None, broken).route() == ""
