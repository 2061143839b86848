"""What the agent can see on this node, in words: `legato-gpu-agent --once --print`.

One idea: everything is asked once, as it would be while it runs; then each source says what it found, and each signal that is missing says
what the attribution cannot say without it. It sends nothing, and so it asks no source that forgets what it has told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from legato_gpu_agent.agent.self_metrics import Metrics
from legato_gpu_agent.agent.settings import Settings
from legato_gpu_agent.collectors.engine_metrics import EnginePage
from legato_gpu_agent.collectors.measurement import Distribution, Found
from legato_gpu_agent.collectors.nvml import Gpu
from legato_gpu_agent.collectors.processes import Processes
from legato_gpu_agent.collectors.registry import Roster
from legato_gpu_agent.collectors.runner import Basket, Watch
from legato_gpu_agent.engines import Engine
from legato_gpu_agent.engines.registry import ENGINES
from legato_gpu_agent.engines.signals import SIGNALS
from legato_gpu_agent.plugin.identity import server_of

__all__ = ["look"]

_PATIENCE_S = 8.0
# Two rounds: what grows is known from the second on.
_ROUNDS = 2
_GPU_LOSES = {
    "clocks": "gpu_clock cannot be told: nobody knows whether the clocks were lowered",
    "throttle time": "gpu_clock cannot be told: between two samples the clocks may have been lowered unseen",
}
_UNOWNED_LOSES = "its clocks explain nobody's stalls: does the agent run as the engines' user, and in their namespace of processes?"
_ABSENT_LOSES = {
    "gpus": "gpu_clock is never named; what lowered clocks cost is charged to host",
    "pressure": "whether tasks waited for CPU, memory or disk",
    "processes": "host rests on what the engine's steps do not explain, without the kernel's own word",
}


def look(settings: Settings) -> tuple[str, bool]:
    """The report, and whether any engine or GPU was found."""
    basket = Basket()
    roster = Roster(settings, basket, Metrics())
    _ask(roster)
    samples, _ = basket.empty()
    found = [sample.found for sample in samples]
    watches = roster.watches()
    lines = [f"What legato-gpu-agent can see on {settings.host}", ""]
    for watch in watches:
        lines += _source(watch, found)
    lines += ["", *_settings(settings)]
    return "\n".join(lines) + "\n", any(isinstance(watch.collector, (EnginePage, Gpu)) for watch in watches)


def _ask(roster: Roster) -> None:
    """Two rounds of all, those that join on the way included; nobody is waited for without end."""
    asked: set[str] = set()
    while fresh := [watch for watch in roster.watches() if watch.name not in asked and not _drains(watch)]:
        asked |= {watch.name for watch in fresh}
        threads = [threading.Thread(target=_rounds, args=(watch,), daemon=True) for watch in fresh]
        for thread in threads:
            thread.start()
        until = time.monotonic() + _PATIENCE_S
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0.0))
    # Whose processes are whose is known once the engines are.
    for watch in roster.watches():
        if watch.status().state == "absent" and watch.name == Processes.name:
            watch.round()


def _rounds(watch: Watch) -> None:
    for last in range(_ROUNDS):
        if watch.round().state != "up":
            return
        if last < _ROUNDS - 1:
            time.sleep(0.3)


def _drains(watch: Watch) -> bool:
    return bool(getattr(watch.collector, "drains", False))


def _source(watch: Watch, found: Sequence[Found]) -> Iterator[str]:
    status = watch.status()
    if _drains(watch):
        yield f"· {status.name:<24} {'':<8} not asked: what is read there is gone for the agent that runs"
        return
    what = f"{status.readings} readings in {1000 * status.duration_s:.1f} ms" if status.state == "up" else status.why
    yield f"{_MARKS.get(status.state, '?')} {status.name:<24} {status.state:<8} {what}"
    if status.state == "absent" and watch.name in _ABSENT_LOSES:
        yield f"      without it: {_ABSENT_LOSES[watch.name]}"
    if status.state == "up":
        yield from _engine(watch, found)
        yield from _gpu(watch)


_MARKS = {"up": "✓", "down": "✗", "hanging": "✗", "absent": "–", "waiting": "✗"}


def _engine(watch: Watch, found: Sequence[Found]) -> Iterator[str]:
    """What an engine tells, and what it does not."""
    engine = getattr(watch.collector, "engine", None)
    own = getattr(watch.collector, "engine_id", "")
    if not isinstance(engine, Engine):
        return
    yield f"      {engine.title}, engine id {own}"
    told = {each.metric for each in found if _engine_of(each) == own}
    histograms = {rule.signal.name for rule in engine.rules if rule.signal.kind == "histogram"}
    for name, signal in SIGNALS.items():
        short = name.removeprefix("legato.engine.")
        if name in told or not signal.loses or (name in histograms):
            continue
        why = engine.lacks.get(short, "not on its page now")
        yield f"      no {short}: {why}; without it: {signal.loses}"
    intervals = (each for each in found if isinstance(each, Distribution) and each.metric == "legato.engine.itl" and each.bounds)
    coarse = [each for each in intervals if _engine_of(each) == own]
    if engine.hint and (not coarse or coarse[0].bounds[0] >= 0.01):
        yield f"      hint: {engine.hint}"


def _engine_of(found: Found) -> str:
    """Of which server's engine it is."""
    return server_of(dict(found.attributes).get("legato.engine.id", ""))


def _gpu(watch: Watch) -> Iterator[str]:
    model = getattr(watch.collector, "model", "")
    if model:
        yield f"      {model}, {getattr(watch.collector, 'uuid', '')}"
        for what, why in getattr(watch.collector, "missing", {}).items():
            loses = f"; without it: {_GPU_LOSES[what]}" if what in _GPU_LOSES else ""
            yield f"      no {what}: {why}{loses}"
        if not getattr(watch.collector, "owners", ()):
            yield f"      no engine: none is seen to compute on it; without it: {_UNOWNED_LOSES}"


def _settings(settings: Settings) -> Iterator[str]:
    """What is not looked at because nobody said where it is."""
    yield f"steps: plugins tell theirs at {settings.pipe} (vLLM); forward passes at " + (
        ", ".join(f"{name} ({where})" for name, where in settings.forward_passes) or "none: LEGATO_FORWARD_PASSES (SGLang, Dynamo)"
    )
    if not settings.engines:
        yield f"engines were looked for at known ports; others: LEGATO_ENGINES=http://127.0.0.1:PORT ({', '.join(ENGINES)})"
