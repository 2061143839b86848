"""Encodes the statistics objects of one vLLM step as datagrams: the part of the stat-logger plugin that needs no vLLM.

`record()` runs on the event loop that serves all streams, so it reads its attributes in a few C calls, packs one struct and writes it to a
non-blocking pipe. vLLM does not guarantee these objects: an attribute that is missing or not a number is recorded as unknown and logged
once. The module imports no vLLM, keeps no statistics and never raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import sys
import time
from collections.abc import Callable, MutableMapping, Sequence
from operator import attrgetter
from typing import Any

from legato_gpu_agent.plugin.identity import ENGINE_ID, engine_id, pipe_path
from legato_gpu_agent.plugin.model import Engine, FinishedRequest
from legato_gpu_agent.plugin.pipe_writer import PipeWriter
from legato_gpu_agent.plugin.protocol import FINISHED, finished_entry, pack_entries, step_packer

__all__ = ["StepRecorder"]

_log = logging.getLogger("legato")
_UNKNOWN = -1
_VALUE_MAX = 2**32 - 2
# The durations of a request have 64 bits.
_DURATION_US_MAX = 2**63 - 1
_FINISHED_MAX = 4096
_WARNINGS_MAX = 100
_RETRY_S = 0.1

_SCHEDULER = (
    "num_running_reqs",
    "num_waiting_reqs",
    "num_skipped_waiting_reqs",
    "kv_cache_usage",
    "iteration_details",
    "spec_decoding_stats",
)
_DETAILS = ("num_ctx_requests", "num_ctx_tokens", "num_generation_requests", "num_generation_tokens", "elapsed_ms")
_SPECULATION = ("num_draft_tokens", "num_accepted_tokens")
_ITERATION = ("inter_token_latencies_iter", "num_preempted_reqs", "finished_requests")
_REQUEST = (
    *("request_id", "finish_reason", "num_preemptions", "num_prompt_tokens", "num_generation_tokens"),
    *("queued_time", "prefill_time", "decode_time"),
)
# Each getter reads all its attributes in one call, or raises.
_get_scheduler, _get_details = attrgetter(*_SCHEDULER), attrgetter(*_DETAILS)
_get_speculation, _get_iteration = attrgetter(*_SPECULATION), attrgetter(*_ITERATION)


class StepRecorder:
    """Encodes and sends each step of one engine; ``number`` is the number of the last step.

    ``index``: the number of the engine among those behind one server, from 0.
    """

    def __init__(
        self,
        index: int = 0,
        *,
        environ: MutableMapping[str, str] = os.environ,
        arguments: Sequence[str] | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._clock_ns = clock_ns
        arguments = sys.argv if arguments is None else arguments
        # `legato.asgi.StreamMiddleware` is created later in the same process and reads this variable, so both use the same id.
        environ.setdefault(ENGINE_ID, engine_id(environ, arguments))
        self.engine = Engine(engine_id(environ, arguments, index), clock_ns())
        self.writer = PipeWriter(str(pipe_path(environ)))
        self.number = 0
        self._pack_step = step_packer(self.engine)
        self._warned: set[str] = set()
        self._retry_scheduled = False

    def record(self, scheduler_stats: Any, iteration_stats: Any) -> None:
        """Record one step from the objects that vLLM passes to its loggers. A step without both objects is ignored."""
        if scheduler_stats is None and iteration_stats is None:
            return
        number = self.number = self.number + 1
        now = self._clock_ns()
        try:
            try:
                datagram = self._encode_fast(number, now, scheduler_stats, iteration_stats)
            except Exception:
                datagram = self._encode_checked(number, now, scheduler_stats, iteration_stats)
            if not self.writer.send(datagram):
                self._retry_later()
        except Exception as error:
            self._warn_once(f"recording a step failed with {type(error).__name__}; the engine is not affected")

    def flush(self) -> bool:
        """Send the backlog; return whether it is empty. Called while the engine is idle."""
        try:
            return self.writer.flush()
        except Exception as error:
            self._warn_once(f"sending failed with {type(error).__name__}; the engine is not affected")
            return True

    def _retry_later(self) -> None:
        """Send the backlog again in 0.1 s, on the event loop that records: the unsent step may be the last one for a long time."""
        if not self._retry_scheduled:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().call_later(_RETRY_S, self._retry)
                self._retry_scheduled = True

    def _retry(self) -> None:
        self._retry_scheduled = False
        if not self.flush():
            self._retry_later()

    def _encode_fast(self, number: int, now: int, scheduler_stats: Any, iteration_stats: Any) -> bytes:
        """Encode a step with objects as expected; any other object raises before a byte is sent."""
        intervals, preempted, finished = _get_iteration(iteration_stats)
        running, waiting, skipped, kv_used, details, speculation = _get_scheduler(scheduler_stats)
        shortest = longest = context = context_tokens = decodes = decode_tokens = elapsed_us = drafts = accepted = _UNKNOWN
        if intervals:
            # Up to some hundred values one sort is cheaper than min and max. Differences of one clock always compare.
            ordered = sorted(intervals)
            shortest, longest = int(ordered[0] * 1e6 + 0.5), int(ordered[-1] * 1e6 + 0.5)
        if details is not None:
            context, context_tokens, decodes, decode_tokens, elapsed_ms = _get_details(details)
            elapsed_us = int(elapsed_ms * 1e3 + 0.5)
        elif intervals:
            self._warn_no_details()
        if speculation is not None:
            drafts, accepted = _get_speculation(speculation)
        # In the order of Step's fields.
        datagram = self._pack_step(
            number, now, self.writer.dropped,
            shortest, running, waiting + skipped, context, context_tokens, decodes, decode_tokens,
            drafts, accepted, elapsed_us, int(kv_used * 1e6 + 0.5), preempted, longest,
        )  # fmt: skip
        if finished:
            self._send_finished(number, finished)
        return datagram

    def _encode_checked(self, number: int, now: int, scheduler_stats: Any, iteration_stats: Any) -> bytes:
        """Encode a step with objects that may be absent, incomplete, or of any type."""
        running, waiting, skipped, kv_used, details, speculation = self._each(scheduler_stats, _SCHEDULER)
        intervals, preempted, finished = self._each(iteration_stats, _ITERATION)
        intervals = [each for each in map(_microseconds, _as_list(intervals)) if each >= 0]
        *counts, elapsed_ms = self._each(details, _DETAILS)
        values = (
            *(min(intervals, default=None), running, _sum(waiting, skipped), *counts, *self._each(speculation, _SPECULATION)),
            *(_scaled(elapsed_ms, 1e3), _scaled(kv_used, 1e6), preempted, max(intervals, default=None)),
        )
        self._send_finished(number, _as_list(finished))
        if details is None and intervals:
            self._warn_no_details()
        return self._pack_step(number, now, self.writer.dropped, *map(_integer, values))

    def _send_finished(self, number: int, finished: Sequence[Any]) -> None:
        """Send the finished requests before the step itself, so that a reader with the step has them too."""
        entries = []
        for each in finished[:_FINISHED_MAX]:
            try:
                entries.append(finished_entry(self._finished_of(number, each)))
            except Exception as error:
                self._warn_once(f"a finished request could not be recorded ({type(error).__name__})")
        for datagram in pack_entries(FINISHED, self.engine, entries):
            self.writer.send(datagram)

    def _finished_of(self, number: int, each: Any) -> FinishedRequest:
        name, reason, *numbers = self._each(each, _REQUEST)
        preemptions, prompt, output, queued, prefill, decode = numbers
        return FinishedRequest(
            number,
            "" if name is None else str(name),
            "" if reason is None else str(reason),
            *(max(_integer(value), 0) for value in (preemptions, prompt, output)),
            *(max(_integer(_scaled(value, 1e6), _DURATION_US_MAX), 0) for value in (queued, prefill, decode)),
        )

    def _each(self, stats: Any, names: tuple[str, ...]) -> list[Any]:
        """Return the attributes, each read separately: ``None`` for one that is missing or raises (logged once), or without an object."""
        values: list[Any] = []
        for name in names:
            try:
                values.append(None if stats is None else getattr(stats, name))
            except Exception:
                values.append(None)
                self._warn_once(f"this vLLM has no {type(stats).__name__}.{name}: its value is recorded as unknown")
        return values

    def _warn_no_details(self) -> None:
        self._warn_once("vLLM sends no iteration details: start it with --enable-logging-iteration-details to separate prefill from decode")

    def _warn_once(self, message: str) -> None:
        if message not in self._warned and len(self._warned) < _WARNINGS_MAX:
            self._warned.add(message)
            _log.warning("Legato: %s (logged once)", message)


def _as_list(values: Any) -> Sequence[Any]:
    return values if isinstance(values, list | tuple) else ()


def _microseconds(value: Any) -> int:
    """Return seconds as whole µs; -1 for a value that is not a number."""
    return _integer(_scaled(value, 1e6))


def _scaled(value: Any, factor: float) -> Any:
    return int(value * factor + 0.5) if isinstance(value, int | float) and math.isfinite(value) else None


def _sum(one: Any, other: Any) -> Any:
    """Return the sum of both, or the one that is known, or ``None``."""
    return max(_integer(one), 0) + max(_integer(other), 0) if max(_integer(one), _integer(other)) >= 0 else None


def _integer(value: Any, most: int = _VALUE_MAX) -> int:
    """Return a whole number within the range of a record; -1 (unknown) for a value that is not a number."""
    if isinstance(value, int | float) and math.isfinite(value):
        return min(max(int(value), _UNKNOWN), most)
    return _UNKNOWN
