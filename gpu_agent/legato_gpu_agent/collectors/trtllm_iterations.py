"""TensorRT-LLM's iterations, as its steps: the JSON at /metrics of a server with enable_iter_perf_stats.

One idea: reading drains the list, so each iteration is told once, to one reader, and all of one poll are recorded at its end: a record is
late by up to a poll, which the attribution knows how to take, as a step's end comes from the intervals. What had piled up before anybody
polled is older than that, and is not told. Numbers that are left out are ``missing``: somebody else read the list. With return_perf_metrics
the server does so itself, after each request that it finished.

How long a step took is the engine's own loop (hostStepTimeMS). Without it, it is iterLatencyMS, but not where the scheduler overlaps two
iterations: there that is the time of both.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec

from legato_gpu_agent.collectors.decode_errors import none_of, reason_of
from legato_gpu_agent.collectors.http_fetch import Fetcher, FetchError, patience_s
from legato_gpu_agent.collectors.measurement import Found, Reading, booted
from legato_gpu_agent.engines.signals import signal
from legato_gpu_agent.plugin.model import Engine, Step
from legato_gpu_agent.plugin.protocol import Datagram

__all__ = ["ANSWER_S", "BadIterations", "Iterations"]

ANSWER_S = 6.0
"""A server is waited for at least so long: it waits 2 s for the first row and 2 s after the last, and meanwhile may answer nobody."""
_PATH = "/metrics"
# Iterations that came after a pause longer than this may be older than their record by as much. An idle server's poll takes 4 s.
_FRESH_S = 1.0 + ANSWER_S
# No engine takes more steps between two polls: a number further ahead is a mistake.
_MISSING_MAX = 1_000_000

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
_Ms = Annotated[float, msgspec.Meta(ge=0, le=3.6e6)]
_Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Few = Annotated[float, msgspec.Meta(ge=0, le=1e4)]


class BadIterations(ValueError):
    """What came is no list of iterations."""


class _KvCache(msgspec.Struct, rename="camel"):
    max_num_blocks: _Count | None = None
    used_num_blocks: _Count | None = None
    cache_hit_rate: _Ratio | None = None

    def __post_init__(self) -> None:
        if self.max_num_blocks and (self.used_num_blocks or 0) > self.max_num_blocks:
            raise ValueError("more blocks are used than there are")

    def used(self) -> float | None:
        """The share in use."""
        return self.used_num_blocks / self.max_num_blocks if self.max_num_blocks and self.used_num_blocks is not None else None


class _Batch(msgspec.Struct, rename="camel"):
    num_scheduled_requests: _Count | None = None
    num_context_requests: _Count | None = None
    num_gen_requests: _Count | None = None
    num_paused_requests: _Count | None = None
    num_ctx_tokens: _Count | None = None
    avg_num_decoded_tokens_per_iter: _Few | None = None

    def decode_tokens(self) -> int | None:
        """Older engines say 0 tokens a request, which is none: a request that decodes gets one at least."""
        if self.num_gen_requests is None or not self.avg_num_decoded_tokens_per_iter:
            return None
        return round(self.num_gen_requests * self.avg_num_decoded_tokens_per_iter)


class _Speculation(msgspec.Struct, rename="camel"):
    num_draft_tokens: _Count | None = None
    num_accepted_tokens: _Count | None = None
    acceptance_length: _Few | None = None


class _Row(msgspec.Struct, rename="camel"):
    iter: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    num_active_requests: _Count | None = None
    num_queued_requests: _Count | None = None
    latency_ms: _Ms | None = msgspec.field(name="iterLatencyMS", default=None)
    host_ms: _Ms | None = msgspec.field(name="hostStepTimeMS", default=None)
    gpu_ms: _Ms | None = msgspec.field(name="gpuForwardTimeMS", default=None)
    scheduler_mode: str | None = None
    attention_dp_rank: int | None = None
    kv: _KvCache | None = msgspec.field(name="kvCacheStats", default=None)
    batch: _Batch | None = msgspec.field(name="inflightBatchingStats", default=None)
    speculation: _Speculation | None = msgspec.field(name="specDecodingStats", default=None)

    def took_ms(self) -> float | None:
        """The one step's time, where it is known."""
        if self.host_ms is not None:
            return self.host_ms
        return None if self.scheduler_mode == "overlap" else self.latency_ms


