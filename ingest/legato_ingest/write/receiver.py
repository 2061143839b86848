"""The receiver of OTLP requests of any protocol: authenticates, reads, converts, submits to the committer, and decides the outcome.

A request is admitted by its token and its size before its body is read. The body is converted to rows in a thread, and the request is
answered when its rows are stored. Senders do not retry after 400, 401, 403, 413 and 415; they do after 429 and 503, which carry a time to
retry after. No other error is an outcome, because a Collector drops a batch on a plain 500. The tenant is that of the token; the payload
cannot change it. ``app`` and ``grpc_server`` write the outcome in their protocols.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from legato_ingest.auth.authenticate import Authenticator
from legato_ingest.errors import BadRequest, Overloaded, SenderLeft, StoreUnavailable, release
from legato_ingest.metrics import Metrics
from legato_ingest.otlp import http
from legato_ingest.otlp.batch import Batch
from legato_ingest.otlp.signals import Signal
from legato_ingest.otlp.together import convert_bodies
from legato_ingest.settings import Settings
from legato_ingest.shares import Shares
from legato_ingest.write.body import Body, Entry
from legato_ingest.write.body_converter import BodyConverter, Rows
from legato_ingest.write.committer import Committer, Receipt
from legato_ingest.write.conversion import LARGE_BYTES, Conversions
from legato_ingest.write.quotas import TenantQuotas, label_hashes

__all__ = ["Call", "Counters", "Outcome", "Receiver"]

_log = logging.getLogger("legato")
# Characters of a content encoding that are kept. A header may have 64 KiB, which no quota counts; those that are known have four.
_ENCODING_MAX = 64
# Decompressed bytes of a body that is converted together with others.
_TOGETHER_BYTES_MAX = 128 * 1024
# So long a further batch of a large body waits for room in the queue, and if another body waits for its place. It looks again after each
# pause.
_ROOM_S, _WANTED_ROOM_S, _ROOM_PAUSE_S = 30.0, 2.0, 0.1
# The status with which a request is counted if its sender closed the connection, as in nginx's log. No reply has it.
_SENDER_LEFT = 499
# Functions that count the bytes of a body as they arrive, and raise ``Overloaded`` over a limit.
Counters = Sequence[Callable[[int], None]]


@dataclass(frozen=True, slots=True)
class Call:
    """One request, before its body is read. ``read`` returns the body and calls each counter with the size of every part of it.

    ``authorization``, ``origin``, ``content_type`` and ``encoding`` are headers (metadata in gRPC), empty where they are absent.
    """

    signal: Signal
    read: Callable[[Counters], Awaitable[bytes]]
    authorization: str = ""
    origin: str = ""
    content_type: str = http.PROTOBUF
    encoding: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a request as an HTTP status; other protocols have statuses with the same meanings (``http.GRPC_CODES``).

    ``rejected`` and ``message`` describe a partial success, or an error. ``retry_after_s`` is None where a retry cannot succeed.
    ``hold_s``: the reply is held back for so long where the body was not read; a gRPC message is in memory until its reply.
    """

    status: int
    message: str = ""
    rejected: int = 0
    retry_after_s: int | None = None
    hold_s: float = 0.0

    def reply(self, signal: Signal) -> Any:
        """Return the response of the signal, or the google.rpc.Status of an error."""
        return signal.reply(self.rejected, self.message) if self.status == 200 else http.error_message(self.status, self.message)


