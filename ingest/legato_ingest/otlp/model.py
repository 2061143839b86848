"""The records that spans are converted to: one shape for all emitters, so that the code after the conversion depends on none of them.

``None``, and for names the empty string, means that the span does not carry the value. The records hold no statistics: those are computed
from the timeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["REV_MAX", "EngineFlush", "Ignored", "SilenceRecord", "StreamRecord"]

REV_MAX = 2**32 - 2
"""The highest rev of a sender's span: its row may step back for another one with the next rev, which has 32 bits, too."""


@dataclass(slots=True)
class StreamRecord:
    """One rev of one stream at one vantage. Times in ns since the epoch, ``*_us`` in µs from the start, names as in ``stream_revs``.

    ``kinds_known`` is False where the timeline does not say what its chunks carry, and ``head_known`` where its first chunks are missing;
    ``ttft_us`` then counts instead of that of the timeline, and figures that need kinds or the head are unknown. ``start_known`` is False
    where the stream may start after its request, so times from the request are unknown.
    """

    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes
    start_ns: int
    end_ns: int
    otlp_bytes: int
    emitter: str
    rev: int = 1
    ended: bool = True
    next_due_us: int = 0
    vantage: str = "client"
    outcome: str = "complete"
    error_type: str = ""
    service_name: str = ""
    service_version: str = ""
    provider: str = ""
    model: str = ""
    response_model: str = ""
    response_id: str = ""
    finish_reason: str = ""
    route: str = ""
    conversation_id: str = ""
    engine_id: str = ""
    client_hash: str = ""
    transport: str = ""
    clock: str = ""
    client_address: str = ""
    client_port: int = 0
    server_address: str = ""
    server_port: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    wire_bytes: int | None = None
    chunks: int | None = None
    chunks_dropped: int = 0
    ttfb_us: int | None = None
    ttft_us: int | None = None
    timeline: bytes | None = None
    kinds_known: bool = True
    head_known: bool = True
    start_known: bool = True
    flags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ignored:
    """A span that is acknowledged and not stored. ``reason`` is one of ``legato_ingest.emitters.IGNORED``; ``emitter`` is empty for a span
    of no known family.
    """

    reason: str
    emitter: str = ""


@dataclass(slots=True)
class SilenceRecord:
    """A report that a running stream has had no content since ``gap_start_us`` (µs from the start; 0: none so far) until ``end_ns``.

    ``resumed``: content arrived at ``end_ns``, or the stream was found to be none. ``next_due_us``: latest time after the start at which
    the next report is due; 0: not known.
    """

    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes
    start_ns: int
    end_ns: int
    gap_start_us: int
    silence_us: int
    resumed: bool
    vantage: str
    service_name: str
    model: str
    engine_id: str
    clock: str
    emitter: str
    next_due_us: int
    timeline: None = None
    flags: list[str] = field(default_factory=list)


@dataclass(slots=True)
class EngineFlush:
    """Engine steps that were sent in one span (schema/STEPS.md).

    ``timeline`` holds the packed steps. ``finished`` holds the requests that ended, as one array for each field.
    """

    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes
    start_ns: int
    end_ns: int
    emitter: str
    engine_id: str
    epoch_ns: int
    step_first: int
    timeline: bytes | None
    finished: Mapping[str, Sequence[Any]]
    flags: list[str] = field(default_factory=list)
