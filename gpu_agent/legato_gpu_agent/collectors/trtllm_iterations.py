"""Turns TensorRT-LLM's iterations into steps: the JSON at /metrics of a server with enable_iter_perf_stats.

A read removes the returned iterations from the server's list, so each is returned once, to one client. All iterations of a poll are
recorded at its end, so a record is late by up to one poll interval; attribution derives the end of a step from the intervals. Iterations
that had accumulated before the first poll are older than that and are not emitted. Missing numbers are counted: another client read the
list. With return_perf_metrics the server reads it itself, after each finished request.

The duration of a step is that of the engine's loop (hostStepTimeMS). Without it, iterLatencyMS is used, except where the scheduler overlaps
two iterations, because there it covers both.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec

from legato_gpu_agent.collectors.decode_errors import nothing_decoded, safe_reason
from legato_gpu_agent.collectors.http_fetch import Fetcher, FetchError, fetch_timeout_s
from legato_gpu_agent.collectors.measurement import Measured, Measurement, boot_attributes
from legato_gpu_agent.engines.signals import signal
from legato_gpu_agent.plugin.model import Engine, Step
from legato_gpu_agent.plugin.protocol import Datagram

__all__ = ["ANSWER_S", "BadIterations", "Iterations"]

ANSWER_S = 6.0
"""Minimum timeout: a server waits 2 s for the first row and 2 s after the last one, and may answer no other request meanwhile."""
_PATH = "/metrics"
# Iterations that arrive after a longer pause may be older than their record by as much. A poll of an idle server takes 4 s.
_FRESH_S = 1.0 + ANSWER_S
# Maximum number of iterations counted as missing at once: no engine makes more between two polls.
_MISSING_MAX = 1_000_000

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
_Ms = Annotated[float, msgspec.Meta(ge=0, le=3.6e6)]
_Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Few = Annotated[float, msgspec.Meta(ge=0, le=1e4)]


class BadIterations(ValueError):
    """The response is not a list of iterations."""


class _KvCache(msgspec.Struct, rename="camel"):
    max_num_blocks: _Count | None = None
    used_num_blocks: _Count | None = None
    cache_hit_rate: _Ratio | None = None

    def __post_init__(self) -> None:
        if self.max_num_blocks and (self.used_num_blocks or 0) > self.max_num_blocks:
            raise ValueError("more blocks are used than exist")

    def used(self) -> float | None:
        """Return the share of blocks in use."""
        return self.used_num_blocks / self.max_num_blocks if self.max_num_blocks and self.used_num_blocks is not None else None


class _Batch(msgspec.Struct, rename="camel"):
    num_scheduled_requests: _Count | None = None
    num_context_requests: _Count | None = None
    num_gen_requests: _Count | None = None
    num_paused_requests: _Count | None = None
    num_ctx_tokens: _Count | None = None
    avg_num_decoded_tokens_per_iter: _Few | None = None

    def decode_tokens(self) -> int | None:
        """Return the decoded tokens. 0 tokens per request, as older engines write, means unknown: a decoding request gets at least one."""
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

    def duration_ms(self) -> float | None:
        """Return the duration of this iteration alone; ``None`` if it is unknown."""
        if self.host_ms is not None:
            return self.host_ms
        return None if self.scheduler_mode == "overlap" else self.latency_ms


class Iterations:
    """Reads the server at ``url`` with the engine ``engine_id``; each iteration is passed to ``emit``.

    ``boot_id``: the boot of the host with the clock of the records.
    """

    # A read removes the data from the server.
    drains = True

    def __init__(self, url: str, engine_id: str, emit: Callable[[Datagram], None], every_s: float = 1.0, boot_id: str = "") -> None:
        self.name, self.every_s = f"iterations {engine_id}", every_s
        self._id, self._url, self._emit, self._boot = engine_id, url, emit, boot_attributes(boot_id)
        self._fetcher = Fetcher(url, timeout_s=fetch_timeout_s(every_s, ANSWER_S))
        self._list, self._row = msgspec.json.Decoder(list[msgspec.Raw]), msgspec.json.Decoder(_Row)
        self._engine: Engine | None = None
        self._last = -1
        self._polled_ns = self._start_ns = 0
        # Whether the iteration before the next one is known: after an empty response it is not, because the engine was idle.
        self._follows = False
        self._rows, self._tokens = Counter[str](), Counter[str]()
        # Undecodable rows since the last known one, each of which may be a missing iteration; and the reason of the newest.
        self._undecoded, self._why = 0, ""

    def epoch_ns(self) -> int:
        """Return the epoch of the engine that the steps belong to (ns since the Unix epoch), 0 before the first step."""
        return self._engine.epoch_ns if self._engine is not None else 0

    def collect(self, now_ns: int) -> Iterator[Measured]:
        """Yield gauges of the newest iteration, and counters. Raises ``BadIterations``, ``OSError`` and ``http.client.HTTPException``."""
        self._start_ns = self._start_ns or now_ns
        raws, ended_ns = self._poll(now_ns)
        is_fresh = ended_ns - self._polled_ns <= 1e9 * max(_FRESH_S, 3 * self.every_s)
        self._polled_ns = ended_ns
        bad_before = self._rows["bad"]
        newest = self._take(raws, ended_ns, is_fresh)
        if raws and self._rows["bad"] - bad_before == len(raws):
            raise BadIterations(f"{self._url}{_PATH}: {nothing_decoded(len(raws), 'rows', self._why, 'iterations of TensorRT-LLM')}")
        yield self._measurement("up", 1.0)
        yield from self._gauges(newest) if newest is not None else ()
        for name, count in self._tokens.items():
            yield self._measurement(name, float(count), self._start_ns)
        for outcome in ("taken", "late", "missing", "other", "bad"):
            attributes = (("legato.engine.id", self._id), ("legato.outcome", outcome))
            yield Measurement("legato.agent.iterations", "{iteration}", float(self._rows[outcome]), attributes, self._start_ns)

    def close(self) -> None:
        """Close the connection."""
        self._fetcher.close()

    def _poll(self, now_ns: int) -> tuple[list[msgspec.Raw], int]:
        """Return the rows, each still encoded, and the time at which all were received."""
        began_ns = time.monotonic_ns()
        try:
            raws = self._list.decode(self._fetcher.get(_PATH))
        except FetchError as error:
            raise BadIterations(f"{self._url}: {error}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            expected = "expected TensorRT-LLM's JSON, which it serves with enable_iter_perf_stats: true"
            raise BadIterations(f"{self._url}{_PATH} is not a list of iterations ({error}): {expected}") from None
        return raws, now_ns + time.monotonic_ns() - began_ns

    def _take(self, raws: list[msgspec.Raw], arrived_ns: int, is_fresh: bool) -> _Row | None:
        """Emit the steps; return the newest row of the engine."""
        newest, restarted = None, False
        self._follows = self._follows and bool(raws)
        for raw in raws:
            try:
                row = self._row.decode(raw)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                self._rows["bad"] += 1
                self._undecoded, self._why = self._undecoded + 1, safe_reason(error)
                continue
            # Every rank of attention DP returns the same iteration; only the first has the queue. An engine returns 0 before its first one.
            if row.attention_dp_rank or row.iter == self._last or not row.iter:
                self._rows["other"] += 1
                continue
            if self._engine is None or row.iter < self._last:
                if restarted:
                    self._rows["bad"] += 1
                    continue
                self._engine, restarted = Engine(self._id, max(arrived_ns, self.epoch_ns() + 1)), True
                self._follows = False
            elif is_fresh:
                self._rows["missing"] += self._missing(row)
            self._rows["taken" if is_fresh else "late"] += 1
            if is_fresh:
                step = self._step_of(row, arrived_ns)
                self._emit(Datagram(self._engine, step))
                self._count(step)
            newest, self._last, self._follows, self._undecoded = row, row.iter, True, 0
        return newest

    def _missing(self, row: _Row) -> int:
        """Return how many iterations are missing between the last known one and this one."""
        missing = row.iter - self._last - 1 - self._undecoded
        return missing if 0 < missing <= _MISSING_MAX else 0

    def _step_of(self, row: _Row, arrived_ns: int) -> Step:
        batch, speculation, duration_ms = row.batch or _Batch(), row.speculation or _Speculation(), row.duration_ms()
        used = row.kv.used() if row.kv is not None else None
        return Step(
            number=row.iter,
            recorded_ns=arrived_ns,
            interval_us=round(1000 * duration_ms) if duration_ms is not None and self._follows else None,
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

    def _gauges(self, row: _Row) -> Iterator[Measurement]:
        """Yield the gauges that this row has."""
        batch, kv, duration_ms = row.batch or _Batch(), row.kv or _KvCache(), row.duration_ms()
        for name, value in (
            ("requests.running", row.num_active_requests),
            ("requests.waiting", row.num_queued_requests),
            ("kv_cache.utilization", kv.used()),
            ("prefix_cache.hit_rate", kv.cache_hit_rate),
            ("preempted", batch.num_paused_requests),
            ("step.requests", batch.num_scheduled_requests),
            ("step.time", duration_ms / 1000 if duration_ms is not None else None),
            ("speculation.accept_length", row.speculation.acceptance_length if row.speculation is not None else None),
        ):
            if value is not None:
                yield self._measurement(name, float(value))

    def _measurement(self, name: str, value: float, start_ns: int | None = None) -> Measurement:
        owner = (("legato.engine.id", self._id), ("legato.engine.kind", "tensorrt_llm"))
        if name == "up":
            return Measurement("legato.engine.up", "1", value, (*self._boot, *owner))
        return Measurement(signal(name).name, signal(name).unit, value, owner, start_ns)
