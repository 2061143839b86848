"""Span events, one a chunk, as a packed timeline.

Several libraries and many hand-made instrumentations add an event to the span for each chunk. The times of these events are the times at
which the consumer received the chunks, so they give the gaps. The events rarely say what a chunk carries: the first one may be a prelude
without content, so the time between the first and the second is not counted as a gap. The module decides nothing else about the span.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.definitions import TEXT

__all__ = ["ChunkEvents", "Content", "chunk_events"]

# Names that stand for a chunk wherever they occur: OpenLLMetry since 0.5 and before, Mellea, the token events of a proposal to the
# conventions, and MLflow.
_KNOWN = frozenset(
    ("gen_ai.content.completion.chunk", "llm.content.completion.chunk", "chunk_processed", "gen_ai.token.generated", "gen_ai.chunk",
     "mlflow.chunk.item")
)  # fmt: skip
# The plain word of spans by hand, and of documents that were retrieved: those precede the response.
_PLAIN = "chunk"
# Other names are guesses, right only where the span says that it streamed: retrieved chunks and refreshed tokens are events, too.
_CHUNK_WORD = re.compile(r"(?:^|[^a-z])(?:chunk|token|delta)s?(?:$|[^a-z])", re.IGNORECASE)
# An event of one of these names occurs once a stream: it marks a single moment.
_MOMENT_WORD = re.compile(r"first|last|final|start|end|finish|usage|message|exception|error|tool|evaluation", re.IGNORECASE)
# A name without a word for chunks has to be this frequent.
_REPEATED_MIN = 8
# Names that follow each other at this share of the events mark two moments of each chunk, such as `chunk.received` and `chunk.sent`.
_ALTERNATING = 0.75
_ROLE = 0
_CHUNKS_MAX = 65_536
_UINT32_MAX = 2**32 - 1
# Columns of schema/TIMELINE.md.
_DT, _BYTES, _KIND = 1, 2, 4
_NAME_CHARACTERS_MAX = 256
# Fewer events are not worth it; longer ones have attributes, which differ.
_EQUAL_MIN, _EVENT_BYTES_MAX = 8, 2**14 - 1


@dataclass(frozen=True, slots=True)
class ChunkEvents:
    """The chunk events of a span: ``timeline`` (schema/TIMELINE.md), ``first_us`` after the span's start, and how many were dropped.

    ``first_us`` is negative for a first event before the start, which is at the start in the timeline.
    ``kinds_known``: each event says what its chunk carries.
    """

    timeline: bytes
    first_us: int
    chunks: int
    dropped: int
    kinds_known: bool

    @property
    def head_known(self) -> bool:
        """Whether the first chunks are there: SDKs drop the oldest events when a span has more than its limit (128 by default)."""
        return not self.dropped


Content = Callable[[Span.Event], tuple[int, int] | None]
"""Returns the kind of an event's chunk and the bytes of its content (schema/TIMELINE.md); None where the event does not say."""


