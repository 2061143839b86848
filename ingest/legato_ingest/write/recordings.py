"""Which rows of streams are of one response, and which of them wins: pure functions over ``Recording``.

Two rows are of the same response if they are of one vantage and one service, overlap in time, and share the response's id. Where one has no
id, they are if one is the parent of the other, or if a row of Legato's covers the same time in the same trace. Logfire's row of a response
of Anthropic is in a trace apart from that of Anthropic's SDK: the end decides. A row of Legato's own emitters wins over others, then a row
with chunks, then one with TTFT, then one with the TTFT of content.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from legato_ingest.emitters import OWN_PREFIX

__all__ = ["TRACES_MAX", "Recording", "losers"]

# Start and end of two recordings of one response without an id: Legato's, and another library's in the same process.
_ALIKE_NS = 250_000_000
# A row is compared with so many others at most: a request could hold thousands of rows with one id.
_COMPARED_MAX = 16
TRACES_MAX = 16
"""An id in more traces than this identifies no response: some servers send one id for ever."""
_LOGFIRE, _SDK = "logfire", "anthropic-sdk"
# The service names that libraries set where there is none: LiteLLM, OpenLIT, and Traceloop, which takes the path of the program.
_DEFAULT_NAME = re.compile(r"litellm|default|[./].*|.*\\.*|.*\.py")
_Key = tuple[str, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Recording:
    """What decides between rows of one response. ``place``: (batch, row) of a new row; None for a stored one."""

    tenant: str
    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes
    rev: int
    vantage: str
    service_name: str
    model: str
    response_model: str
    response_id: str
    emitter: str
    start_ns: int
    duration_ns: int
    has_chunks: bool
    has_ttft: bool
    any_chunk: bool
    place: tuple[int, int] | None = None

    @property
    def is_own(self) -> bool:
        """Whether one of Legato's own emitters made the row."""
        return self.emitter.startswith(OWN_PREFIX)

    @property
    def key(self) -> _Key:
        """What identifies the row's stream."""
        return self.tenant, self.trace_id, self.span_id

    @property
    def end_ns(self) -> int:
        """End of the stream, ns since the epoch."""
        return self.start_ns + self.duration_ns

    def rank(self) -> tuple[bool, bool, bool, bool, bool, int, bytes]:
        """The order in which rows of one response win. Among equals the stored row wins, so that a retry changes nothing."""
        return self.is_own, self.has_chunks, self.has_ttft, not self.any_chunk, self.place is None, -self.start_ns, self.span_id


def losers(recordings: Iterable[Recording]) -> list[tuple[Recording, Recording]]:
    """Return (loser, winner) for each foreign row of a response that has a richer row. No winner is itself a loser.

    Of the revs of one stream, the highest alone is compared, and no row with itself, which a span may name as its parent.
    """
    newest = {each.key: each for each in sorted(recordings, key=attrgetter("rev"))}
    ordered = sorted(newest.values(), key=Recording.rank, reverse=True)
    richer: dict[_Key, list[Recording]] = defaultdict(list)
    for loser, winner in (*_with_equal_ids(ordered), *_with_parents(ordered), *_at_equal_times(ordered), *_beside_the_sdk(ordered)):
        if not loser.is_own and loser.key != winner.key and _is_same(loser, winner):
            richer[loser.key].append(winner)
    lost: dict[_Key, tuple[Recording, Recording]] = {}
    # The richest first, so that each possible winner is decided before its losers.
    for loser in ordered:
        for winner in richer.get(loser.key, ()):
            final = lost[winner.key][1] if winner.key in lost else winner
            if final is winner or (final.key != loser.key and not _contradict(final, loser)):
                lost[loser.key] = loser, final
                break
    return list(lost.values())


def _with_equal_ids(ordered: Sequence[Recording]) -> Iterator[tuple[Recording, Recording]]:
    """Yield pairs of rows with the same response id, the poorer one first. Each row is compared with a few of the richest only."""
    traces: dict[tuple[str, str, str], set[bytes]] = defaultdict(set)
    for each in ordered:
        traces[each.tenant, each.vantage, each.response_id].add(each.trace_id)
    groups: dict[tuple[str, str, str, bytes], list[Recording]] = defaultdict(list)
    for each in ordered:
        if each.response_id:
            named = each.tenant, each.vantage, each.response_id
            group = groups[*named, each.trace_id if len(traces[named]) > TRACES_MAX else b""]
            yield from ((each, richer) for richer in group)
            if len(group) < _COMPARED_MAX:
                group.append(each)


def _with_parents(ordered: Sequence[Recording]) -> Iterator[tuple[Recording, Recording]]:
    """Yield pairs of a row and its parent, the poorer one first."""
    by_span = {(each.tenant, each.trace_id, each.span_id): each for each in ordered}
    for each in ordered:
        parent = by_span.get((each.tenant, each.trace_id, each.parent_span_id))
        if parent is not None:
            yield (each, parent) if each.rank() < parent.rank() else (parent, each)


