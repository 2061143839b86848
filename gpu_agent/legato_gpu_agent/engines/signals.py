"""What engines can tell, in one vocabulary: each signal's name, unit and kind, and what the attribution cannot say without it.

One idea: engines name the same thing in eight ways, and mean slightly other things by it; whoever reads the store reads these names alone.
A signal that an engine does not have is absent, never 0. It knows no engine.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SIGNALS", "Signal", "signal"]


@dataclass(frozen=True, slots=True, eq=False)
class Signal:
    """One thing to know of an engine, itself alone. ``kind``: gauge, counter or histogram. ``loses``: what is not said without it."""

    name: str
    unit: str
    kind: str
    loses: str = ""


_PREFIX = "legato.engine."
SIGNALS = {
    _PREFIX + signal.name: Signal(_PREFIX + signal.name, signal.unit, signal.kind, signal.loses)
    for signal in (
        Signal("requests.running", "{request}", "gauge", "how many others shared a step"),
        Signal("requests.waiting", "{request}", "gauge", "whether requests queue before their first token"),
        Signal("requests.finished", "{request}", "counter"),
        Signal("requests.cancelled", "{request}", "counter", "whether the engine noticed that a client left"),
        Signal("kv_cache.utilization", "1", "gauge", "how near the KV cache is to preempting"),
        Signal("preemptions", "{request}", "counter", "kv_pressure cannot be ruled out from scrapes, nor suspected"),
        Signal("preempted", "{request}", "gauge"),
        Signal("tokens.prompt", "{token}", "counter", "scheduling cannot be ruled out from scrapes"),
        Signal("tokens.generated", "{token}", "counter", "whether the whole engine stood still, or one stream did"),
        Signal("prefix_cache.queries", "{token}", "counter", "how much prefill the prefix cache saved"),
        Signal("prefix_cache.hits", "{token}", "counter", "how much prefill the prefix cache saved"),
        Signal("prefix_cache.hit_rate", "1", "gauge"),
        Signal("speculation.drafts", "{draft}", "counter"),
        Signal("speculation.draft_tokens", "{token}", "counter", "speculation: how many drafts were accepted"),
        Signal("speculation.accepted_tokens", "{token}", "counter", "speculation: how many drafts were accepted"),
        Signal("speculation.accept_length", "{token}", "gauge"),
        Signal("speculation.accept_rate", "1", "gauge"),
        Signal("ttft", "s", "histogram", "the engine's own time to first token, beside the client's"),
        Signal("itl", "s", "histogram", "whether the engine ever made a gap this long: the strongest test from scrapes alone"),
        Signal("queue.time", "s", "histogram", "how much of the time to first token was the queue"),
        Signal("prefill.time", "s", "histogram"),
        Signal("decode.time", "s", "histogram"),
        Signal("request.time", "s", "histogram"),
        Signal("step.time", "s", "gauge"),
        Signal("step.tokens", "{token}", "histogram"),
        Signal("step.requests", "{request}", "gauge"),
    )
}
"""By name."""


def signal(name: str) -> Signal:
    """The signal of this name, without ``legato.engine.``."""
    return SIGNALS[_PREFIX + name]