def chunk_events(span: Span, content: Content | None = None, *, streamed: bool | None) -> ChunkEvents | None:
    """Return the chunk events of a span; None if it has fewer than two.

    ``streamed``: whether the span says that its response was streamed. Events of any name may be chunks only if it does; otherwise they
    need a name that stands for nothing else. Reasoning and text may have events of two names, so all names with a word for chunks count.

    Times that run backwards, before the start or past the end of the span are moved to the nearest possible time: the clock of the emitter
    was set while it recorded.
    """
    times_ns = _equal_events(span, bool(streamed)) if content is None else None
    found: list[Span.Event] = []
    if times_ns is None:
        found = _found(span, bool(streamed))
        times_ns = np.fromiter([event.time_unix_nano for event in found], np.uint64, len(found))
    if len(times_ns) < 2:
        return None
    dropped = span.dropped_events_count + max(0, len(times_ns) - _CHUNKS_MAX)
    times_ns, found = times_ns[-_CHUNKS_MAX:], found[-_CHUNKS_MAX:]
    start, end = span.start_time_unix_nano, max(span.end_time_unix_nano, span.start_time_unix_nano)
    times_us = np.maximum.accumulate(((np.clip(times_ns, start, end) - np.uint64(start)) // 1000).astype(np.int64))
    carried = [content(event) for event in found] if content is not None else [None]
    sizes = None
    if None in carried:
        kinds = np.full(len(times_us), TEXT, np.uint8)
        if not dropped:
            kinds[0] = _ROLE
    else:
        kinds, sizes = (np.array(column) for column in zip(*filter(None, carried), strict=True))
    first_us = (min(int(times_ns[0]), end) - start) // 1000
    return ChunkEvents(_packed(times_us, kinds, sizes), first_us, len(times_us), dropped, sizes is not None)


def _equal_events(span: Span, guess: bool) -> NDArray[np.uint64] | None:
    """Return the times (ns) of events that are equal but for their times; None if some differ or their name stands for no chunk.

    Their bytes in the span's message follow each other in equal steps, so no event becomes a Python object: 20 times faster. The bytes
    are compared, so the order in which a serializer writes fields does not matter.
    """
    count = len(span.events)
    if count < _EQUAL_MIN or not _chunk_names(span, {_unnumbered(span.events[0].name): count}, guess):
        return None
    first = span.events[0].SerializeToString()
    # Field 1, the time, as eight bytes; without a time the event has no such field.
    if first[:1] != b"\x09" or len(first) > _EVENT_BYTES_MAX:
        return None
    step = 2 + len(first) if len(first) < 128 else 3 + len(first)
    message = span.SerializeToString()
    place = message.find(first) - step + len(first)
    if place < 0 or place + count * step > len(message):
        return None
    events = bytearray(message[place : place + count * step])
    rows = np.frombuffer(events, np.uint8).reshape(count, step)
    of_time = slice(step - len(first) + 1, step - len(first) + 9)
    times_ns = np.ascontiguousarray(rows[:, of_time]).view("<u8")[:, 0]
    rows[:, of_time] = 0
    return times_ns if events == events[:step] * count else None


def _found(span: Span, guess: bool) -> list[Span.Event]:
    """Return the events that stand for chunks."""
    given = [event.name for event in span.events]
    # Most spans have one name for all events.
    unnumbered = {name: _unnumbered(name) for name in set(given)}
    names = list(map(unnumbered.__getitem__, given))
    counts = Counter(names)
    chosen = _chunk_names(span, counts, guess)
    found = [(event, name) for event, name in zip(span.events, names, strict=True) if name in chosen]
    if len(chosen) > 1:
        found.sort(key=lambda each: each[0].time_unix_nano)
        changes = sum(before[1] != after[1] for before, after in pairwise(found))
        if changes >= _ALTERNATING * len(found):
            one = max(chosen, key=lambda name: (name in _KNOWN, counts[name], name))
            found = [each for each in found if each[1] == one]
    return [event for event, _ in found]


def _unnumbered(name: str) -> str:
    """Return a name without the number at its end: MLflow numbers the events of a stream. A name may be as long as a request."""
    name = name[:_NAME_CHARACTERS_MAX]
    base = name.rstrip("0123456789")
    return base[:-1] if base != name and base[-1:] in (".", "_", "-") else base


def _chunk_names(span: Span, counts: Mapping[str, int], guess: bool) -> set[str]:
    """Return the names of the events that stand for chunks. ``guess``: also by words and frequency."""
    repeated = {name for name, count in counts.items() if count > 1}
    likely = {name for name in repeated if not _MOMENT_WORD.search(name)} if guess else set[str]()
    chosen = (repeated & _KNOWN) | {name for name in likely if _CHUNK_WORD.search(name)}
    if _PLAIN in repeated and _is_late(span):
        chosen.add(_PLAIN)
    elif len(chosen) > 1:
        chosen.discard(_PLAIN)
    if not chosen and likely:
        count, name = max((counts[name], name) for name in likely)
        chosen = {name} if count >= _REPEATED_MIN else set()
    return chosen


def _is_late(span: Span) -> bool:
    """Whether the last event with the plain name is in the second half of the span, as the last chunk of a response is."""
    last_ns = next((event.time_unix_nano for event in reversed(span.events) if _unnumbered(event.name) == _PLAIN), 0)
    return 2 * last_ns > span.start_time_unix_nano + span.end_time_unix_nano


def _packed(times_us: NDArray[np.int64], kinds: NDArray[Any], sizes: NDArray[Any] | None) -> bytes:
    """Return a timeline with columns of 32 and 8 bits without exceptions. A pause of 71 minutes or more is cut."""
    columns = {_DT: np.minimum(np.diff(times_us, prepend=0), _UINT32_MAX).astype("<u4"), _KIND: kinds.astype(np.uint8)}
    if sizes is not None:
        columns[_BYTES] = np.minimum(sizes, _UINT32_MAX).astype("<u4")
    payloads = {number: bytes([8 * column.itemsize]) + bytes(6) + column.tobytes() for number, column in columns.items()}
    directory = b"".join(bytes([number]) + len(payload).to_bytes(4, "little") for number, payload in payloads.items())
    return b"\x01" + bytes([len(payloads)]) + len(times_us).to_bytes(4, "little") + directory + b"".join(payloads.values())
