"""The OTLP door: `POST /v1/traces`, `POST /v1/metrics`, health and the server's own metrics.

One idea: a request is admitted by its token and its size before its body is read, decoded and turned to rows in a thread, and answered
when its rows are in the store. Every failure has the status that makes a sender do the right thing: 400, 401, 413 and 415 are final, 429
and 503 carry Retry-After, and nothing else is ever sent: a Collector drops a batch on a bare 500. The tenant is the token's, whatever the
payload says.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import anyio
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from legato_ingest.auth.authenticate import Gate
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import BadRequest, Denied, LegatoError, Overloaded, StoreUnavailable, TooLarge
from legato_ingest.metrics import Metrics
from legato_ingest.otlp import http
from legato_ingest.otlp.signals import POINTS, SPANS, Signal
from legato_ingest.otlp.split import batch_of
from legato_ingest.otlp.stream_rows import Batch, Limits
from legato_ingest.settings import Settings
from legato_ingest.write.committer import Committer, Receipt
from legato_ingest.write.quotas import TenantLimits, names_of

__all__ = ["create_app"]

_log = logging.getLogger("legato")
_WHO = {"WWW-Authenticate": 'Bearer realm="legato"'}


class _Admission:
    """Bytes of bodies that are held between their arrival and their rows. Used on the event loop only."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held = 0

    @contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """A function that admits more bytes of one request, or raises ``Overloaded``; all are let go at the end."""
        own = 0

        def admit(size: int) -> None:
            nonlocal own
            if self._held > own and self._held + size > self._bytes_max:
                raise Overloaded(f"{self._held} bytes of requests are being taken already")
            own += size
            self._held += size

        try:
            yield admit
        finally:
            self._held -= own


class _Intake:
    """A request's way from its token to its receipt."""

    def __init__(self, settings: Settings, gate: Gate, committer: Committer, metrics: Metrics) -> None:
        self._settings, self._gate, self._committer, self._metrics = settings, gate, committer, metrics
        self._admission = _Admission(settings.queue_bytes_max)
        self._tenants = TenantLimits(
            bytes_per_s=settings.tenant_bytes_per_s,
            waiting_bytes_max=settings.tenant_waiting_bytes_max,
            names_max=settings.tenant_names_max,
        )
        self._limiter = anyio.CapacityLimiter(settings.decode_requests_max)
        self._limits = Limits(chunks_per_request_max=settings.chunks_per_request_max, retention_days=settings.retention_days)

    async def answer(self, request: Request, signal: Signal) -> Response:
        """The reply to one request, counted and timed."""
        started = time.perf_counter()
        response = await _answer(lambda: self._take(request, signal), signal, self._settings.retry_after_s, self._metrics)
        self._metrics.request_seconds.observe(time.perf_counter() - started)
        self._metrics.requests.labels(str(response.status_code)).inc()
        return response

    async def _take(self, request: Request, signal: Signal) -> Receipt:
        tenant = self._gate.writer(request)
        http.check_type(request.headers.get("content-type", ""))
        with self._tenants.request(tenant) as charge:
            future = await self._submit(request, signal, tenant, charge)
            # A sender that hangs up changes nothing: the rows are on their way, and its retry will be a duplicate.
            return await asyncio.shield(asyncio.wrap_future(future))

    async def _submit(self, request: Request, signal: Signal, tenant: str, charge: Callable[[int], None]) -> Future[Receipt]:
        encoding = request.headers.get("content-encoding", "")
        with self._admission.hold() as admit:
            body = await _read(request, self._settings.body_bytes_max, (charge, admit))
            self._metrics.received_bytes.inc(len(body))
            batch = await anyio.to_thread.run_sync(self._decode, encoding, body, signal, tenant, limiter=self._limiter)
            self._metrics.count_received(batch.spans, batch.points, batch.ignored)
            return self._committer.submit(batch)

    def _decode(self, encoding: str, body: bytes, signal: Signal, tenant: str) -> Batch:
        def fault(error: Exception) -> None:
            self._metrics.errors.labels(signal.item, type(error).__name__).inc()
            _log.error("a %s failed inside Legato and was rejected as `internal`", signal.item, exc_info=error)

        content = http.decompress(encoding, body, self._settings.body_bytes_max)
        batch = batch_of(content, tenant=tenant, received_at_ns=time.time_ns(), limits=self._limits, on_fault=fault, signal=signal)
        if self._settings.tenant_names_max:
            self._tenants.check_names(tenant, names_of(batch))
        return batch


