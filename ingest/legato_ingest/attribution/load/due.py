"""Find the streams that are due: those that were received, and those that evidence arrived about after they were judged.

A judgement uses everything that is in the store at its time, so evidence that arrives later, however late, makes the streams due again that
it is about. The module reads which streams these are; it loads no stream.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from legato_ingest.attribution.load.by_engine import ENGINE_NS_SPARSE, Window, batches_of, span_of
from legato_ingest.attribution.load.engine_ids import is_behind, is_one_of
from legato_ingest.attribution.load.gpu_clock_samples import GPU_METRICS
from legato_ingest.attribution.load.learned_offsets import CLOCKS_APART_NS, STREAM_NS_MAX, LearnedOffsets, stretch_of_any
from legato_ingest.attribution.load.scraped_metrics import SCRAPED_METRICS
from legato_ingest.attribution.load.shards import CELL_NS, CELLS_MAX, is_in_shards
from legato_ingest.attribution.model.scraped import SCRAPE_DISTANCE_NS_MAX, EngineKey
from legato_ingest.causes import sql_list
from legato_ingest.definitions import server_of
from legato_ingest.storage import Store
from legato_ingest.storage.judged import ALL_SHARDS
from legato_ingest.storage.sql import after_until_ms, between_ns, integers, quoted, quoted_all, time_ns, unquoted

__all__ = ["CLOCKS_APART_NS", "STREAM_NS_MAX", "Due", "due_by_evidence", "due_by_receipt", "joined"]

_MS = 1_000_000
# The server sends a first token at most this long before, or after, the record of the step with the prompt.
_FIRST_TOKEN_EARLY_NS, _FIRST_TOKEN_LATE_NS = 250 * _MS, 1_000 * _MS
# The first and the last start of the new streams in each stretch of ``CLOCKS_APART_NS``.
_STARTS = f"""
SELECT toUnixTimestamp64Nano(min(start_time)), toUnixTimestamp64Nano(max(start_time)) FROM stream_revs
WHERE {{new}}
GROUP BY intDiv(toUnixTimestamp64Nano(start_time), {CLOCKS_APART_NS})"""
# If there are more stretches with new streams, one query covers all.
_STRETCHES_MAX = 16
_RECEIVED = """
SELECT count(), toUnixTimestamp64Nano(min(start_time)), toUnixTimestamp64Nano(max(start_time)) FROM stream_revs
WHERE vantage IN ('client', 'server') AND {which}"""
_SPANS = """
SELECT tenant, toUnixTimestamp64Nano(start_time) AS start_ns, reinterpretAsUInt64(span_id) AS span FROM stream_revs
WHERE {inside} AND vantage IN ('client', 'server') AND {which}
LIMIT {most}"""
_SPANS_MAX = 16_000
_CELLS = f"""
SELECT DISTINCT intDiv(toUnixTimestamp64Nano(start_time), {CELL_NS}) FROM stream_revs
WHERE {{inside}} AND {{which}}
LIMIT {CELLS_MAX + 1}"""
_TIMES = """
SELECT tenant, engine_id, toUnixTimestamp64Nano(min(recorded_at)) AS low, toUnixTimestamp64Nano(max(recorded_at)) AS high
FROM {records}
GROUP BY tenant, engine_id
LIMIT {most} BY tenant"""
_TIMES_OF_TENANT = "SELECT toUnixTimestamp64Nano(min(recorded_at)), toUnixTimestamp64Nano(max(recorded_at)) FROM {records}"
# A request is recorded with the step in which it ended. An idle engine makes none for long: its agent repeats the last step then, which is
# not new.
_LATE_REQUESTS = """
SELECT tenant, engine_id, recorded_at, response_id FROM engine_requests
LEFT JOIN
(
    SELECT tenant, engine_id, min(step) AS first, max(step) AS last, min(recorded_at) AS low, max(recorded_at) AS high
    FROM engine_steps
    WHERE {new}
    GROUP BY tenant, engine_id
) AS steps USING (tenant, engine_id)
WHERE {new} AND response_id != '' AND NOT if(step = 0, recorded_at BETWEEN low AND high, step BETWEEN first AND last)"""
# A request waits this long for a step that is sent with it, and then has its time.
_REQUEST_LATE_NS = 30_000 * _MS
# A stream of several hours is looked for this long before, and is received this much earlier at most, by another clock.
_LONG_NS_MAX, _CLOCK_NS = 86_400_000 * _MS, 30_000 * _MS
# The new steps of a tenant with more engines, or with engines of more times, count as one: those of all its streams in their time are due.
# The engines of a request are the sender's choice, and each costs memory, and each time three queries.
_ENGINES_MAX = 2_048
_TIMES_MAX = 64
# Engines of one condition: more of them are several conditions, not fewer streams.
_ENGINES_AT_ONCE = 2_048
_SAMPLES = f"""
SELECT tenant, toUnixTimestamp64Nano(min(recorded_at)) AS low, toUnixTimestamp64Nano(max(recorded_at)) AS high
FROM node_samples
WHERE {{new}} AND metric IN {sql_list((*GPU_METRICS, *SCRAPED_METRICS))}
GROUP BY tenant"""
_FIRST_TOKENS = """
SELECT tenant, engine_id, groupArray(toUnixTimestamp64Nano(addMicroseconds(start_time, ttft_us))) AS first_ns
FROM stream_revs
WHERE {new} AND vantage = 'server' AND ttft_us IS NOT NULL AND engine_id != '' AND response_id != ''
GROUP BY tenant, engine_id"""

_IS_UNKNOWN_PROMPT = "cause = 'scheduling' AND empty(culprit_responses)"
_UNKNOWN_PROMPTS = f"""
SELECT tenant, engine_id, toUnixTimestamp64Nano(culprit_at) AS at_ns
FROM verdicts FINAL
WHERE {{around}} AND {{inside}} AND {_IS_UNKNOWN_PROMPT}
GROUP BY tenant, engine_id, at_ns"""


@dataclass(frozen=True, slots=True)
class Due:
    """Streams that are due: they started between two times (ns, both included), and their rows satisfy conditions in SQL.

    ``keys`` and ``part`` are about columns of the primary key alone, so they may select rows before FINAL. ``part`` is short: ``keys`` may
    be some hundred KB, which all parts of the streams share.
    """

    low_ns: int
    high_ns: int
    which: str = "1"
    keys: str = "1"
    part: str = "1"

    def started(self, around_ns: int = 0) -> str:
        """Return the condition on the start, for streams that started up to ``around_ns`` earlier or later."""
        return between_ns("start_time", self.low_ns - around_ns, self.high_ns + around_ns)

    @property
    def inside(self) -> str:
        """The conditions on the primary key."""
        return f"{self.started()} AND {self.keys} AND {self.part}"

    def only(self, condition: str) -> Due:
        """Return those of the streams that satisfy a short condition on the primary key, such as one on `tenant`."""
        if condition == "1":
            return self
        return replace(self, part=condition if self.part == "1" else f"{self.part} AND {condition}")


def joined(due: Iterable[Due]) -> list[Due]:
    """Return the same streams with those of overlapping times as one, in order of time.

    A stream is then loaded and judged once although it is due for several reasons, and an engine's steps are read once for all its streams.
    """
    groups: list[list[Due]] = []
    end_ns = -1
    for each in sorted(due, key=lambda each: (each.low_ns, each.high_ns)):
        if groups and each.low_ns <= end_ns:
            groups[-1].append(each)
        else:
            groups.append([each])
        end_ns = max(end_ns, each.high_ns)
    return [_as_one(group) for group in groups]


def _as_one(group: Sequence[Due]) -> Due:
    """Return the streams of all. The text grows with the sum of theirs: joined two by two it grew with the square of it."""
    if len(group) == 1:
        return group[0]
    keys = " OR ".join(each.inside for each in group)
    all_rows = all(each.which == "1" for each in group)
    which = "1" if all_rows else "(" + " OR ".join(f"{each.inside} AND {each.which}" for each in group) + ")"
    return Due(min(each.low_ns for each in group), max(each.high_ns for each in group), which, f"({keys})")


def due_by_receipt(store: Store, after_ms: int, until_ms: int, shards: int = ALL_SHARDS, tenants: str = "1") -> list[Due]:
    """Return the streams of these shards with a vantage that was received between these times. ``tenants``: a condition on `tenant`.

    The other streams of their traces are included if they started within ``CLOCKS_APART_NS`` of a new one. A search for the traces among
    all streams took 0.3 s with ten million in the store.
    """
    new = f"{after_until_ms('received_at', after_ms, until_ms)} AND {tenants}"
    starts = ((int(low) - CLOCKS_APART_NS, int(high) + CLOCKS_APART_NS) for low, high in store.select(_STARTS.format(new=new)))
    stretches = _merged(starts)
    if len(stretches) > _STRETCHES_MAX:
        stretches = [(stretches[0][0], stretches[-1][1])]
    return [due for low, high in stretches if (due := _of_new_traces(store, new, low, high, shards)) is not None]


def _of_new_traces(store: Store, new: str, low: int, high: int, shards: int) -> Due | None:
    """Return the streams that started between these times and belong to the trace of a new stream that did, too."""
    new_streams = f"FROM stream_revs WHERE {between_ns('start_time', low, high)} AND {new}"
    # The first condition alone decides, unless two tenants have one trace id, and takes a third of the time of the second.
    which = f"trace_id IN (SELECT trace_id {new_streams}) AND (tenant, trace_id) IN (SELECT tenant, trace_id {new_streams})"
    return _found(store, Due(low, high, which), shards)


def due_by_evidence(
    store: Store, clocks: LearnedOffsets, judged_ms: int, after_ms: int, until_ms: int, shards: int = ALL_SHARDS, tenants: str = "1"
) -> list[Due]:
    """Return the streams of these shards received until ``judged_ms`` that evidence received between the two other times is about.

    ``tenants``: a condition on `tenant`.
    """
    new = f"{after_until_ms('received_at', after_ms, until_ms)} AND {tenants}"
    is_judged = f"received_at <= {time_ns(judged_ms * _MS)}"
    due = [
        *_by_steps(store, clocks, new, is_judged, judged_ms * _MS),
        *_by_requests(store, clocks, new, is_judged, judged_ms * _MS),
        *_by_samples(store, new, is_judged, judged_ms * _MS),
        *_by_first_tokens(store, new, is_judged, judged_ms * _MS),
    ]
    return [found for each in due if (found := _found(store, each, shards)) is not None]


def _found(store: Store, due: Due, shards: int = ALL_SHARDS) -> Due | None:
    """Return those of these shards by their tenants and span ids, and the times at which they started; ``None`` without any.

    Any stream of ten minutes may be due, and few are. The queries that follow then need neither read ten minutes nor repeat the condition.
    Too many streams for a list stay as they are.
    """
    table = store.select_arrow(_SPANS.format(inside=due.inside, which=due.which, most=_SPANS_MAX + 1))
    if not table.num_rows:
        return None
    is_list = table.num_rows <= _SPANS_MAX
    starts = table["start_ns"].to_pylist()
    tenants = map(unquoted, table["tenant"].unique().to_pylist())
    found = _listed(tenants, starts, table["span"].to_pylist()) if is_list else due
    if shards == ALL_SHARDS:
        return found
    cells = {start // CELL_NS for start in starts} if is_list else {int(cell) for (cell,) in store.select(_of(_CELLS, due))}
    if len(cells) > CELLS_MAX:
        return found
    return _found(store, replace(found, which=f"({found.which}) AND {is_in_shards(shards, cells)}"))


def _of(sql: str, due: Due) -> str:
    return sql.format(inside=due.inside, which=due.which)


def _listed(tenants: Iterable[str], starts: Sequence[int], spans: Sequence[int]) -> Due:
    """Return these spans. A span id is its sender's choice: another tenant's streams with the same ids are not due."""
    ids = integers(np.array(sorted(set(spans)), np.uint64))
    keys = f"tenant IN ({quoted_all(sorted(tenants))}) AND reinterpretAsUInt64(span_id) IN ({ids})"
    return Due(min(starts), max(starts), keys=keys)


def _by_steps(store: Store, clocks: LearnedOffsets, new: str, is_judged: str, judged_ns: int) -> Iterator[Due]:
    """Yield the streams that ran at the time of new steps, unless other engines with complete records explain their stalls."""
    for tenants, engines, low, high in _stretches(store, clocks, new, f"engine_steps WHERE {new}", judged_ns):
        for each in _running(store, tenants, low, high, is_judged):
            elsewhere = _ELSEWHERE.format(engines=is_behind(engines), around=each.started()) if engines else "1"
            yield replace(each, which=f"{each.which} AND {elsewhere}")


def _by_requests(store: Store, clocks: LearnedOffsets, new: str, is_judged: str, judged_ns: int) -> Iterator[Due]:
    """Yield the streams that new records of finished requests are about, as far as the new steps are not."""
    late = _LATE_REQUESTS.format(new=new)
    named = f"{is_judged} AND response_id IN (SELECT response_id FROM ({late}))"
    for tenants, _, low, high in _stretches(store, clocks, new, f"({late}) WHERE 1", judged_ns):
        yield from _running(store, tenants, low - _REQUEST_LATE_NS, high, named)


def _stretches(
    store: Store, clocks: LearnedOffsets, new: str, records: str, judged_ns: int
) -> Iterator[tuple[Collection[str], Collection[EngineKey], int, int]]:
    """Yield tenants and engines with new records of about one time, and the first and the last time (ns) by the clocks of their streams.

    ``records``: a table and a condition. The engines of a tenant that has too many are not named.
    """
    windows, crowded = _windows(store, clocks, new, records)
    for batch in batches_of({key: window for key, window in windows.items() if window[0] <= judged_ns}, ENGINE_NS_SPARSE):
        yield {tenant for tenant, _ in batch}, batch.keys(), *span_of(batch)
    for tenant in sorted(crowded):
        is_own = f"tenant = {quoted(tenant)}"
        ((first, last),) = store.select(_TIMES_OF_TENANT.format(records=f"{records} AND {is_own}"))
        low, high = stretch_of_any(store, f"{new} AND {is_own}", int(first), int(last))
        if low <= judged_ns:
            yield {tenant}, (), low, high


def _windows(store: Store, clocks: LearnedOffsets, new: str, records: str) -> tuple[dict[EngineKey, Window], set[str]]:
    """Return when the streams ran that the new records of each engine are about, and the tenants with too many engines or times."""
    recorded: dict[str, list[tuple[EngineKey, int, int]]] = {}
    for name, engine, low, high in store.select(_TIMES.format(records=records, most=_ENGINES_MAX + 1)):
        tenant = str(unquoted(name))
        recorded.setdefault(tenant, []).append(((tenant, str(unquoted(engine))), int(low), int(high)))
    crowded = {tenant for tenant, own in recorded.items() if len(own) > _ENGINES_MAX}
    few = [each for tenant, own in recorded.items() if tenant not in crowded for each in own]
    if few:
        others = f"{new} AND tenant NOT IN ({quoted_all(sorted(crowded))})" if crowded else new
        clocks.learn(store, others, min(low for _, low, _ in few), max(high for _, _, high in few))
    windows = {key: clocks.stretch(key, low, high) for key, low, high in few}
    for tenant in recorded.keys() - crowded:
        own_windows = {key: windows[key] for key, _, _ in recorded[tenant]}
        if len(own_windows) > _TIMES_MAX and sum(1 for _ in batches_of(own_windows, ENGINE_NS_SPARSE)) > _TIMES_MAX:
            crowded.add(tenant)
    return {key: window for key, window in windows.items() if key[0] not in crowded}, crowded


def _running(store: Store, tenants: Collection[str], low: int, high: int, is_judged: str) -> Iterator[Due]:
    """Yield the judged streams of these tenants that ran between these times.

    A stream's clock may be wrong; then the time at which it was received shows when it ran.
    """
    own = f"tenant IN ({quoted_all(sorted(tenants))}) AND {is_judged}"
    ran = f"{own} AND addNanoseconds(start_time, duration_ns) >= {time_ns(low)}"
    for each in (
        _found(store, Due(low - STREAM_NS_MAX, high, ran)),
        _found(store, _long(low, ran)),
        _by_time_of_receipt(store, own, low, high),
    ):
        if each is not None:
            yield each


def _long(low: int, which: str) -> Due:
    """Return the streams that started over ``STREAM_NS_MAX`` before a time and were received after it. They are few.

    The index of the times of receipt leaves out nearly all others of a day, so that no longest duration needs to be known.
    """
    received = f"received_at >= {time_ns(low - _CLOCK_NS)}"
    return Due(low - _LONG_NS_MAX, low - STREAM_NS_MAX - 1, f"{received} AND {which}")


# The streams are not explained by the complete records of other engines. A rank may wait for the other ranks of its server.
_ELSEWHERE = """(tenant, start_time, trace_id, span_id) NOT IN
    (
        SELECT tenant, start_time, trace_id, span_id FROM verdicts FINAL
        WHERE {around} AND engine_id != '' AND NOT {engines} AND NOT has(missing, 'engine')
    )"""


def _by_time_of_receipt(store: Store, which: str, low: int, high: int) -> Due | None:
    """Return the streams that were received between these times although they started at other times by their own clocks."""
    received = f"{which} AND {between_ns('received_at', low, high + 1_000 * _MS)}"
    skewed = f"{received} AND NOT ({_around(low, high)})"
    ((count, first, last),) = store.select(_RECEIVED.format(which=skewed))
    return Due(int(first), int(last), skewed) if count else None


def _by_samples(store: Store, new: str, is_judged: str, judged_ns: int) -> Iterator[Due]:
    """Yield the streams with stalls that new samples may explain: with time charged to the host, or without the engine's steps."""
    sampled = store.select(_SAMPLES.format(new=new))
    with_long = _tenants_with_long(store, min(int(low) for _, low, _ in sampled) - SCRAPE_DISTANCE_NS_MAX) if sampled else set[str]()
    for name, low_ns, high_ns in sampled:
        tenant, low, high = str(unquoted(name)), int(low_ns) - SCRAPE_DISTANCE_NS_MAX, int(high_ns) + SCRAPE_DISTANCE_NS_MAX
        if low > judged_ns:
            continue
        stalled = f"tenant = {quoted(tenant)} AND cause != 'base' AND (has(missing, 'engine') OR parts['host'] > 0)"
        stalled += f" AND addMicroseconds(start_time, gap_start_us) <= {time_ns(high)}"
        stalled += f" AND addMicroseconds(start_time, gap_start_us + gap_us) >= {time_ns(low)}"
        near = Due(low - STREAM_NS_MAX, high)
        yield _with_stalls(near, is_judged, stalled)
        if tenant in with_long:
            long = _long(low, is_judged)
            yield _with_stalls(long, long.which, f"{stalled} AND judged_at >= {time_ns(low - _CLOCK_NS)}")