class Iterations:
    """Reads the server at ``url``, whose engine is called ``engine_id``; each iteration is given to ``tell``.

    ``boot_id``: of the host by whose clock they are recorded.
    """

    # What was read is gone.
    drains = True

    def __init__(self, url: str, engine_id: str, tell: Callable[[Datagram], None], every_s: float = 1.0, boot_id: str = "") -> None:
        self.name, self.every_s = f"iterations {engine_id}", every_s
        self._id, self._url, self._tell, self._boot = engine_id, url, tell, booted(boot_id)
        self._fetcher = Fetcher(url, timeout_s=patience_s(every_s, ANSWER_S))
        self._list, self._row = msgspec.json.Decoder(list[msgspec.Raw]), msgspec.json.Decoder(_Row)
        self._engine: Engine | None = None
        self._last = -1
        self._polled_ns = self._since_ns = 0
        # Whether the iteration before the next one is known: after a page without any, the engine idled.
        self._follows = False
        self._rows, self._tokens = Counter[str](), Counter[str]()
        # Rows since the last that is known which could not be read, each of which may be the one that is left out; and why the newest.
        self._unread, self._why = 0, ""

    def epoch_ns(self) -> int:
        """Which engine the steps are of now (ns since the epoch), 0 before the first."""
        return self._engine.epoch_ns if self._engine is not None else 0

    def collect(self, now_ns: int) -> Iterator[Found]:
        """What the newest iteration tells of the engine, and counters. Raises ``BadIterations``, and what a connection may."""
        self._since_ns = self._since_ns or now_ns
        raws, ended_ns = self._poll(now_ns)
        is_fresh = ended_ns - self._polled_ns <= 1e9 * max(_FRESH_S, 3 * self.every_s)
        self._polled_ns = ended_ns
        bad_before = self._rows["bad"]
        newest = self._take(raws, ended_ns, is_fresh)
        if raws and self._rows["bad"] - bad_before == len(raws):
            raise BadIterations(f"{self._url}{_PATH}: {none_of(len(raws), 'rows', self._why, 'iterations of TensorRT-LLM')}")
        yield self._reading("up", 1.0)
        yield from self._of(newest) if newest is not None else ()
        for name, count in self._tokens.items():
            yield self._reading(name, float(count), self._since_ns)
        for what in ("taken", "late", "missing", "other", "bad"):
            attributes = (("legato.engine.id", self._id), ("legato.outcome", what))
            yield Reading("legato.agent.iterations", "{iteration}", float(self._rows[what]), attributes, self._since_ns)

    def close(self) -> None:
        """Give the connection up."""
        self._fetcher.close()

    def _poll(self, now_ns: int) -> tuple[list[msgspec.Raw], int]:
        """The rows, each still encoded, and when they were all here."""
        began_ns = time.monotonic_ns()
        try:
            raws = self._list.decode(self._fetcher.get(_PATH))
        except FetchError as error:
            raise BadIterations(f"{self._url}: {error}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            expected = "expected TensorRT-LLM's JSON, which it has with enable_iter_perf_stats: true"
            raise BadIterations(f"{self._url}{_PATH} is no list of iterations ({error}): {expected}") from None
        return raws, now_ns + time.monotonic_ns() - began_ns

    def _take(self, raws: list[msgspec.Raw], came_ns: int, is_fresh: bool) -> _Row | None:
        """Tell the steps; the newest row of the engine."""
        newest, restarted = None, False
        self._follows = self._follows and bool(raws)
        for raw in raws:
            try:
                row = self._row.decode(raw)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                self._rows["bad"] += 1
                self._unread, self._why = self._unread + 1, reason_of(error)
                continue
            # Each rank of attention DP tells the same iteration: the first one knows the queue. 0 is what an engine says before its first.
            if row.attention_dp_rank or row.iter == self._last or not row.iter:
                self._rows["other"] += 1
                continue
            if self._engine is None or row.iter < self._last:
                if restarted:
                    self._rows["bad"] += 1
                    continue
                self._engine, restarted = Engine(self._id, max(came_ns, self.epoch_ns() + 1)), True
                self._follows = False
            elif is_fresh:
                self._rows["missing"] += self._missing(row)
            self._rows["taken" if is_fresh else "late"] += 1
            if is_fresh:
                step = self._step_of(row, came_ns)
                self._tell(Datagram(self._engine, step))
                self._count(step)
            newest, self._last, self._follows, self._unread = row, row.iter, True, 0
        return newest

    def _missing(self, row: _Row) -> int:
        """How many were left out between the last that is known and this one."""
        missing = row.iter - self._last - 1 - self._unread
        return missing if 0 < missing <= _MISSING_MAX else 0

    def _step_of(self, row: _Row, came_ns: int) -> Step:
        batch, speculation, took_ms = row.batch or _Batch(), row.speculation or _Speculation(), row.took_ms()
        used = row.kv.used() if row.kv is not None else None
        return Step(
            number=row.iter,
            recorded_ns=came_ns,
            interval_us=round(1000 * took_ms) if took_ms is not None and self._follows else None,
            running=row.num_active_requests,
            waiting=row.num_queued_requests,
            prefill_requests=batch.num_context_requests,
            prefill_tokens=batch.num_ctx_tokens,
            decode_requests=batch.num_gen_requests,
            decode_tokens=batch.decode_tokens(),
            draft_tokens=speculation.num_draft_tokens,
            accepted_tokens=speculation.num_accepted_tokens,
            elapsed_us=round(1000 * row.gpu_ms) if row.gpu_ms is not None else None,
            kv_used_ppm=round(1e6 * used) if used is not None else None,
        )

    def _count(self, step: Step) -> None:
        for name, tokens in (("draft_tokens", step.draft_tokens), ("accepted_tokens", step.accepted_tokens)):
            if tokens is not None:
                self._tokens[f"speculation.{name}"] += tokens

    def _of(self, row: _Row) -> Iterator[Reading]:
        """The gauges that this row has."""
        batch, kv, took_ms = row.batch or _Batch(), row.kv or _KvCache(), row.took_ms()
        for name, value in (
            ("requests.running", row.num_active_requests),
            ("requests.waiting", row.num_queued_requests),
            ("kv_cache.utilization", kv.used()),
            ("prefix_cache.hit_rate", kv.cache_hit_rate),
            ("preempted", batch.num_paused_requests),
            ("step.requests", batch.num_scheduled_requests),
            ("step.time", took_ms / 1000 if took_ms is not None else None),
            ("speculation.accept_length", row.speculation.acceptance_length if row.speculation is not None else None),
        ):
            if value is not None:
                yield self._reading(name, float(value))

    def _reading(self, name: str, value: float, since_ns: int = 0) -> Reading:
        whose = (("legato.engine.id", self._id), ("legato.engine.kind", "tensorrt_llm"))
        if name == "up":
            return Reading("legato.engine.up", "1", value, (*self._boot, *whose))
        return Reading(signal(name).name, signal(name).unit, value, whose, since_ns)