def _at_equal_times(ordered: Sequence[Recording]) -> Iterator[tuple[Recording, Recording]]:
    """Yield pairs of a foreign row and one of Legato's in the same trace that end at about the same time."""
    own: dict[tuple[str, bytes], list[Recording]] = defaultdict(list)
    for each in ordered:
        if each.is_own:
            own[each.tenant, each.trace_id].append(each)
    for group in own.values():
        group.sort(key=attrgetter("end_ns"))
    for each in ordered:
        yield from _ending_with(each, own.get((each.tenant, each.trace_id), []) if not each.is_own else [])


def _beside_the_sdk(ordered: Sequence[Recording]) -> Iterator[tuple[Recording, Recording]]:
    """Yield pairs of a row of Logfire's and one of Anthropic's SDK that end at about the same time, in any traces of a tenant."""
    of_sdk: dict[str, list[Recording]] = defaultdict(list)
    for each in ordered:
        if each.emitter.startswith(_SDK):
            of_sdk[each.tenant].append(each)
    for group in of_sdk.values():
        group.sort(key=attrgetter("end_ns"))
    for each in ordered if of_sdk else ():
        if each.emitter.startswith(_LOGFIRE) and not each.response_id:
            yield from _ending_with(each, of_sdk[each.tenant])


def _ending_with(each: Recording, group: Sequence[Recording]) -> Iterator[tuple[Recording, Recording]]:
    """Yield pairs of a row and those of a group, in order of their end, that end at about the same time."""
    first = bisect_left(group, each.end_ns - _ALIKE_NS, key=attrgetter("end_ns"))
    yield from ((each, richer) for richer in group[first : first + _COMPARED_MAX] if richer.end_ns <= each.end_ns + _ALIKE_NS)


def _is_same(one: Recording, other: Recording) -> bool:
    if one.vantage != other.vantage or _contradict(one, other) or not _of_one_service(one, other):
        return False
    overlap_ns = min(one.end_ns, other.end_ns) - max(one.start_ns, other.start_ns)
    if one.response_id and other.response_id and one.trace_id == other.trace_id:
        return 2 * overlap_ns >= min(one.duration_ns, other.duration_ns)
    if one.response_id and other.response_id:
        # Some servers count their ids from 0, so in two traces the time decides, too.
        return _is_alike(one, other)
    if _is_nested(one, other):
        # An agent's span around several requests is much longer than each of them.
        return 2 * overlap_ns >= max(one.duration_ns, other.duration_ns)
    return (one.is_own != other.is_own or _has_sdk(one, other)) and _is_alike(one, other)


def _has_sdk(one: Recording, other: Recording) -> bool:
    """Whether the rows are one of Logfire's and one of Anthropic's SDK."""
    return any(each.emitter.startswith(_SDK) for each in (one, other)) and any(each.emitter.startswith(_LOGFIRE) for each in (one, other))


def _contradict(one: Recording, other: Recording) -> bool:
    """Whether two rows name different responses, or, where one has no id, models that cannot be one.

    One emitter makes one row of a response, or one inside of the other: other rows with an equal id are parallel requests to a server that
    repeats its ids, or the choices of one request at an engine. A provider answers by a dated name, or by another one than that of an alias
    or a deployment. Some emitters send this name alone.
    """
    if one.emitter == other.emitter and not _is_nested(one, other):
        return True
    if one.response_id and other.response_id:
        return one.response_id != other.response_id
    models, others = _models(one), _models(other)
    return bool(models and others) and models.isdisjoint(others)


def _is_nested(one: Recording, other: Recording) -> bool:
    """Whether one of the rows is the parent of the other."""
    return one.trace_id == other.trace_id and (one.span_id == other.parent_span_id or other.span_id == one.parent_span_id)


def _models(row: Recording) -> set[str]:
    """Return the names of the model that was requested and of the one that answered. Frameworks put the provider before a name."""
    return {name.rpartition("/")[2] for name in (row.model, row.response_model) if name}


def _is_alike(one: Recording, other: Recording) -> bool:
    """Whether two rows end together, and begin together. Logfire's row begins with the headers of the response."""
    own, foreign = (one, other) if one.is_own or one.emitter.startswith(_SDK) else (other, one)
    apart_ns = foreign.start_ns - own.start_ns
    is_logfire = foreign.emitter.startswith(_LOGFIRE) and 0 <= apart_ns <= own.duration_ns
    return abs(one.end_ns - other.end_ns) <= _ALIKE_NS and (abs(apart_ns) <= _ALIKE_NS or is_logfire)


def _of_one_service(one: Recording, other: Recording) -> bool:
    """Whether two rows may come from one process. A proxy's client has the same response as the application's, and its row counts.

    A library's default name is none beside a row that is near: between an application and a proxy there is a span of the proxy's server.
    """
    named = [each for each in (one, other) if each.service_name and not each.service_name.startswith("unknown_service")]
    if len({each.service_name for each in named}) < 2:
        return True
    is_near = _is_nested(one, other) or _have_one_parent(one, other)
    return is_near and any(not each.is_own and _DEFAULT_NAME.fullmatch(each.service_name) for each in named)


def _have_one_parent(one: Recording, other: Recording) -> bool:
    return any(one.parent_span_id) and (one.trace_id, one.parent_span_id) == (other.trace_id, other.parent_span_id)
