"""The part of the stat-logger plugin that knows vLLM's statistics: from the objects of one step to datagrams.

One idea: `record()` runs on the event loop that serves all streams, so it reads what it needs in a few C calls, packs one struct and hands
it to a pipe that never waits. vLLM does not promise these objects: what is missing, or is no number, is unknown, and is said once by
name. It imports no vLLM, keeps no statistics, and raises nothing.
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
from legato_gpu_agent.plugin.pipe_writer import Outlet
from legato_gpu_agent.plugin.protocol import FINISHED, finished_entry, join, step_packer

__all__ = ["StepRecorder"]

_log = logging.getLogger("legato")
_UNKNOWN = -1
_VALUE_MAX = 2**32 - 2
_FINISHED_MAX = 4096
_SAID_MAX = 100
_LATER_S = 0.1

_SCHEDULER = (
    "num_running_reqs",
    "num_waiting_reqs",
    "num_skipped_waiting_reqs",
    "kv_cache_usage",
    "iteration_details",
    "spec_decoding_stats",
)
_DETAILS = ("num_ctx_requests", "num_ctx_tokens", "num_generation_requests", "num_generation_tokens", "elapsed_ms")
_SPEC = ("num_draft_tokens", "num_accepted_tokens")
_ITERATION = ("inter_token_latencies_iter", "num_preempted_reqs", "finished_requests")
_REQUEST = (
    *("request_id", "finish_reason", "num_preemptions", "num_prompt_tokens", "num_generation_tokens"),
    *("queued_time", "prefill_time", "decode_time"),
)
# Each reads its attributes in one call, or raises.
_scheduler_of, _details_of = attrgetter(*_SCHEDULER), attrgetter(*_DETAILS)
_spec_of, _iteration_of = attrgetter(*_SPEC), attrgetter(*_ITERATION)
_NO_DETAILS, _NO_SPEC = (_UNKNOWN,) * 5, (_UNKNOWN,) * 2


class StepRecorder:
    """Turns each step of one engine into a datagram; ``number`` is the last one's.

    ``index``: the engine's place among those behind one server.
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
        # `legato.asgi.StreamMiddleware` is made later in the same process and reads the same variable: so the two say the same.
        environ.setdefault(ENGINE_ID, engine_id(environ, arguments))
        self.engine = Engine(engine_id(environ, arguments, index), clock_ns())
        self.outlet = Outlet(str(pipe_path(environ)))
        self.number = 0
        self._pack_step = step_packer(self.engine)
        self._said: set[str] = set()
        self._waits = False

    def record(self, scheduler_stats: Any, iteration_stats: Any) -> None:
        """One step of the engine, as the objects that vLLM gives its loggers. A step without either says nothing."""
        if scheduler_stats is None and iteration_stats is None:
            return
        number = self.number = self.number + 1
        now = self._clock_ns()
        try:
            try:
                datagram = self._quickly(number, now, scheduler_stats, iteration_stats)
            except Exception:
                datagram = self._carefully(number, now, scheduler_stats, iteration_stats)
            if not self.outlet.send(datagram):
                self._later()
        except Exception as error:
            self._say(f"a step's record failed with {type(error).__name__}; the engine is not affected")

    def catch_up(self) -> bool:
        """Send what could not be sent before; whether nothing is left. For the pauses of an engine that has nothing to do."""
        try:
            return self.outlet.catch_up()
        except Exception as error:
            self._say(f"sending failed with {type(error).__name__}; the engine is not affected")
            return True

    def _later(self) -> None:
        """Look again soon, on the event loop that records: the step that could not be sent may be the last for long."""
        if not self._waits:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().call_later(_LATER_S, self._again)
                self._waits = True

    def _again(self) -> None:
        self._waits = False
        if not self.catch_up():
            self._later()

    def _quickly(self, number: int, now: int, scheduler_stats: Any, iteration_stats: Any) -> bytes:
        """A step whose objects are all as expected; anything else raises before a byte is sent."""
        intervals, preempted, finished = _iteration_of(iteration_stats)
        running, waiting, skipped, kv_used, details, speculation = _scheduler_of(scheduler_stats)
        shortest = longest = context = context_tokens = decodes = decode_tokens = elapsed_us = drafts = accepted = _UNKNOWN
        if intervals:
            # Sorted is cheaper than asked for the least and the largest, up to hundreds; as differences of a clock they are in an order.
            ordered = sorted(intervals)
            shortest, longest = int(ordered[0] * 1e6 + 0.5), int(ordered[-1] * 1e6 + 0.5)
        if details is not None:
            context, context_tokens, decodes, decode_tokens, elapsed_ms = _details_of(details)
            elapsed_us = int(elapsed_ms * 1e3 + 0.5)
        elif intervals:
            self._say_no_details()
        if speculation is not None:
            drafts, accepted = _spec_of(speculation)
        # In the order of Step's fields.
        datagram = self._pack_step(
            number, now, self.outlet.dropped,
            shortest, running, waiting + skipped, context, context_tokens, decodes, decode_tokens,
            drafts, accepted, elapsed_us, int(kv_used * 1e6 + 0.5), preempted, longest,
        )  # fmt: skip
        if finished:
            self._send_finished(number, finished)
        return datagram

    def _carefully(self, number: int, now: int, scheduler_stats: Any, iteration_stats: Any) -> bytes:
        """The same for objects that may be absent, lack anything, or hold anything."""
        running, waiting, skipped, kv_used, details, speculation = self._each(scheduler_stats, _SCHEDULER)
        intervals, preempted, finished = self._each(iteration_stats, _ITERATION)
        intervals = [each for each in map(_seconds, _listed(intervals)) if each >= 0]
        *counts, elapsed_ms = self._each(details, _DETAILS)
        values = (
            *(min(intervals, default=None), running, _sum(waiting, skipped), *counts, *self._each(speculation, _SPEC)),
            *(_scaled(elapsed_ms, 1e3), _scaled(kv_used, 1e6), preempted, max(intervals, default=None)),
        )
        self._send_finished(number, _listed(finished))
        if details is None and intervals:
            self._say_no_details()
        return self._pack_step(number, now, self.outlet.dropped, *map(_whole, values))

    def _send_finished(self, number: int, finished: Sequence[Any]) -> None:
        """Before the step itself, so that whoever has the step has these, too."""
        entries = []
        for each in finished[:_FINISHED_MAX]:
            try:
                entries.append(finished_entry(self._finished_of(number, each)))
            except Exception as error:
                self._say(f"a finished request could not be told ({type(error).__name__})")
        for datagram in join(FINISHED, self.engine, entries):
            self.outlet.send(datagram)

    def _finished_of(self, number: int, each: Any) -> FinishedRequest:
        name, reason, *numbers = self._each(each, _REQUEST)
        preemptions, prompt, output, queued, prefill, decode = numbers
        return FinishedRequest(
            number,
            "" if name is None else str(name),
            "" if reason is None else str(reason),
            *(max(_whole(value), 0) for value in (preemptions, prompt, output)),
            *(max(_whole(_scaled(value, 1e6)), 0) for value in (queued, prefill, decode)),
        )

    def _each(self, stats: Any, names: tuple[str, ...]) -> list[Any]:
        """These attributes, each read alone: one that is missing or raises is ``None``, and said once. Of nothing, all are ``None``."""
        values: list[Any] = []
        for name in names:
            try:
                values.append(None if stats is None else getattr(stats, name))
            except Exception:
                values.append(None)
                self._say(f"this vLLM has no {type(stats).__name__}.{name}: what it would say is unknown")
        return values

    def _say_no_details(self) -> None:
        self._say("vLLM does not say what its steps did: start it with --enable-logging-iteration-details to tell prefill from decode")

    def _say(self, what: str) -> None:
        if what not in self._said and len(self._said) < _SAID_MAX:
            self._said.add(what)
            _log.warning("Legato: %s (said once)", what)


def _listed(values: Any) -> Sequence[Any]:
    return values if isinstance(values, list | tuple) else ()


def _seconds(value: Any) -> int:
    """Seconds as whole µs; what is no number is -1."""
    return _whole(_scaled(value, 1e6))


def _scaled(value: Any, factor: float) -> Any:
    return int(value * factor + 0.5) if isinstance(value, int | float) and math.isfinite(value) else None


def _sum(one: Any, other: Any) -> Any:
    """Both when both are known, else the one that is."""
    return max(_whole(one), 0) + max(_whole(other), 0) if max(_whole(one), _whole(other)) >= 0 else None


def _whole(value: Any) -> int:
    """A whole number that fits, or unknown."""
    if isinstance(value, int | float) and math.isfinite(value):
        return min(max(int(value), _UNKNOWN), _VALUE_MAX)
    return _UNKNOWN