class Receiver:
    """Receives OTLP requests of all protocols within the same limits. Its methods run on one event loop.

    ``rows_of_large`` converts bodies of more than ``conversion.LARGE_BYTES`` after decompression; by default in a thread of this process.
    """

    def __init__(self, settings: Settings, committer: Committer, metrics: Metrics, rows_of_large: Rows | None = None) -> None:
        self._converter = BodyConverter.of(settings)
        self._rows_of_large = rows_of_large or self._converter.rows
        self.authenticator = Authenticator(settings)
        self.body_bytes_max = settings.body_bytes_max
        self.retry_after_s, self._committer, self._metrics = settings.retry_after_s, committer, metrics
        self._admission = _Admission(settings.queue_bytes_max)
        self._checks_cardinality = bool(settings.tenant_cardinality_max)
        self._quotas = TenantQuotas(
            bytes_per_s=settings.tenant_bytes_per_s,
            in_flight_bytes_max=settings.tenant_in_flight_bytes_max,
            cardinality_max=settings.tenant_cardinality_max,
        )
        self._conversions = Conversions(self._converted, self._convert_together, settings.decode_requests_max)

    async def answer(self, call: Call) -> Outcome:
        """Return the outcome of one request, and count and time the request."""
        started = time.perf_counter()
        outcome = await self._outcome(call)
        self._metrics.request_seconds.observe(time.perf_counter() - started)
        self._metrics.requests.labels(str(outcome.status)).inc()
        return outcome

    async def _outcome(self, call: Call) -> Outcome:
        try:
            receipt = await self._receive(call)
        except Exception as error:
            outcome = self._refusal(error)
            release(error)
            return outcome
        reasons = ", ".join(receipt.reasons)
        return Outcome(200, f"{receipt.rejected} {call.signal.item}s rejected: {reasons}; see the table `rejected`", receipt.rejected)

    def _refusal(self, error: Exception) -> Outcome:
        """Return the outcome of a request that failed with this error."""
        if isinstance(error, BadRequest):
            return Outcome(error.status, str(error))
        if isinstance(error, Overloaded):
            return Outcome(429, str(error), retry_after_s=error.retry_after_s or self.retry_after_s, hold_s=error.hold_s)
        if isinstance(error, SenderLeft):
            return Outcome(_SENDER_LEFT, str(error))
        if isinstance(error, StoreUnavailable):
            _log.warning("not stored, the sender has to retry: %s", error)
            return Outcome(503, "the store is not available now", retry_after_s=self.retry_after_s)
        self._metrics.errors.labels("receive", type(error).__name__).inc()
        _log.error("a request failed inside Legato; the sender has to retry", exc_info=error)
        return Outcome(503, "an internal error", retry_after_s=self.retry_after_s)

    async def _receive(self, call: Call) -> Receipt:
        tenant = self.authenticator.writer(call.authorization, call.origin)
        http.check_type(call.content_type)
        with self._quotas.request(tenant) as count:
            receipt, last = await self._submit(call, tenant, count)
            receipt.add(await _result(last))
            return receipt

    async def _submit(self, call: Call, tenant: str, count: Callable[[int], None]) -> tuple[Receipt, Future[Receipt]]:
        """Submit the batches of a body, each when the one before is safe. Return their receipt without the last, and the last one's."""
        with ExitStack() as admission:
            admit = admission.enter_context(self._admission.request(tenant))
            content = await call.read((count, admit))
            self._metrics.received_bytes.inc(len(content))
            entry = Entry(Body(call.signal, content, http.check_type(call.content_type), call.encoding.strip()[:_ENCODING_MAX], tenant))
            receipt, last = Receipt(), None
            try:
                async with aclosing(self._conversions.batches(entry.body)) as batches:
                    async for batch in batches:
                        self._count(batch)
                        if last is None:
                            last = self._committer.submit(batch, entry)
                            # From here on the committer counts the body.
                            admission.close()
                        else:
                            receipt.add(await _result(last))
                            last = await self._submit_further(batch, entry)
            finally:
                self._committer.finish(entry)
            assert last is not None, "a body has at least one batch"
            return receipt, last

    async def _submit_further(self, batch: Batch, entry: Entry) -> Future[Receipt]:
        """Submit a further batch of a body when the queue has room. Raises ``Overloaded`` if that takes too long."""
        began_s = time.monotonic()
        while not self._committer.has_room(batch, entry):
            is_wanted = self._conversions.is_place_wanted(entry.body.tenant)
            if time.monotonic() - began_s > (_WANTED_ROOM_S if is_wanted else _ROOM_S):
                break
            await asyncio.sleep(_ROOM_PAUSE_S)
        return self._committer.submit(batch, entry)

    def recovered(self, body: Body) -> Iterator[Batch]:
        """Yield the rows of a request that was acknowledged before. Its labels are not counted again."""
        for batch in self._rows(body, LARGE_BYTES) or self._rows(body, None) or ():
            self._count(batch)
            yield batch

    def _count(self, batch: Batch) -> None:
        self._metrics.count_received(batch.spans, batch.points, batch.ignored, batch.logs)

    def _converted(self, body: Body, bytes_max: int | None) -> Iterator[Batch] | None:
        """Return the rows of a body if its labels are accepted; ``None`` if it has more than ``bytes_max`` after decompression."""
        batches = self._rows(body, bytes_max)
        if batches is None or not self._checks_cardinality:
            return batches
        batch, labels, count = Batch(), set[int](), 0
        for batch in batches:
            labels.update(label_hashes(batch))
            count += 1
        self._quotas.check_cardinality(body.tenant, labels)
        # A body of several batches is converted twice: otherwise a part would be stored of a body that is refused.
        return self._rows(body, bytes_max) if count > 1 else iter([batch])

    def _rows(self, body: Body, bytes_max: int | None) -> Iterator[Batch] | None:
        """Return the rows of a body; ``None`` if it has more than ``bytes_max`` after decompression."""
        if bytes_max is None:
            return self._rows_of_large(body, partial(self._note_fault, body))
        content = self._converter.content(body, bytes_max)
        return None if content is None else self._converter.rows_of(body, content, partial(self._note_fault, body))

    def _note_fault(self, body: Body, error: Exception) -> None:
        item = body.signal.item
        self._metrics.errors.labels(item, type(error).__name__).inc()
        _log.error("converting a %s failed inside Legato; it was rejected as `internal`", item, exc_info=error)

    def _convert_together(self, bodies: Sequence[Body], bytes_max: int) -> list[Batch | None]:
        """Convert the first bodies, of about so many bytes after decompression, those of each tenant at once.

        Those that are not small, and all where labels are counted, are to be converted alone.
        """
        if self._checks_cardinality:
            return [None] * len(bodies)
        out, tenants, size = list[Batch | None](), dict[str, list[tuple[int, bytes]]](), 0
        for number, body in enumerate(bodies):
            if size >= bytes_max:
                break
            out.append(None)
            try:
                content = http.decompress(body.encoding, body.content, _TOGETHER_BYTES_MAX)
            except BadRequest:
                size += _TOGETHER_BYTES_MAX
                continue
            size += len(content)
            tenants.setdefault(body.tenant, []).append((number, content))
        for tenant, own in tenants.items():
            # They arrived within a moment.
            received_ns = min(bodies[number].received_ns for number, _ in own)
            batches = convert_bodies([content for _, content in own], tenant=tenant, now_ns=received_ns, limits=self._converter.limits)
            for (number, _), batch in zip(own, batches, strict=True):
                out[number] = batch
        return out


async def _result(future: Future[Receipt]) -> Receipt:
    # A sender that disconnects does not cancel the commit: the rows are queued, and a retry will be a duplicate.
    return await asyncio.shield(asyncio.wrap_future(future))


class _Admission:
    """Limits the bytes of bodies in memory, from their arrival until they are converted. Used on the event loop only."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes = Shares(bytes_max)

    @contextmanager
    def request(self, tenant: str) -> Iterator[Callable[[int], None]]:
        """Enter for one request: yields a function that admits bytes of its body or raises ``Overloaded``. At exit they are released."""
        own = 0

        def admit(size: int) -> None:
            nonlocal own
            if not self._bytes.has_room(tenant, size, own):
                raise Overloaded(f"{self._bytes.total} bytes of request bodies are in memory: retry later")
            own += size
            self._bytes.add(tenant, size)

        try:
            yield admit
        finally:
            self._bytes.add(tenant, -own)
