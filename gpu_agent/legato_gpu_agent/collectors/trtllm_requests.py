"""TensorRT-LLM's finished requests: the JSON at /perf_metrics of a server with return_perf_metrics and perf_metrics_max_requests.

One idea: reading drains the list, so each request is told once, to one reader; what had piled up before anybody read it is older than that,
and is not told. Times are of the server's steady clock: only what lies between two of them says anything. The requests go with the steps of
their engine, which the JSON at /metrics tells (``Iterations``); the two lists are drained each for itself.

What a row calls ``request_id`` is the engine's own number, which is no client's id: a client has one made up for every answer or, in
streams of newer servers, this number behind ``chatcmpl-`` or ``cmpl-``. Which of them a row does not say, and each server counts from one,
so that streams of two servers would be taken for one another. The number alone is therefore the request's id here: it tells the requests
of an engine apart, and names no stream. What they waited and took is told as histograms, too. A row says nothing of tokens, nor why it
ended.

``last_iter`` is the step in which a request ended; where the scheduler overlaps two iterations it may be the one after. Rows of a server
in front of disaggregated ones are of two other engines each, and not told: those servers have their own. Blocks of the KV cache are left
out, as the vocabulary counts tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import msgspec

from legato_gpu_agent.collectors import Absent
from legato_gpu_agent.collectors.decode_errors import none_of, reason_of
from legato_gpu_agent.collectors.http_fetch import Fetcher, FetchError, patience_s
from legato_gpu_agent.collectors.measurement import Distribution, Found, Reading
from legato_gpu_agent.collectors.request_queue import Waiting, microseconds, seconds, text
from legato_gpu_agent.collectors.trtllm_iterations import ANSWER_S
from legato_gpu_agent.engines.signals import signal
from legato_gpu_agent.plugin.model import FinishedRequest
from legato_gpu_agent.plugin.protocol import Datagram

__all__ = ["ROWS_MAX", "BadPerfMetrics", "PerfMetrics"]

ROWS_MAX = 8_192
"""Of a longer list the rest is dropped: a server keeps perf_metrics_max_requests."""
_PATH = "/perf_metrics"
# Requests that came after a pause longer than this may have ended before it.
_FRESH_S = 5.0
# A server that keeps no requests answers with an empty list, as one does that has finished none.
_SILENT_S = 60.0
_KEEPS = "return_perf_metrics: true and perf_metrics_max_requests: 1000"
_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 1000.0)
_TOLD = ("queue.time", "prefill.time", "decode.time", "ttft", "request.time")

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class BadPerfMetrics(ValueError):
    """What came is no list of finished requests."""


class _Times(msgspec.Struct):
    """Seconds of the server's steady clock. What a request did not come to is null or, in older servers, 0."""

    arrival_time: float | None = None
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None

    def took(self) -> dict[str, float]:
        """Seconds of each part that is known."""
        arrived = self.arrival_time
        if arrived is None or arrived <= 0:
            return {}
        times = (self.first_scheduled_time, self.first_token_time, self.last_token_time)
        scheduled, first, last = (each if each is not None and each >= arrived else None for each in times)
        between = ((arrived, scheduled), (scheduled, first), (first, last), (arrived, first), (arrived, last))
        known = {name: seconds(*each) for name, each in zip(_TOLD, between, strict=True)}
        return {name: took_s for name, took_s in known.items() if took_s is not None}


class _Metrics(msgspec.Struct):
    last_iter: _Number | None = None
    timing_metrics: _Times | None = None


class _Row(msgspec.Struct):
    request_id: _Number | Annotated[str, msgspec.Meta(min_length=1)] | None = None
    perf_metrics: _Metrics | None = None
    # Of a server in front of disaggregated ones, which has neither of the above.
    gen_server: str | None = None


