"""Records of an engine: its identity, its steps, the requests that it finished, and the events of its scheduler.

The plugin's datagrams and the agent's spans share these values. The module uses the standard library only, because the plugin runs in the
engine's processes. It encodes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EVENT_KINDS", "Engine", "FinishedRequest", "SchedulerEvent", "Step"]

EVENT_KINDS = ("prefill", "preempt", "resume")


@dataclass(frozen=True, slots=True)
class Engine:
    """One run of an engine: the id that the streams of its server carry too, and its start time (ns since the epoch)."""

    id: str
    epoch_ns: int


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step, as recorded at its end. ``None`` means unknown.

    ``recorded_ns``: wall clock of the front end when the record was made. ``interval_us``: the shortest time since the previous token, by
    the engine's clock, over the requests that got a token; ``interval_max_us``: the longest. Counts are those at the end of the step.
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
    """A request that ended in a step.

    ``response_id`` is the id that the client received (``gen_ai.response.id``); an engine that does not have it gives its own id.
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
    """What the scheduler did to one request in the step that began at ``time_ns`` and took ``step_us`` (0: unknown).

    ``kind``: ``prefill`` (prompt tokens to compute), ``preempt`` (computed tokens discarded), ``resume`` (tokens to compute again).
    """

    time_ns: int
    response_id: str
    kind: str
    tokens: int
    step_us: int = 0
