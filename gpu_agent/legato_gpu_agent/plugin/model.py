"""What is known of an engine: which one it is, its steps, the requests that it finished, what its scheduler did to whom.

One idea: plain values that both ends of the way share, the plugin's datagrams and the agent's spans. The standard library alone, because
the plugin is loaded into the engine's processes. It encodes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EVENT_KINDS", "Engine", "FinishedRequest", "SchedulerEvent", "Step"]

EVENT_KINDS = ("prefill", "preempt", "resume")


@dataclass(frozen=True, slots=True)
class Engine:
    """Which engine: the id that its server's streams carry too, and when it started (ns since the epoch)."""

    id: str
    epoch_ns: int


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step, as it was known when its record was written. ``None`` is unknown.

    ``recorded_ns``: the front end's wall clock at the record. ``interval_us``: the shortest time since the token before, by the engine's
    clock, over the requests that got a token; ``interval_max_us``: the longest. Counts are those at the end of the step.
    """

    number: int
    recorded_ns: int
    interval_us: int | None = None
    running: int | None = None
    waiting: int | None = None
    prefill_requests: int | None = None
    prefill_tokens: int | None = None
    decode_requests: int | None = None
    decode_tokens: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    elapsed_us: int | None = None
    kv_used_ppm: int | None = None
    preempted: int | None = None
    interval_max_us: int | None = None


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request that ended in a step, by the id that its client knows (``gen_ai.response.id``); where the engine does not know that, its
    own.
    """

    step: int
    response_id: str
    reason: str = ""
    preemptions: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    queued_us: int = 0
    prefill_us: int = 0
    decode_us: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerEvent:
    """What the scheduler did to one request in the step that began at ``time_ns`` and took ``step_us`` (0: not known).

    ``kind``: ``prefill`` (prompt tokens to compute), ``preempt`` (computed tokens thrown away), ``resume`` (tokens to compute again).
    """

    time_ns: int
    response_id: str
    kind: str
    tokens: int
    step_us: int = 0