def create_app(settings: Settings, committer: Committer, metrics: Metrics, ready: Callable[[], bool]) -> FastAPI:
    """The app of the OTLP port. ``ready`` says whether the store answers and its schema is current; it may block."""
    app = FastAPI(title="Legato OTLP", docs_url=None, redoc_url=None, openapi_url=None)
    gate = Gate(settings)
    intake = _Intake(settings, gate, committer, metrics)

    @app.post(SPANS.path)
    async def traces(request: Request) -> Response:
        return await intake.answer(request, SPANS)

    @app.post(POINTS.path)
    async def points(request: Request) -> Response:
        return await intake.answer(request, POINTS)

    @app.get("/healthz")
    async def healthz() -> Response:
        return Response("ok\n", media_type="text/plain")

    @app.get("/readyz")
    async def readyz() -> Response:
        try:
            good = await anyio.to_thread.run_sync(ready)
        except LegatoError:
            good = False
        return Response("ready\n" if good else "the store does not answer\n", 200 if good else 503, media_type="text/plain")

    @app.get("/metrics")
    async def prometheus(request: Request) -> Response:
        try:
            # It names every tenant's services.
            if gate.tokens is not None and gate.reader(request) != ALL_TENANTS:
                raise Denied(f"these metrics are of all tenants: they want a reader's token of the tenant {ALL_TENANTS}")
        except Denied as error:
            return Response(f"{error}\n", error.status, _WHO, media_type="text/plain")
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


async def _read(request: Request, bytes_max: int, admitting: Sequence[Callable[[int], None]]) -> bytes:
    """The body, admitted piece by piece; refused as soon as it is known to be too large."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > bytes_max:
        raise TooLarge(f"a body of {declared} bytes, at most {bytes_max} are taken")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > bytes_max:
            raise TooLarge(f"a body of more than {bytes_max} bytes")
        for admit in admitting:
            admit(len(part))
        parts.append(part)
    return b"".join(parts)


async def _answer(take: Callable[[], Awaitable[Receipt]], signal: Signal, retry_after_s: int, metrics: Metrics) -> Response:
    """The reply to a request, whatever happens in ``take``."""
    try:
        receipt = await take()
    except BadRequest as error:
        return _refusal(error.status, str(error))
    except Overloaded as error:
        return _refusal(429, str(error), error.retry_after_s or retry_after_s)
    except StoreUnavailable as error:
        _log.warning("not stored, the sender is told to retry: %s", error)
        return _refusal(503, "the store cannot take it now", retry_after_s)
    except Exception as error:
        metrics.errors.labels("receive", type(error).__name__).inc()
        _log.exception("a request failed inside Legato; the sender is told to retry")
        return _refusal(503, "an internal error", retry_after_s)
    message = f"{receipt.rejected} {signal.item}s rejected: {', '.join(receipt.reasons)}; see the table `rejected`"
    return Response(signal.reply(receipt.rejected, message), 200, media_type=http.PROTOBUF)


def _refusal(status: int, message: str, retry_after_s: int | None = None) -> Response:
    headers = dict(_WHO) if status == 401 else {}
    if retry_after_s is not None:
        headers["Retry-After"] = str(retry_after_s)
    return Response(http.error_body(status, message), status, headers, media_type=http.PROTOBUF)
