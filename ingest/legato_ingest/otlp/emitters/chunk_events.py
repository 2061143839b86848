"""Span events, one a chunk, as a packed timeline.

Several libraries and many hand-made instrumentations add an event to the span for each chunk. The times of these events are the times at
which the consumer received the chunks, so they give the gaps. The events rarely say what a chunk carries: the first one may be a prelude
without content, so the time between the first and the second is not counted as a gap. The module decides nothing else about the span.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.definitions import TEXT

__all__ = ["ChunkEvents", "chunk_events"]

# Names that stand for a chunk wherever they occur: OpenLLMetry since 0.5 and before, Mellea, the token events of a proposal to the
# conventions.
_KNOWN = frozenset(
    ("gen_ai.content.completion.chunk", "llm.content.completion.chunk", "chunk_processed", "gen_ai.token.generated", "gen_ai.chunk")
)
_CHUNK_WORD = re.compile(r"(?:^|[^a-z])(?:chunk|token|delta)s?(?:$|[^a-z])", re.IGNORECASE)
# An event of one of these names occurs once a stream: it marks a single moment.
_MOMENT_WORD = re.compile(r"first|last|final|start|end|finish|usage|message|exception|error|tool", re.IGNORECASE)
# A name without a word for chunks has to be this frequent.
_REPEATED_MIN = 8
_ROLE = 0
_CHUNKS_MAX = 65_536
_DT_MAX_US = 2**32 - 1
# Columns `dt` and `kind` of schema/TIMELINE.md, and the widths in bits with which they are written here.
_DT, _KIND = 1, 4


@dataclass(frozen=True, slots=True)
class ChunkEvents:
    """The chunk events of a span: ``timeline`` (schema/TIMELINE.md), ``first_us`` after the span's start, and how many were dropped."""

    timeline: bytes
    first_us: int
    chunks: int
    dropped: int

    @property
    def head_known(self) -> bool:
        """Whether the first chunks are there: SDKs drop the oldest events when a span has more than its limit (128 by default)."""
        return not self.dropped


def chunk_events(span: Span) -> ChunkEvents | None:
    """Return the chunk events of a span; None if it has fewer than two.

    Times that run backwards, before the start or past the end of the span are moved to the nearest possible time: the clock of the emitter
    was set while it recorded.
    """
    name = _chunk_name([event.name for event in span.events])
    if not name:
        return None
    times_ns = np.fromiter((event.time_unix_nano for event in span.events if event.name == name), np.uint64)
    if len(times_ns) < 2:
        return None
    dropped = span.dropped_events_count + max(0, len(times_ns) - _CHUNKS_MAX)
    start, end = span.start_time_unix_nano, max(span.end_time_unix_nano, span.start_time_unix_nano)
    kept = np.clip(times_ns[-_CHUNKS_MAX:], start, end) - np.uint64(start)
    times_us = np.maximum.accumulate((kept // 1000).astype(np.int64))
    kinds = np.full(len(times_us), TEXT, np.uint8)
    if not dropped:
        kinds[0] = _ROLE
    return ChunkEvents(_packed(times_us, kinds), int(times_us[0]), len(times_us), dropped)


def _chunk_name(names: Sequence[str]) -> str:
    """Return the name of the events that stand for chunks; empty if there is none."""
    counts = Counter(names)
    for name in _KNOWN:
        if counts[name]:
            return name
    repeated = [(count, name) for name, count in counts.items() if count > 1 and not _MOMENT_WORD.search(name)]
    worded = [each for each in repeated if _CHUNK_WORD.search(each[1])]
    count, name = max(worded or repeated, default=(0, ""))
    return name if worded or count >= _REPEATED_MIN else ""


def _packed(times_us: NDArray[np.int64], kinds: NDArray[np.uint8]) -> bytes:
    """Return a timeline with the columns `dt` in 32 bits and `kind` in 8 bits, without exceptions. A pause of 71 minutes or more is cut."""
    dt = np.minimum(np.diff(times_us, prepend=0), _DT_MAX_US).astype("<u4").tobytes()
    payloads = {_DT: b"\x20" + bytes(6) + dt, _KIND: b"\x08" + bytes(6) + kinds.tobytes()}
    directory = b"".join(bytes([number]) + len(payload).to_bytes(4, "little") for number, payload in payloads.items())
    return b"\x01" + bytes([len(payloads)]) + len(times_us).to_bytes(4, "little") + directory + b"".join(payloads.values())
