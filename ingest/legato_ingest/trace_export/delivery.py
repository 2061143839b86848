"""The delivery of streams to the endpoint: in requests of one tenant, each stream once while the process lives.

One stream must not hold up the others: a stream that cannot be encoded is left out, a request that is refused is halved, and a request at
which the endpoint fails again and again is sent stream by stream. The module reads no store, and the worker decides when to try again.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.metrics import Metrics
from legato_ingest.trace_export.endpoint import Endpoint
from legato_ingest.trace_export.replies import Failed, Refused
from legato_ingest.trace_export.spans import StalledStream, StreamKey, request_of

__all__ = ["Delivery"]

_log = logging.getLogger("legato")
# Spans of one request: about half a megabyte. Collectors accept 20 MiB, others less.
_SPANS_MAX = 1_000
# Streams that are known to be done beyond the recorded progress. Above that they are sent again after a failure.
_DONE_MAX = 100_000
# Failures (500, 501) at one request in different runs, after which its content may be the reason.
_FAILURES_MAX = 5
# Single streams in a row at which the endpoint fails: it is away. And tries of such a stream after another one was accepted.
_SUSPECTS_MAX, _TRIES = 16, 3
# Single streams that are refused in a row: the endpoint refuses all, so requests are not halved until it accepts one.
_ALONE_MAX = 8


# The part of a stream's tenant, and the time of receipt (Unix ms): the stream comes again until that part's progress is there.
_Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Encoded:
    stream: StalledStream
    spans: Sequence[Span]

    @property
    def key(self) -> StreamKey:
        return self.stream.key


class Delivery:
    """Sends streams. ``spans_of`` returns the spans of a stream. One thread uses it."""

    def __init__(self, endpoint: Endpoint, spans_of: Callable[[StalledStream], Sequence[Span]], metrics: Metrics) -> None:
        self._endpoint, self._spans_of, self._metrics = endpoint, spans_of, metrics
        # The streams that are done, each with its place: the parts of all tenants have separate progress, recorded at different times.
        self._done: dict[StreamKey, _Place] = {}
        # By the first stream of the request.
        self._failures: dict[StreamKey, tuple[int, _Place]] = {}
        # Streams at which the endpoint failed, although each was alone. They are refused only after another request was accepted.
        self._suspects: list[tuple[_Encoded, Failed]] = []
        self._refused_alone = 0
        self._accepted: _Encoded | None = None
        self._left_out: Counter[str] = Counter()
        self._encoding_failed = False
        self.streams = self.spans = 0

    def begin(self) -> None:
        """Begin a run: ``streams`` and ``spans`` count what it sends."""
        self._suspects, self._accepted, self.streams, self.spans = [], None, 0, 0

    def settle(self) -> None:
        """Find out about streams in doubt with a request that was accepted before, in this run. Raises ``TryLater``."""
        if self._suspects and self._accepted is not None:
            self._try((self._accepted,))

    @property
    def doubt(self) -> Failed | None:
        """The failure at a stream of this run that is not done: the progress must not be recorded. None without one."""
        return self._suspects[0][1] if self._suspects else None

    def recorded(self, until_ms: Callable[[int], int]) -> None:
        """Forget the streams that will not come again: the progress was recorded. ``until_ms``: that of a part, by its number (Unix ms).

        Streams of the last millisecond may come again, and so may those of a part that another one has passed.
        """
        self._done = {key: place for key, place in self._done.items() if place[1] > until_ms(place[0])}
        self._failures = {key: noted for key, noted in self._failures.items() if noted[1][1] > until_ms(noted[1][0])}

    def send(self, streams: Sequence[StalledStream]) -> None:
        """Send the streams that are not done. Raises ``TryLater``; streams that were sent before are done."""
        try:
            for part in _parts(self._encoded(streams)):
                if self._failures_of(part) < _FAILURES_MAX:
                    self._send_whole(part)
                else:
                    self._send_singly(part)
        finally:
            self._log_left_out()

    def _encoded(self, streams: Sequence[StalledStream]) -> Iterator[_Encoded]:
        """Yield the streams that are not done, by tenant, and leave those out that cannot be encoded."""
        for stream in sorted(streams, key=lambda each: each.tenant):
            if stream.key in self._done:
                continue
            try:
                spans = self._spans_of(stream)
            except Exception as error:
                self._metrics.errors.labels("trace_export", type(error).__name__).inc()
                if not self._encoding_failed:
                    _log.exception("spans about stalls cannot be encoded; such streams are left out, and only counted from now on")
                self._encoding_failed = True
                self._finish((stream,))
                continue
            yield _Encoded(stream, spans)

    def _failures_of(self, part: Sequence[_Encoded]) -> int:
        return self._failures.get(part[0].key, (0, None))[0]

    def _send_whole(self, part: Sequence[_Encoded]) -> None:
        try:
            self._try(part)
        except Failed:
            self._failures[part[0].key] = self._failures_of(part) + 1, _place(part[0].stream)
            raise

    def _send_singly(self, part: Sequence[_Encoded]) -> None:
        """Send each stream alone, to find those at which the endpoint fails. Raises ``Failed`` if it seems to fail at all.

        In any order, so that many of them at the beginning do not look like an endpoint that is away.
        """
        accepted: _Encoded | None = None
        for each in random.sample(part, len(part)):
            try:
                before = self.streams
                self._try((each,))
                accepted = each if self.streams > before else accepted
            except Failed as failure:
                self._suspects.append((each, failure))
                if len(self._suspects) >= _SUSPECTS_MAX:
                    raise
        if self._suspects and accepted:
            # Once more, as it shows whether the endpoint works still.
            self._try((accepted,))

    def _try(self, part: Sequence[_Encoded]) -> None:
        """Send a request. If it is refused, send its halves; what is refused alone is counted and left out."""
        spans = [span for each in part for span in each.spans]
        try:
            accepted = self._endpoint.send(request_of(part[0].key[0], spans))
        except Refused as refusal:
            if not refusal.divisible or len(part) == 1 or self._refused_alone >= _ALONE_MAX:
                self._refused_alone += 1
                self._leave_out(part, refusal)
                return
            self._try(part[: len(part) // 2])
            self._try(part[len(part) // 2 :])
            return
        rejected = min(accepted.rejected, len(spans))
        self._count("rejected", rejected, accepted.message)
        self._count("exported", len(spans) - rejected)
        self.streams += len(part)
        self.spans += len(spans) - rejected
        self._finish(each.stream for each in part)
        self._accepted = part[0]
        self._refused_alone = 0
        self._examine_suspects()

    def _examine_suspects(self) -> None:
        """Refuse the streams at which the endpoint fails still, now that it is known to accept others."""
        suspects, self._suspects = self._suspects, []
        for suspect, _ in suspects:
            for tries in range(1, _TRIES + 1):
                try:
                    self._try((suspect,))
                    break
                except Failed as failure:
                    if tries == _TRIES:
                        self._leave_out((suspect,), failure)

    def _leave_out(self, part: Sequence[_Encoded], reason: Refused | Failed) -> None:
        self._metrics.errors.labels("trace_export", reason.reason).inc()
        self._count("refused", sum(len(each.spans) for each in part), reason.message or reason.reason)
        self._finish(each.stream for each in part)

    def _count(self, outcome: str, spans: int, message: str = "") -> None:
        self._metrics.trace_export_spans.labels(outcome).inc(spans)
        if outcome != "exported" and spans:
            self._left_out[f"{outcome}: {message}"] += spans

    def _log_left_out(self) -> None:
        """Log one line for all spans of a page that were refused or rejected, with the most frequent reason."""
        if self._left_out:
            ((reason, _),) = self._left_out.most_common(1)
            _log.warning("the trace backend left out %d spans about stalls (%s)", self._left_out.total(), reason)
            self._left_out.clear()

    def _finish(self, streams: Iterable[StalledStream]) -> None:
        if len(self._done) < _DONE_MAX:
            self._done.update((stream.key, _place(stream)) for stream in streams)


def _place(stream: StalledStream) -> _Place:
    return stream.part, stream.received_ms


def _parts(streams: Iterable[_Encoded]) -> Iterator[list[_Encoded]]:
    """Yield the streams in requests: each of one tenant, and with at most ``_SPANS_MAX`` spans unless one stream has more."""
    part: list[_Encoded] = []
    spans = 0
    for stream in streams:
        if part and (part[0].key[0] != stream.key[0] or spans + len(stream.spans) > _SPANS_MAX):
            yield part
            part, spans = [], 0
        part.append(stream)
        spans += len(stream.spans)
    if part:
        yield part