def _tenants_with_long(store: Store, low: int) -> set[str]:
    """Return the tenants with streams that started over ``STREAM_NS_MAX`` before a time and were received after it."""
    long = _long(low, "1")
    names = store.select(f"SELECT DISTINCT tenant FROM stream_revs WHERE {long.inside} AND {long.which}")
    return {str(unquoted(name)) for (name,) in names}


def _by_first_tokens(store: Store, new: str, is_judged: str, judged_ns: int) -> Iterator[Due]:
    """Yield the streams with stalls by a prompt of an unknown request, if a new stream got its first token from such a step."""
    sent: dict[EngineKey, list[tuple[int, int]]] = {}
    for tenant, engine_id, first_ns in store.select(_FIRST_TOKENS.format(new=new)):
        times = _merged((int(at) - _FIRST_TOKEN_LATE_NS, int(at) + _FIRST_TOKEN_EARLY_NS) for at in first_ns if int(at) <= judged_ns)
        if times:
            sent[str(unquoted(tenant)), str(unquoted(engine_id))] = times
    if not sent:
        return
    low, high = min(times[0][0] for times in sent.values()), max(times[-1][1] for times in sent.values())
    found: dict[EngineKey, list[int]] = {}
    for tenant, engine_id, at_ns in store.select(
        _UNKNOWN_PROMPTS.format(around=_around(low, high), inside=between_ns("culprit_at", low, high))
    ):
        own = str(unquoted(tenant)), str(unquoted(engine_id))
        if any(_contains(sent.get((own[0], server), ()), int(at_ns)) for server in (own[1], server_of(own[1]))):
            found.setdefault(own, []).append(int(at_ns))
    engines = sorted(found)
    for first in range(0, len(engines), _ENGINES_AT_ONCE):
        some = engines[first : first + _ENGINES_AT_ONCE]
        begin, end = min(min(found[key]) for key in some), max(max(found[key]) for key in some)
        unknown = f"{is_one_of(some)} AND {_IS_UNKNOWN_PROMPT} AND {between_ns('culprit_at', begin, end)}"
        yield _with_stalls(Due(begin - STREAM_NS_MAX, end), is_judged, unknown)


def _contains(stretches: Sequence[tuple[int, int]], at_ns: int) -> bool:
    """Return whether one of these stretches of time, which are in order, contains a time."""
    place = bisect_right(stretches, at_ns, key=itemgetter(0)) - 1
    return place >= 0 and at_ns <= stretches[place][1]


def _merged(stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the stretches of time in order, overlapping ones as one."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(stretches):
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return out


def _with_stalls(started: Due, which: str, stalled: str) -> Due:
    """Return the streams that started at these times, satisfy ``which``, and have a stall that satisfies ``stalled``."""
    keys = f"SELECT tenant, start_time, trace_id, span_id FROM verdicts FINAL WHERE {started.started()} AND {stalled}"
    return replace(started, which=f"{which} AND (tenant, start_time, trace_id, span_id) IN ({keys})")


def _around(low: int, high: int) -> str:
    return between_ns("start_time", low - STREAM_NS_MAX, high)
