"""OTLP over HTTP: `POST /v1/traces`, `/v1/metrics` and `/v1/logs` in protobuf or JSON, health checks and the server's own metrics.

The same paths below `/api/public/otel` are those of Langfuse's clients, which send a token as the password of HTTP Basic. Pages of other
origins may send where the settings name them. Every outcome is decided by ``receiver``; this module reads bodies and writes replies.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Callable

import anyio
import anyio.to_thread
from fastapi import FastAPI, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import Denied, LegatoError, SenderLeft, TooLarge
from legato_ingest.metrics import Metrics
from legato_ingest.otlp import http
from legato_ingest.otlp.signals import SIGNALS, Signal
from legato_ingest.settings import Settings
from legato_ingest.write.committer import Committer
from legato_ingest.write.receiver import Call, Counters, Outcome, Receiver

__all__ = ["LANGFUSE_PREFIX", "create_app"]

LANGFUSE_PREFIX = "/api/public/otel"
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="legato"'}
_PATHS = frozenset(prefix + signal.path for signal in SIGNALS for prefix in ("", LANGFUSE_PREFIX))
# Seconds for which a browser keeps the answer to its preflight.
_PREFLIGHT_S = 600
# For so long a health check repeats the last answer of the store.
_READY_S = 1.0


def create_app(
    settings: Settings, committer: Committer, metrics: Metrics, ready: Callable[[], bool], receiver: Receiver | None = None
) -> FastAPI:
    """Return the app of the OTLP endpoint. ``ready`` returns whether requests are acknowledged; it may block.

    ``receiver`` is given where another protocol shares its limits.
    """
    app = FastAPI(title="Legato OTLP", docs_url=None, redoc_url=None, openapi_url=None)
    receiver = receiver or Receiver(settings, committer, metrics)
    if settings.cors_origins:
        app.add_middleware(_Cors, origins=[each.strip() for each in settings.cors_origins.split(",")])
    for signal in SIGNALS:
        _add_signal(app, receiver, signal)
    _add_health(app, ready)
    _add_metrics(app, receiver, metrics)
    return app


def _add_signal(app: FastAPI, receiver: Receiver, signal: Signal) -> None:
    async def export(request: Request) -> Response:
        head = request.headers
        content_type = head.get("content-type", "")
        call = Call(
            signal=signal,
            read=lambda counters: _read(request, receiver.body_bytes_max, counters),
            authorization=head.get("authorization", ""),
            origin=head.get("origin", ""),
            content_type=content_type,
            encoding=head.get("content-encoding", ""),
        )
        try:
            outcome = await receiver.answer(call)
            if outcome.hold_s:
                await asyncio.sleep(outcome.hold_s)
        except asyncio.CancelledError:
            # A request that waits is cancelled at the end of the process alone, and has time for its reply.
            outcome = Outcome(503, "the server is stopping", retry_after_s=receiver.retry_after_s)
        return _response(outcome, signal, http.reply_type(content_type))

    for prefix in ("", LANGFUSE_PREFIX):
        # Without FastAPI's parameters, which a request in protobuf does not have.
        app.add_route(prefix + signal.path, export, methods=["POST"])


class _Readiness:
    """Whether the store answers. Anybody may ask, so the store is asked once a second at most, whatever the number of requests."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready, self._known, self._until_s = ready, False, 0.0
        self._lock = anyio.Lock()

    async def now(self) -> bool:
        """Return what is known, or ask."""
        async with self._lock:
            if time.monotonic() >= self._until_s:
                try:
                    self._known = await anyio.to_thread.run_sync(self._ready)
                except LegatoError:
                    self._known = False
                self._until_s = time.monotonic() + _READY_S
            return self._known


def _add_health(app: FastAPI, ready: Callable[[], bool]) -> None:
    readiness = _Readiness(ready)

    @app.get("/healthz")
    async def healthz() -> Response:
        return Response("ok\n", media_type="text/plain")

    @app.get("/readyz")
    async def readyz() -> Response:
        if await readiness.now():
            return Response("ready\n", media_type="text/plain")
        return Response("the store does not answer, or its disk rejects writes\n", 503, media_type="text/plain")


def _add_metrics(app: FastAPI, receiver: Receiver, metrics: Metrics) -> None:
    @app.get("/metrics")
    async def prometheus(request: Request) -> Response:
        authenticator = receiver.authenticator
        try:
            # The metrics contain the names of all tenants' services.
            if authenticator.tokens is not None and authenticator.reader(request) != ALL_TENANTS:
                raise Denied(f"these metrics cover all tenants: send a token that may read, of the tenant {ALL_TENANTS}")
        except Denied as error:
            return Response(f"{error}\n", error.status, _CHALLENGE, media_type="text/plain")
        content, media_type = _exposition(metrics.registry, request.headers.get("accept", ""))
        return Response(content, media_type=media_type)


def _exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return the metrics in the format that the client asks for, and its media type. Only OpenMetrics has exemplars."""
    try:
        encode, media_type = choose_encoder(accept)
    except (ValueError, TypeError):
        # prometheus-client cannot read every version that a client may name.
        encode, media_type = choose_encoder("")
    return encode(registry), media_type


class _Cors:
    """Permits pages of some origins to send OTLP: only on its paths, so that no page of another origin reads metrics."""

    def __init__(self, app: ASGIApp, origins: list[str]) -> None:
        self._app = app
        # Any header may be sent, because the token alone decides; cookies are not used.
        self._cors = CORSMiddleware(
            app, allow_origins=origins, allow_methods=["POST"], allow_headers=["*"], max_age=_PREFLIGHT_S, expose_headers=["Retry-After"]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        is_otlp = scope["type"] == "http" and scope["path"] in _PATHS
        await (self._cors if is_otlp else self._app)(scope, receive, send)


async def _read(request: Request, bytes_max: int, counters: Counters) -> bytes:
    """Return the body. Each counter is called with the size of every part as it arrives.

    Raises ``TooLarge`` as early as possible, and ``SenderLeft``.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > bytes_max:
        raise TooLarge(f"a body of {declared} bytes, at most {bytes_max} are accepted")
    # Its value is not copied: to join the parts of a large body would stop the event loop for as long.
    body, size = io.BytesIO(), 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > bytes_max:
                raise TooLarge(f"a body of more than {bytes_max} bytes")
            for count in counters:
                count(len(part))
            body.write(part)
    except ClientDisconnect:
        raise SenderLeft(f"the sender left after {size} bytes of the body") from None
    return body.getvalue()


def _response(outcome: Outcome, signal: Signal, media_type: str) -> Response:
    headers = dict(_CHALLENGE) if outcome.status == 401 else {}
    if outcome.retry_after_s is not None:
        headers["Retry-After"] = str(outcome.retry_after_s)
    return Response(http.encoded(outcome.reply(signal), media_type), outcome.status, headers, media_type=media_type)
