"""The optional scheduler hook (entry point group ``vllm.general_plugins``): records which requests each step prefilled, preempted, resumed.

The hook wraps three methods of vLLM's scheduler in the engine's process and only observes them. vLLM does not guarantee these methods, so
the original call runs unchanged, and any unexpected value removes the hook permanently with one log line. The hook is off unless
LEGATO_SCHEDULER_HOOK is set; only then does it import vLLM.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from legato_gpu_agent.plugin.identity import engine_id, pipe_path
from legato_gpu_agent.plugin.model import Engine, SchedulerEvent
from legato_gpu_agent.plugin.pipe_writer import PipeWriter
from legato_gpu_agent.plugin.protocol import SCHEDULER, pack_entries, scheduler_entry

__all__ = ["SchedulerHook", "install"]

_log = logging.getLogger("legato")
_MODULE, _CLASS = "vllm.v1.core.sched.scheduler", "Scheduler"
_METHODS = ("schedule", "_preempt_request", "update_from_output")
# Bounds: steps in progress at once (asynchronous scheduling has two), and preempted requests kept.
_STEPS_MAX, _PREEMPTED_MAX = 16, 65_536
# vLLM's internal request id is the client's id, a dash and eight random characters.
_SUFFIX = 9

_installed: SchedulerHook | None = None


def install() -> None:
    """Install the hook if it is enabled. vLLM calls this in each of its processes. Never raises."""
    global _installed
    setting = os.environ.get("LEGATO_SCHEDULER_HOOK", "")
    if setting in ("", "0") or _installed is not None:
        return
    try:
        scheduler = getattr(importlib.import_module(_MODULE), _CLASS)
        hook = SchedulerHook(scheduler, path=setting if setting.startswith("/") else None)
        _installed = hook
    except Exception as error:
        _log.warning("Legato: the scheduler hook does not fit this vLLM (%s); the engine is not affected", type(error).__name__)


class SchedulerHook:
    """Observes one scheduler class. ``path``: a separate pipe for the events, instead of the agent's.

    Raises ``AttributeError`` when the class lacks a method.
    """

    def __init__(
        self,
        scheduler: Any,
        *,
        path: str | None = None,
        environ: Mapping[str, str] = os.environ,
        arguments: Sequence[str] | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._scheduler, self._clock_ns = scheduler, clock_ns
        self._environ, self._arguments = environ, sys.argv if arguments is None else arguments
        self._epoch_ns = clock_ns()
        self.writer = PipeWriter(path or str(pipe_path(environ)))
        self._engines: dict[int, Engine] = {}
        self._open: OrderedDict[int, tuple[int, list[tuple[str, str, int]]]] = OrderedDict()
        self._outside: list[tuple[str, str, int]] = []
        self._recomputed: set[str] = set()
        self.active = True
        self._originals = {name: getattr(scheduler, name) for name in _METHODS}
        for name, observe in zip(_METHODS, (self._scheduled, self._preempted, self._updated), strict=True):
            setattr(scheduler, name, self._wrapped(self._originals[name], observe, before=name == "_preempt_request"))

    def remove(self) -> None:
        """Restore the original methods."""
        self.active = False
        for name, original in self._originals.items():
            setattr(self._scheduler, name, original)

    def _wrapped(self, original: Callable[..., Any], observe: Callable[..., None], *, before: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(scheduler: Any, *arguments: Any, **named: Any) -> Any:
            started_ns = self._clock_ns()
            if before:
                self._observe(observe, started_ns, scheduler, arguments, None)
            result = original(scheduler, *arguments, **named)
            if not before:
                self._observe(observe, started_ns, scheduler, arguments, result)
            return result

        return method

    def _observe(self, observe: Callable[..., None], *call: Any) -> None:
        if not self.active:
            return
        try:
            observe(*call)
        except Exception as error:
            self._disable(error)

    def _disable(self, error: Exception) -> None:
        try:
            self.remove()
            _log.warning(
                "Legato: the scheduler hook found an unexpected value (%s) and is now off; the engine is not affected", type(error).__name__
            )
        except Exception:
            self.active = False

    def _preempted(self, started_ns: int, scheduler: Any, arguments: Sequence[Any], _: Any) -> None:
        """Record a preemption before it happens, while the number of computed tokens is still known."""
        request = arguments[0]
        if len(self._recomputed) < _PREEMPTED_MAX:
            self._recomputed.add(request.request_id)
        self._outside.append((request.request_id, "preempt", int(request.num_computed_tokens)))
        del self._outside[:-_PREEMPTED_MAX]

    def _scheduled(self, started_ns: int, scheduler: Any, arguments: Sequence[Any], output: Any) -> None:
        """Record the requests that compute more than their next token in this step; draft tokens are not prefill."""
        drafts = output.scheduled_spec_decode_tokens
        events, self._outside = self._outside, []
        for name, tokens in output.num_scheduled_tokens.items():
            if tokens > 1 and tokens - len(drafts.get(name, ())) > 1:
                events.append((name, "resume" if name in self._recomputed else "prefill", int(tokens)))
            elif name in self._recomputed:
                self._recomputed.discard(name)
        for name in output.finished_req_ids:
            self._recomputed.discard(name)
        if events:
            self._open[id(output)] = (started_ns, events)
            if len(self._open) > _STEPS_MAX:
                _, (older_ns, older) = self._open.popitem(last=False)
                self._send(scheduler, older_ns, 0, older)

    def _updated(self, started_ns: int, scheduler: Any, arguments: Sequence[Any], _: Any) -> None:
        """Send the events of a step that ended, with its duration."""
        step = self._open.pop(id(arguments[0]), None)
        if step is not None:
            self._send(scheduler, step[0], max(started_ns - step[0], 0) // 1000, step[1])

    def _send(self, scheduler: Any, time_ns: int, step_us: int, events: Sequence[tuple[str, str, int]]) -> None:
        entries = [
            scheduler_entry(SchedulerEvent(time_ns, name[:-_SUFFIX] if name[-_SUFFIX:-8] == "-" else name, kind, tokens, step_us))
            for name, kind, tokens in events
        ]
        for datagram in pack_entries(SCHEDULER, self._engine(scheduler), entries):
            self.writer.send(datagram)

    def _engine(self, scheduler: Any) -> Engine:
        """Return the engine's identity; its index among those behind one server is only in its scheduler's configuration."""
        config = getattr(getattr(scheduler, "vllm_config", None), "parallel_config", None)
        index = getattr(config, "data_parallel_index", getattr(config, "data_parallel_rank", 0)) or 0
        if index not in self._engines:
            self._engines[index] = Engine(engine_id(self._environ, self._arguments, index), self._epoch_ns)
        return self._engines[index]
