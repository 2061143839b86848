"""The opt-in scheduler hook (entry point group ``vllm.general_plugins``): which requests each step prefilled, preempted and resumed.

One idea: it stands around three methods of vLLM's scheduler, in the engine's own process, and only looks on. vLLM promises none of them,
so each call of theirs comes first and unchanged, and whatever surprises the hook takes it off for good, with one line in the log. It is
off unless LEGATO_SCHEDULER_HOOK says so. It imports vLLM only then, and changes nothing in it.
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
from legato_gpu_agent.plugin.pipe_writer import Outlet
from legato_gpu_agent.plugin.protocol import SCHEDULER, join, scheduler_entry

__all__ = ["SchedulerHook", "install"]

_log = logging.getLogger("legato")
_MODULE, _CLASS = "vllm.v1.core.sched.scheduler", "Scheduler"
_METHODS = ("schedule", "_preempt_request", "update_from_output")
# Steps that may be under way at once (asynchronous scheduling has two); and preempted requests that are remembered.
_STEPS_MAX, _PREEMPTED_MAX = 16, 65_536
# vLLM's own id of a request is its client's, a dash and eight random characters.
_SUFFIX = 9

_installed: SchedulerHook | None = None


def install() -> None:
    """What vLLM calls in each of its processes. Never raises."""
    global _installed
    wanted = os.environ.get("LEGATO_SCHEDULER_HOOK", "")
    if wanted in ("", "0") or _installed is not None:
        return
    try:
        scheduler = getattr(importlib.import_module(_MODULE), _CLASS)
        hook = SchedulerHook(scheduler, path=wanted if wanted.startswith("/") else None)
        _installed = hook
    except Exception as error:
        _log.warning("Legato: the scheduler hook does not fit this vLLM (%s); the engine is not affected", type(error).__name__)


class SchedulerHook:
    """Watches one scheduler class. ``path``: a pipe of its own instead of the agent's, for whoever wants the events apart.

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
        self.outlet = Outlet(path or str(pipe_path(environ)))
        self._engines: dict[int, Engine] = {}
        self._open: OrderedDict[int, tuple[int, list[tuple[str, str, int]]]] = OrderedDict()
        self._outside: list[tuple[str, str, int]] = []
        self._recomputed: set[str] = set()
        self.active = True
        self._originals = {name: getattr(scheduler, name) for name in _METHODS}
        for name, seen in zip(_METHODS, (self._scheduled, self._preempted, self._updated), strict=True):
            setattr(scheduler, name, self._around(self._originals[name], seen, before=name == "_preempt_request"))

    def remove(self) -> None:
        """Take the hook off."""
        self.active = False
        for name, original in self._originals.items():
            setattr(self._scheduler, name, original)

    def _around(self, original: Callable[..., Any], seen: Callable[..., None], *, before: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(scheduler: Any, *arguments: Any, **named: Any) -> Any:
            started_ns = self._clock_ns()
            if before:
                self._look(seen, started_ns, scheduler, arguments, None)
            result = original(scheduler, *arguments, **named)
            if not before:
                self._look(seen, started_ns, scheduler, arguments, result)
            return result

        return method

    def _look(self, seen: Callable[..., None], *what: Any) -> None:
        if not self.active:
            return
        try:
            seen(*what)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        try:
            self.remove()
            _log.warning(
                "Legato: the scheduler hook met something unknown (%s) and is off; the engine is not affected", type(error).__name__
            )
        except Exception:
            self.active = False

    def _preempted(self, started_ns: int, scheduler: Any, arguments: Sequence[Any], _: Any) -> None:
        """Before it happens: what the request has computed is about to be thrown away."""
        request = arguments[0]
        if len(self._recomputed) < _PREEMPTED_MAX:
            self._recomputed.add(request.request_id)
        self._outside.append((request.request_id, "preempt", int(request.num_computed_tokens)))
        del self._outside[:-_PREEMPTED_MAX]

    def _scheduled(self, started_ns: int, scheduler: Any, arguments: Sequence[Any], output: Any) -> None:
        """Which requests the step computes more than their next token of; drafts are no prefill."""
        drafts = output.scheduled_spec_decode_tokens
        happened, self._outside = self._outside, []
        for name, tokens in output.num_scheduled_tokens.items():
            if tokens > 1 and tokens - len(drafts.get(name, ())) > 1:
                happened.append((name, "resume" if name in self._recomputed else "prefill", int(tokens)))
            elif name in self._recomputed:
                self._recomputed.discard(name)
        for name in output.finished_req_ids:
            self._recomputed.discard(name)
        if happened:
            self._open[id(output)] = (started_ns, happened)
            if len(self._open) > _STEPS_MAX:
                _, (older_ns, older) = self._open.popitem(last=False)
                self._send(scheduler, older_ns, 0, older)

    def _updated(self, started_ns: int, scheduler: Any, arguments: Sequence[Any], _: Any) -> None:
        """The step is over: what happened in it can be told, with how long it took."""
        step = self._open.pop(id(arguments[0]), None)
        if step is not None:
            self._send(scheduler, step[0], max(started_ns - step[0], 0) // 1000, step[1])

    def _send(self, scheduler: Any, time_ns: int, step_us: int, happened: Sequence[tuple[str, str, int]]) -> None:
        entries = [
            scheduler_entry(SchedulerEvent(time_ns, name[:-_SUFFIX] if name[-_SUFFIX:-8] == "-" else name, kind, tokens, step_us))
            for name, kind, tokens in happened
        ]
        for datagram in join(SCHEDULER, self._engine(scheduler), entries):
            self.outlet.send(datagram)

    def _engine(self, scheduler: Any) -> Engine:
        """By the engine's place among those behind one server, which only its scheduler's configuration tells."""
        config = getattr(getattr(scheduler, "vllm_config", None), "parallel_config", None)
        index = getattr(config, "data_parallel_index", getattr(config, "data_parallel_rank", 0)) or 0
        if index not in self._engines:
            self._engines[index] = Engine(engine_id(self._environ, self._arguments, index), self._epoch_ns)
        return self._engines[index]
