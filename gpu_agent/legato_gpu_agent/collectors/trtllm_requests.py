"""Reads TensorRT-LLM's finished requests: the JSON at /perf_metrics of a server with return_perf_metrics and perf_metrics_max_requests.

A read removes the returned requests from the server's list, so each is returned once, to one client. Requests that had accumulated before
the first read are older than their record and are not emitted. Times are of the server's steady clock, so only differences are used. The
requests are sent with the steps of their engine, which come from the JSON at /metrics (``Iterations``); the two lists are independent.

``request_id`` of a row is the engine's own number, not the id of a client. A client has an id generated for each response or, in streams of
newer servers, this number after ``chatcmpl-`` or ``cmpl-``. A row does not show which of the two, and each server counts from 1, so streams
of two servers would be confused. The plain number is therefore the request's id here: it distinguishes the requests of one engine and names
no stream. Waiting times and durations are exported as histograms too. A row has neither token counts nor the reason of its end.

``last_iter`` is the step in which a request ended; where the scheduler overlaps two iterations it may be the next one. Rows of a server in
front of disaggregated ones belong to two other engines each and are not emitted, because those servers have their own. Blocks of the KV
cache are left out, because the signal catalogue counts tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import msgspec

from legato_gpu_agent.collectors.base import NotAvailable
from legato_gpu_agent.collectors.decode_errors import nothing_decoded, safe_reason
from legato_gpu_agent.collectors.http_fetch import Fetcher, FetchError, fetch_timeout_s
from legato_gpu_agent.collectors.measurement import Distribution, Measured, Measurement
from legato_gpu_agent.collectors.request_queue import RequestQueue, microseconds, seconds, text
from legato_gpu_agent.collectors.trtllm_iterations import ANSWER_S
from legato_gpu_agent.engines.signals import signal
from legato_gpu_agent.plugin.model import FinishedRequest
from legato_gpu_agent.plugin.protocol import Datagram

__all__ = ["ROWS_MAX", "BadPerfMetrics", "PerfMetrics"]

ROWS_MAX = 8_192
"""Maximum number of rows of one read; the rest is dropped. A server keeps perf_metrics_max_requests."""
_PATH = "/perf_metrics"
# Requests that arrive after a longer pause may have ended before it.
_FRESH_S = 5.0
# A server that keeps no requests returns an empty list, like one without finished requests. After this time that is reported.
_SILENT_S = 60.0
_OPTIONS = "return_perf_metrics: true and perf_metrics_max_requests: 1000"
_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 1000.0)
_DURATIONS = ("queue.time", "prefill.time", "decode.time", "ttft", "request.time")

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class BadPerfMetrics(ValueError):
    """The response is not a list of finished requests."""


class _Times(msgspec.Struct):
    """Seconds of the server's steady clock. A phase that a request did not reach is null or, in older servers, 0."""

    arrival_time: float | None = None
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None

    def durations(self) -> dict[str, float]:
        """Return the known durations in s, by signal."""
        arrived = self.arrival_time
        if arrived is None or arrived <= 0:
            return {}
        times = (self.first_scheduled_time, self.first_token_time, self.last_token_time)
        scheduled, first, last = (each if each is not None and each >= arrived else None for each in times)
        between = ((arrived, scheduled), (scheduled, first), (first, last), (arrived, first), (arrived, last))
        known = {name: seconds(*each) for name, each in zip(_DURATIONS, between, strict=True)}
        return {name: duration_s for name, duration_s in known.items() if duration_s is not None}


class _Metrics(msgspec.Struct):
    last_iter: _Number | None = None
    timing_metrics: _Times | None = None


class _Row(msgspec.Struct):
    request_id: _Number | Annotated[str, msgspec.Meta(min_length=1)] | None = None
    perf_metrics: _Metrics | None = None
    # Set by a server in front of disaggregated ones, which sets neither field above.
    gen_server: str | None = None


