"""The signal catalogue: name, unit and kind of each engine signal, and what remains unknown without it.

Engines use different names, with slightly different meanings, for the same quantity; the store holds these names only. A signal that an
engine does not expose is absent, never 0. The module does not depend on any engine.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SIGNALS", "Signal", "signal"]


@dataclass(frozen=True, slots=True, eq=False)
class Signal:
    """A quantity of an engine. ``kind``: gauge, counter or histogram. ``unknown``: what remains unknown without it; '' for nothing."""

    name: str
    unit: str
    kind: str
    unknown: str = ""


_PREFIX = "legato.engine."
SIGNALS = {
    _PREFIX + signal.name: Signal(_PREFIX + signal.name, signal.unit, signal.kind, signal.unknown)
    for signal in (
        Signal("requests.running", "{request}", "gauge", "how many other requests shared a step"),
        Signal("requests.waiting", "{request}", "gauge", "whether requests queue before their first token"),
        Signal("requests.finished", "{request}", "counter"),
        Signal("requests.cancelled", "{request}", "counter", "whether the engine noticed that a client disconnected"),
        Signal("kv_cache.utilization", "1", "gauge", "how close the KV cache is to preemptions"),
        Signal("preemptions", "{request}", "counter", "from scraped metrics, whether kv_pressure is the cause or excluded"),
        Signal("preempted", "{request}", "gauge"),
        Signal("tokens.prompt", "{token}", "counter", "from scraped metrics, whether scheduling is excluded"),
        Signal("tokens.generated", "{token}", "counter", "whether the engine stopped or only one stream did"),
        Signal("prefix_cache.queries", "{token}", "counter", "how much prefill the prefix cache saved"),
        Signal("prefix_cache.hits", "{token}", "counter", "how much prefill the prefix cache saved"),
        Signal("prefix_cache.hit_rate", "1", "gauge"),
        Signal("speculation.drafts", "{draft}", "counter"),
        Signal("speculation.draft_tokens", "{token}", "counter", "how many drafts of speculation were accepted"),
        Signal("speculation.accepted_tokens", "{token}", "counter", "how many drafts of speculation were accepted"),
        Signal("speculation.accept_length", "{token}", "gauge"),
        Signal("speculation.accept_rate", "1", "gauge"),
        Signal("ttft", "s", "histogram", "the engine's own time to first token, to compare with the client's"),
        Signal("itl", "s", "histogram", "whether the engine ever made a gap this long: the strongest test from scraped metrics alone"),
        Signal("queue.time", "s", "histogram", "how much of the time to first token was the queue"),
        Signal("prefill.time", "s", "histogram"),
        Signal("decode.time", "s", "histogram"),
        Signal("request.time", "s", "histogram"),
        Signal("step.time", "s", "gauge"),
        Signal("step.tokens", "{token}", "histogram"),
        Signal("step.requests", "{request}", "gauge"),
    )
}
"""Signals by name."""


def signal(name: str) -> Signal:
    """Return the signal with this name, given without ``legato.engine.``."""
    return SIGNALS[_PREFIX + name]
