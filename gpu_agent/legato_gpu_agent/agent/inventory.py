"""The report of `legato-gpu-agent --once --print`: the sources that the agent can read on this node, and what is missing.

Each collector runs two rounds, as it would in the agent. The report then lists its result, and for each missing signal what remains unknown
to attribution without it. Nothing is sent, so sources from which a read removes data are not read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from legato_gpu_agent.agent.buffer import Buffer
from legato_gpu_agent.agent.collector_registry import CollectorRegistry
from legato_gpu_agent.agent.collector_runner import CollectorRunner
from legato_gpu_agent.agent.self_metrics import SelfMetrics
from legato_gpu_agent.agent.settings import Settings
from legato_gpu_agent.agent.visible import visible
from legato_gpu_agent.collectors.engine_metrics import EngineMetrics
from legato_gpu_agent.collectors.measurement import Distribution, Measured
from legato_gpu_agent.collectors.nvml import Gpu
from legato_gpu_agent.collectors.processes import Processes
from legato_gpu_agent.engines.registry import ENGINES
from legato_gpu_agent.engines.signals import SIGNALS
from legato_gpu_agent.plugin.identity import server_id

__all__ = ["report"]

_PATIENCE_S = 8.0
# Increases are known from the second round on.
_ROUNDS = 2
_GPU_UNKNOWN = {
    "clocks": "whether the GPU was throttled (cause gpu_clock)",
    "throttle time": "whether the GPU was throttled between two samples (cause gpu_clock)",
}
_NO_OWNER = "its throttling explains no stall: does the agent run as the engines' user, and in their PID namespace?"
_ABSENT_UNKNOWN = {
    "gpus": "the cause gpu_clock; time lost to throttling is charged to host",
    "pressure": "whether tasks waited for CPU, memory or disk",
    "processes": "how long the engine waited for a CPU; the cause host then rests on the part that the engine's steps do not explain",
}
_MARKS = {"up": "✓", "down": "✗", "hanging": "✗", "absent": "–", "waiting": "✗"}


def report(settings: Settings) -> tuple[str, bool]:
    """Return the report, and whether any engine or GPU was found."""
    buffer = Buffer()
    registry = CollectorRegistry(settings, buffer, SelfMetrics())
    _run_all(registry)
    measurements, _ = buffer.drain()
    found = [measured for _, measured in measurements]
    runners = registry.runners()
    lines = [f"What legato-gpu-agent can see on {settings.host}", ""]
    for runner in runners:
        lines += _source(runner, found)
    lines += ["", *_settings(settings)]
    return "\n".join(map(visible, lines)) + "\n", any(isinstance(runner.collector, (EngineMetrics, Gpu)) for runner in runners)


def _run_all(registry: CollectorRegistry) -> None:
    """Run two rounds of each collector, including those that are added meanwhile; wait at most 8 s for each group of them."""
    begun: set[str] = set()
    while fresh := [runner for runner in registry.runners() if runner.name not in begun and not _drains(runner)]:
        begun |= {runner.name for runner in fresh}
        threads = [threading.Thread(target=_run_rounds, args=(runner,), daemon=True) for runner in fresh]
        for thread in threads:
            thread.start()
        until_s = time.monotonic() + _PATIENCE_S
        for thread in threads:
            thread.join(max(until_s - time.monotonic(), 0.0))
    # The owners of processes are known only after the engines were found.
    for runner in registry.runners():
        if runner.status().state == "absent" and runner.name == Processes.name:
            runner.run_once()


def _run_rounds(runner: CollectorRunner) -> None:
    for last in range(_ROUNDS):
        if runner.run_once().state != "up":
            return
        if last < _ROUNDS - 1:
            time.sleep(0.3)


def _drains(runner: CollectorRunner) -> bool:
    return bool(getattr(runner.collector, "drains", False))


def _source(runner: CollectorRunner, found: Sequence[Measured]) -> Iterator[str]:
    status = runner.status()
    if _drains(runner):
        yield f"· {status.name:<24} {'':<8} not read: a read would remove the data that the running agent needs"
        return
    what = f"{status.measurements} measurements in {1000 * status.duration_s:.1f} ms" if status.state == "up" else status.why
    yield f"{_MARKS.get(status.state, '?')} {status.name:<24} {status.state:<8} {what}"
    if status.state == "absent" and runner.name in _ABSENT_UNKNOWN:
        yield f"      unknown without it: {_ABSENT_UNKNOWN[runner.name]}"
    if status.state == "up" and isinstance(runner.collector, EngineMetrics):
        yield from _engine(runner.collector, found)
    if status.state == "up" and isinstance(runner.collector, Gpu):
        yield from _gpu(runner.collector)


def _engine(collector: EngineMetrics, found: Sequence[Measured]) -> Iterator[str]:
    """Yield the identity of an engine, its missing signals, and a hint."""
    engine, own_id = collector.engine, collector.engine_id
    if engine is None:
        return
    yield f"      {engine.title}, engine id {own_id}"
    present = {each.metric for each in found if _server_of(each) == own_id}
    histograms = {rule.signal.name for rule in engine.rules if rule.signal.kind == "histogram"}
    for name, signal in SIGNALS.items():
        short = name.removeprefix("legato.engine.")
        if name in present or not signal.unknown or name in histograms:
            continue
        why = engine.lacks.get(short, "not in its metrics now")
        yield f"      no {short}: {why}; unknown without it: {signal.unknown}"
    intervals = (each for each in found if isinstance(each, Distribution) and each.metric == "legato.engine.itl" and each.bounds)
    coarse = [each for each in intervals if _server_of(each) == own_id]
    if engine.hint and (not coarse or coarse[0].bounds[0] >= 0.01):
        yield f"      hint: {engine.hint}"


def _server_of(found: Measured) -> str:
    """Return the id of the server with the engine of a measurement."""
    return server_id(dict(found.attributes).get("legato.engine.id", ""))


def _gpu(collector: Gpu) -> Iterator[str]:
    yield f"      {collector.model}, {collector.uuid}"
    for what, why in collector.missing.items():
        unknown = f"; unknown without it: {_GPU_UNKNOWN[what]}" if what in _GPU_UNKNOWN else ""
        yield f"      no {what}: {why}{unknown}"
    if not collector.owners:
        yield f"      no engine: no process of an engine is visible on it; {_NO_OWNER}"


def _settings(settings: Settings) -> Iterator[str]:
    """Yield the sources that need a setting."""
    yield f"steps: plugins send theirs to {settings.pipe} (vLLM); forward passes from " + (
        ", ".join(f"{name} ({where})" for name, where in settings.forward_passes) or "no engine: LEGATO_FORWARD_PASSES (SGLang, Dynamo)"
    )
    if not settings.engines:
        yield f"engines were searched at default ports; others: LEGATO_ENGINES=http://127.0.0.1:PORT ({', '.join(ENGINES)})"
