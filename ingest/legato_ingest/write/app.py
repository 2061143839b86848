"""The OTLP endpoint: `POST /v1/traces`, `POST /v1/metrics`, health checks and the server's own metrics.

A request is admitted by its token and its size before its body is read. The body is converted to rows in a thread, and the request is
answered when its rows are stored. Senders do not retry after 400, 401, 413 and 415; they do after 429 and 503, which carry Retry-After. No
other error status is sent, because a Collector drops a batch on a plain 500. The tenant is that of the token; the payload cannot change it.
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

from legato_ingest.auth.authenticate import Authenticator
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import BadRequest, Denied, LegatoError, Overloaded, StoreUnavailable, TooLarge
from legato_ingest.metrics import Metrics
from legato_ingest.otlp import http
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.signals import POINTS, SPANS, Signal
from legato_ingest.otlp.split import convert_body
from legato_ingest.settings import Settings
from legato_ingest.write.committer import Committer, Receipt
from legato_ingest.write.quotas import TenantQuotas, label_hashes

__all__ = ["create_app"]

_log = logging.getLogger("legato")
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="legato"'}


class _Admission:
    """Limits the bytes of bodies in memory, from their arrival until they are converted. Used on the event loop only."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0

    @contextmanager
    def request(self) -> Iterator[Callable[[int], None]]:
        """Enter for one request: yields a function that admits bytes of its body or raises ``Overloaded``. At exit they are released."""
        own = 0

        def admit(size: int) -> None:
            nonlocal own
            if self._bytes > own and self._bytes + size > self._bytes_max:
                raise Overloaded(f"{self._bytes} bytes of request bodies are in memory, at most {self._bytes_max} are allowed")
            own += size
            self._bytes += size

        try:
            yield admit
        finally:
            self._bytes -= own


class _Receiver:
    """Handles OTLP requests: authenticates, reads, converts, submits to the committer, and answers."""

    def __init__(self, settings: Settings, authenticator: Authenticator, committer: Committer, metrics: Metrics) -> None:
        self._settings, self._authenticator, self._committer, self._metrics = settings, authenticator, committer, metrics
        self._admission = _Admission(settings.queue_bytes_max)
        self._quotas = TenantQuotas(
            bytes_per_s=settings.tenant_bytes_per_s,
            in_flight_bytes_max=settings.tenant_in_flight_bytes_max,
            cardinality_max=settings.tenant_cardinality_max,
        )
        self._limiter = anyio.CapacityLimiter(settings.decode_requests_max)
        self._limits = Limits(chunks_per_request_max=settings.chunks_per_request_max, retention_days=settings.retention_days)

    async def answer(self, request: Request, signal: Signal) -> Response:
        """Return the reply to one request, and count and time the request."""
        started = time.perf_counter()
        response = await _reply(lambda: self._receive(request, signal), signal, self._settings.retry_after_s, self._metrics)
        self._metrics.request_seconds.observe(time.perf_counter() - started)
        self._metrics.requests.labels(str(response.status_code)).inc()
        return response

    async def _receive(self, request: Request, signal: Signal) -> Receipt:
        tenant = self._authenticator.writer(request)
        http.check_type(request.headers.get("content-type", ""))
        with self._quotas.request(tenant) as count:
            future = await self._submit(request, signal, tenant, count)
            # A sender that disconnects does not cancel the commit: the rows are queued, and a retry will be a duplicate.
            return await asyncio.shield(asyncio.wrap_future(future))

    async def _submit(self, request: Request, signal: Signal, tenant: str, count: Callable[[int], None]) -> Future[Receipt]:
        encoding = request.headers.get("content-encoding", "")
        with self._admission.request() as admit:
            body = await _read(request, self._settings.body_bytes_max, (count, admit))
            self._metrics.received_bytes.inc(len(body))
            batch = await anyio.to_thread.run_sync(self._convert, encoding, body, signal, tenant, limiter=self._limiter)
            self._metrics.count_received(batch.spans, batch.points, batch.ignored)
            return self._committer.submit(batch)

    def _convert(self, encoding: str, body: bytes, signal: Signal, tenant: str) -> Batch:
        def fault(error: Exception) -> None:
            self._metrics.errors.labels(signal.item, type(error).__name__).inc()
            _log.error("converting a %s failed inside Legato; it was rejected as `internal`", signal.item, exc_info=error)

        content = http.decompress(encoding, body, self._settings.body_bytes_max)
        batch = convert_body(content, tenant=tenant, now_ns=time.time_ns(), limits=self._limits, on_fault=fault, signal=signal)
        if self._settings.tenant_cardinality_max:
            self._quotas.check_cardinality(tenant, label_hashes(batch))
        return batch


def create_app(settings: Settings, committer: Committer, metrics: Metrics, ready: Callable[[], bool]) -> FastAPI:
    """Return the app of the OTLP endpoint. ``ready`` returns whether the store answers and its schema is current; it may block."""
    app = FastAPI(title="Legato OTLP", docs_url=None, redoc_url=None, openapi_url=None)
    authenticator = Authenticator(settings)
    receiver = _Receiver(settings, authenticator, committer, metrics)

    @app.post(SPANS.path)
    async def traces(request: Request) -> Response:
        return await receiver.answer(request, SPANS)

    @app.post(POINTS.path)
    async def points(request: Request) -> Response:
        return await receiver.answer(request, POINTS)

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
            # The metrics contain the names of all tenants' services.
            if authenticator.tokens is not None and authenticator.reader(request) != ALL_TENANTS:
                raise Denied(f"these metrics cover all tenants: send a token that may read, of the tenant {ALL_TENANTS}")
        except Denied as error:
            return Response(f"{error}\n", error.status, _CHALLENGE, media_type="text/plain")
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


async def _read(request: Request, bytes_max: int, counters: Sequence[Callable[[int], None]]) -> bytes:
    """Return the body. Each counter is called with the size of every part as it arrives. Raises ``TooLarge`` as early as possible."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > bytes_max:
        raise TooLarge(f"a body of {declared} bytes, at most {bytes_max} are accepted")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > bytes_max:
            raise TooLarge(f"a body of more than {bytes_max} bytes")
        for count in counters:
            count(len(part))
        parts.append(part)
    return b"".join(parts)


async def _reply(receive: Callable[[], Awaitable[Receipt]], signal: Signal, retry_after_s: int, metrics: Metrics) -> Response:
    """Return the reply for the receipt of ``receive`` or for any error that it raises."""
    try:
        receipt = await receive()
    except BadRequest as error:
        return _error_reply(error.status, str(error))
    except Overloaded as error:
        return _error_reply(429, str(error), error.retry_after_s or retry_after_s)
    except StoreUnavailable as error:
        _log.warning("not stored, the sender has to retry: %s", error)
        return _error_reply(503, "the store is not available now", retry_after_s)
    except Exception as error:
        metrics.errors.labels("receive", type(error).__name__).inc()
        _log.exception("a request failed inside Legato; the sender has to retry")
        return _error_reply(503, "an internal error", retry_after_s)
    message = f"{receipt.rejected} {signal.item}s rejected: {', '.join(receipt.reasons)}; see the table `rejected`"
    return Response(signal.reply(receipt.rejected, message), 200, media_type=http.PROTOBUF)


def _error_reply(status: int, message: str, retry_after_s: int | None = None) -> Response:
    headers = dict(_CHALLENGE) if status == 401 else {}
    if retry_after_s is not None:
        headers["Retry-After"] = str(retry_after_s)
    return Response(http.error_body(status, message), status, headers, media_type=http.PROTOBUF)