class PerfMetrics:
    """Reads the server at ``url``, whose engine is called ``engine_id``; the requests of a round are given to ``tell``.

    ``epoch_ns`` says which engine they are of, as whoever tells its steps does (``Iterations.epoch_ns``), 0 while it does not know;
    without it they are of one that began with the first round.
    """

    # What was read is gone.
    drains = True

    def __init__(
        self,
        url: str,
        engine_id: str,
        tell: Callable[[Datagram], None],
        every_s: float = 1.0,
        epoch_ns: Callable[[], int] | None = None,
    ) -> None:
        self.name, self.every_s = f"perf metrics {engine_id}", every_s
        self._id, self._url = engine_id, url
        # While it waits for a row of the iterations, a server may answer nobody.
        self._fetcher = Fetcher(url, timeout_s=patience_s(every_s, ANSWER_S))
        self._list, self._row = msgspec.json.Decoder(list[msgspec.Raw]), msgspec.json.Decoder(_Row)
        self._polled_ns = self._since_ns = self._silent_ns = 0
        self._was_empty = False
        self._epoch_ns = epoch_ns or (lambda: self._since_ns)
        self._waiting = Waiting(engine_id, tell, self._epoch_ns)
        self._rows = Counter[str]()
        self._why = ""

    def collect(self, now_ns: int) -> Iterator[Found]:
        """Histograms of what the requests took, and counters. Raises ``Absent``, ``BadPerfMetrics``, and what a connection may."""
        self._since_ns = self._since_ns or now_ns
        # Nothing piles up behind a list that was empty, however long ago that was.
        was_empty, self._was_empty = self._was_empty, False
        raws = self._poll()
        before_ns, self._polled_ns, self._was_empty = self._polled_ns, now_ns, not raws
        bad_before = self._rows["bad"]
        took = self._take(raws, was_empty or now_ns - before_ns <= 1e9 * max(_FRESH_S, 3 * self.every_s))
        self._waiting.tell()
        self._refuse_the_unusable(min(len(raws), ROWS_MAX), self._rows["bad"] - bad_before)
        self._refuse_silence(now_ns)
        yield from self._distributions(took, before_ns)
        dropped = self._rows["dropped"] + self._waiting.dropped
        for what, count in (*((what, self._rows[what]) for what in ("taken", "late", "other", "bad")), ("dropped", dropped)):
            whose = (("legato.engine.id", self._id), ("legato.outcome", what))
            yield Reading("legato.agent.perf_metrics", "{request}", float(count), whose, self._since_ns)

    def close(self) -> None:
        """Give the connection up."""
        self._fetcher.close()

    def _poll(self) -> list[msgspec.Raw]:
        """The rows, each still encoded."""
        try:
            return self._list.decode(self._fetcher.get(_PATH))
        except FetchError as error:
            if str(error).startswith(f"{_PATH} answers 404"):
                raise Absent(
                    f"{self._url}{_PATH} answers 404: this TensorRT-LLM tells no finished requests there "
                    "(it came with pull request 6985 and went with 16668); its steps are told all the same"
                ) from None
            raise BadPerfMetrics(f"{self._url}: {error}: expected a list of finished requests; read it more often if it is long") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            expected = f"expected TensorRT-LLM's JSON, which it has with {_KEEPS}; LEGATO_ITERATIONS takes the URLs of its servers"
            raise BadPerfMetrics(f"{self._url}{_PATH} is no list of finished requests ({error}): {expected}") from None

    def _take(self, raws: Sequence[msgspec.Raw], is_fresh: bool) -> list[dict[str, float]]:
        """Keep the requests; what each of them took."""
        out = []
        self._rows["dropped"] += max(len(raws) - ROWS_MAX, 0)
        for raw in raws[:ROWS_MAX]:
            try:
                row = self._row.decode(raw)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                self._rows["bad"] += 1
                self._why = reason_of(error)
                continue
            if row.gen_server is not None:
                self._rows["other"] += 1
            elif row.request_id is None or row.perf_metrics is None:
                self._rows["bad"] += 1
                self._why = "a row without request_id or perf_metrics"
            elif not is_fresh:
                self._rows["late"] += 1
            else:
                took = (row.perf_metrics.timing_metrics or _Times()).took()
                self._waiting.add(_request_of(row.request_id, row.perf_metrics.last_iter or 0, took))
                self._rows["taken"] += 1
                out.append(took)
        return out

    def _refuse_the_unusable(self, rows: int, bad: int) -> None:
        if rows and bad == rows:
            raise BadPerfMetrics(f"{self._url}{_PATH}: {none_of(rows, 'rows', self._why, 'finished requests of TensorRT-LLM')}")

    def _refuse_silence(self, now_ns: int) -> None:
        """Raises ``Absent`` where steps have long been told, and never a request."""
        if self._rows.total() or not self._epoch_ns():
            return
        self._silent_ns = self._silent_ns or now_ns
        if now_ns - self._silent_ns > 1e9 * _SILENT_S:
            raise Absent(
                f"{self._url}{_PATH} has told no finished request in the {_SILENT_S:.0f} s since its engine's first step: "
                f"does it run with {_KEEPS}? Its steps are told all the same"
            )

    def _distributions(self, took: Sequence[dict[str, float]], since_ns: int) -> Iterator[Distribution]:
        """Of what came since the round before; nothing where nothing came."""
        whose = (("legato.engine.id", self._id), ("legato.engine.kind", "tensorrt_llm"))
        for name in _TOLD:
            values = [each[name] for each in took if name in each]
            if values:
                counts = Counter(bisect_left(_BOUNDS_S, value) for value in values)
                by_bound = tuple(counts[place] for place in range(len(_BOUNDS_S) + 1))
                yield Distribution(signal(name).name, signal(name).unit, _BOUNDS_S, by_bound, sum(values), since_ns, whose)


def _request_of(number: int | str, step: int, took: dict[str, float]) -> FinishedRequest:
    return FinishedRequest(
        step=step,
        response_id=text(str(number)),
        queued_us=microseconds(took.get("queue.time")),
        prefill_us=microseconds(took.get("prefill.time")),
        decode_us=microseconds(took.get("decode.time")),
    )