class PerfMetrics:
    """Reads the server at ``url`` with the engine ``engine_id``; the requests of a round are passed to ``emit``.

    ``epoch_ns`` returns the epoch of the engine, as the collector of its steps knows it (``Iterations.epoch_ns``), 0 while unknown.
    Without it the engine's epoch is the first round.
    """

    # A read removes the data from the server.
    drains = True

    def __init__(
        self,
        url: str,
        engine_id: str,
        emit: Callable[[Datagram], None],
        every_s: float = 1.0,
        epoch_ns: Callable[[], int] | None = None,
    ) -> None:
        self.name, self.every_s = f"perf metrics {engine_id}", every_s
        self._id, self._url = engine_id, url
        # While it waits for an iteration, a server may answer no other request.
        self._fetcher = Fetcher(url, timeout_s=fetch_timeout_s(every_s, ANSWER_S))
        self._list, self._row = msgspec.json.Decoder(list[msgspec.Raw]), msgspec.json.Decoder(_Row)
        self._polled_ns = self._start_ns = self._silent_ns = 0
        self._was_empty = False
        self._epoch_ns = epoch_ns or (lambda: self._start_ns)
        self._queue = RequestQueue(engine_id, emit, self._epoch_ns)
        self._rows = Counter[str]()
        self._why = ""

    def collect(self, now_ns: int) -> Iterator[Measured]:
        """Yield histograms of the requests' durations, and counters.

        Raises ``NotAvailable``, ``BadPerfMetrics``, ``OSError`` and ``http.client.HTTPException``.
        """
        self._start_ns = self._start_ns or now_ns
        # After an empty list all rows are newer than it, after a pause of any length.
        was_empty, self._was_empty = self._was_empty, False
        raws = self._poll()
        before_ns, self._polled_ns, self._was_empty = self._polled_ns, now_ns, not raws
        bad_before = self._rows["bad"]
        durations = self._take(raws, was_empty or now_ns - before_ns <= 1e9 * max(_FRESH_S, 3 * self.every_s))
        self._queue.flush()
        self._raise_if_all_bad(min(len(raws), ROWS_MAX), self._rows["bad"] - bad_before)
        self._raise_if_silent(now_ns)
        yield from self._distributions(durations, before_ns)
        dropped = self._rows["dropped"] + self._queue.dropped
        for outcome, count in (*((outcome, self._rows[outcome]) for outcome in ("taken", "late", "other", "bad")), ("dropped", dropped)):
            attributes = (("legato.engine.id", self._id), ("legato.outcome", outcome))
            yield Measurement("legato.agent.perf_metrics", "{request}", float(count), attributes, self._start_ns)

    def close(self) -> None:
        """Close the connection."""
        self._fetcher.close()

    def _poll(self) -> list[msgspec.Raw]:
        """Return the rows, each still encoded."""
        try:
            return self._list.decode(self._fetcher.get(_PATH))
        except FetchError as error:
            if str(error).startswith(f"{_PATH} answers 404"):
                raise NotAvailable(
                    f"{self._url}{_PATH} answers 404: this TensorRT-LLM does not serve finished requests "
                    "(added by pull request 6985, removed by 16668); its steps are recorded all the same"
                ) from None
            raise BadPerfMetrics(
                f"{self._url}: {error}: expected a list of finished requests; a long one needs a smaller LEGATO_SAMPLE_MS"
            ) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            expected = f"expected TensorRT-LLM's JSON, which it serves with {_OPTIONS}; LEGATO_ITERATIONS takes the URLs of its servers"
            raise BadPerfMetrics(f"{self._url}{_PATH} is not a list of finished requests ({error}): {expected}") from None

    def _take(self, raws: Sequence[msgspec.Raw], is_fresh: bool) -> list[dict[str, float]]:
        """Queue the requests; return the durations of each."""
        out = []
        self._rows["dropped"] += max(len(raws) - ROWS_MAX, 0)
        for raw in raws[:ROWS_MAX]:
            try:
                row = self._row.decode(raw)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                self._rows["bad"] += 1
                self._why = safe_reason(error)
                continue
            if row.gen_server is not None:
                self._rows["other"] += 1
            elif row.request_id is None or row.perf_metrics is None:
                self._rows["bad"] += 1
                self._why = "a row without request_id or perf_metrics"
            elif not is_fresh:
                self._rows["late"] += 1
            else:
                durations = (row.perf_metrics.timing_metrics or _Times()).durations()
                self._queue.add(_request_of(row.request_id, row.perf_metrics.last_iter or 0, durations))
                self._rows["taken"] += 1
                out.append(durations)
        return out

    def _raise_if_all_bad(self, rows: int, bad: int) -> None:
        if rows and bad == rows:
            raise BadPerfMetrics(f"{self._url}{_PATH}: {nothing_decoded(rows, 'rows', self._why, 'finished requests of TensorRT-LLM')}")

    def _raise_if_silent(self, now_ns: int) -> None:
        """Raise ``NotAvailable`` if the engine has had steps for a minute and no request was ever returned."""
        if self._rows.total() or not self._epoch_ns():
            return
        self._silent_ns = self._silent_ns or now_ns
        if now_ns - self._silent_ns > 1e9 * _SILENT_S:
            raise NotAvailable(
                f"{self._url}{_PATH} returned no finished request in the {_SILENT_S:.0f} s since its engine's first step: "
                f"does it run with {_OPTIONS}? Its steps are recorded all the same"
            )

    def _distributions(self, durations: Sequence[dict[str, float]], start_ns: int) -> Iterator[Distribution]:
        """Yield a histogram of each duration since the last round, if it has values."""
        owner = (("legato.engine.id", self._id), ("legato.engine.kind", "tensorrt_llm"))
        for name in _DURATIONS:
            values = [each[name] for each in durations if name in each]
            if values:
                counts = Counter(bisect_left(_BOUNDS_S, value) for value in values)
                by_bound = tuple(counts[place] for place in range(len(_BOUNDS_S) + 1))
                yield Distribution(signal(name).name, signal(name).unit, _BOUNDS_S, by_bound, sum(values), start_ns, owner)


def _request_of(number: int | str, step: int, durations: dict[str, float]) -> FinishedRequest:
    return FinishedRequest(
        step=step,
        response_id=text(str(number)),
        queued_us=microseconds(durations.get("queue.time")),
        prefill_us=microseconds(durations.get("prefill.time")),
        decode_us=microseconds(durations.get("decode.time")),
    )
