"""Find the judged streams that are due again, because evidence arrived that is about them: steps, requests, samples, other streams.

A judgement uses everything that is in the store at its time, so evidence that arrives later, however late, makes the streams due again that
it is about. The module reads which streams these are; it loads no stream.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from legato_ingest.attribution.load.by_engine import ENGINE_NS_SPARSE, Window, batches_of, span_of
from legato_ingest.attribution.load.due import Due, listed, merged
from legato_ingest.attribution.load.engine_ids import is_behind, is_one_of
from legato_ingest.attribution.load.gpu_clock_samples import GPU_METRICS
from legato_ingest.attribution.load.learned_offsets import STREAM_NS_MAX, LearnedOffsets, stretch_of_any
from legato_ingest.attribution.load.scraped_metrics import SCRAPED_METRICS
from legato_ingest.attribution.model.scraped import SCRAPE_DISTANCE_NS_MAX, EngineKey
from legato_ingest.causes import sql_list
from legato_ingest.definitions import server_of
from legato_ingest.storage import Store
from legato_ingest.storage.judged import ALL_SHARDS
from legato_ingest.storage.sql import after_until_ms, between_ns, quoted, quoted_all, time_ns, unquoted

__all__ = ["due_by_evidence"]

_MS = 1_000_000
# The server sends a first token at most this long before, or after, the record of the step with the prompt.
_FIRST_TOKEN_EARLY_NS, _FIRST_TOKEN_LATE_NS = 250 * _MS, 1_000 * _MS
_RECEIVED = """
SELECT count(), toUnixTimestamp64Nano(min(start_time)), toUnixTimestamp64Nano(max(start_time)) FROM stream_revs
WHERE vantage IN ('client', 'server') AND {which}"""
_TIMES = """
SELECT tenant, engine_id, toUnixTimestamp64Nano(min(recorded_at)) AS low, toUnixTimestamp64Nano(max(recorded_at)) AS high
FROM {records}
GROUP BY tenant, engine_id
LIMIT {most} BY tenant"""
_TIMES_OF_TENANT = "SELECT toUnixTimestamp64Nano(min(recorded_at)), toUnixTimestamp64Nano(max(recorded_at)) FROM {records}"
# A request is recorded with the step in which it ended. An idle engine makes none for long: its agent repeats the last step then, which is
# not new. Processes with one engine id count their steps alike, so both the step and the time are those of new steps, the time with slack.
_WITH_STEPS_NS = 1_000_000_000
_LATE_REQUESTS = f"""
SELECT tenant, engine_id, recorded_at, response_id FROM engine_requests
LEFT JOIN
(
    SELECT
        tenant, engine_id, min(step) AS first, max(step) AS last,
        toUnixTimestamp64Nano(min(recorded_at)) AS low_ns, toUnixTimestamp64Nano(max(recorded_at)) AS high_ns
    FROM engine_steps
    WHERE {{new}}
    GROUP BY tenant, engine_id
) AS steps USING (tenant, engine_id)
WHERE {{new}} AND response_id != '' AND NOT
    (
        (step = 0 OR step BETWEEN first AND last)
        AND toUnixTimestamp64Nano(recorded_at) BETWEEN low_ns - {_WITH_STEPS_NS} AND high_ns + {_WITH_STEPS_NS}
    )"""
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


def due_by_evidence(
    store: Store, clocks: LearnedOffsets, judged_ms: int, after_ms: int, until_ms: int, shards: int = ALL_SHARDS, tenants: str = "1"
) -> list[Due]:
    """Return the streams of these shards received until ``judged_ms`` that evidence received between the two other times is about.

    ``tenants``: a condition on `tenant`.
    """
    new = f"{after_until_ms('received_at', after_ms, until_ms)} AND {tenants}"
    is_judged = f"received_at <= {time_ns(judged_ms * _MS)}"
    late = _LATE_REQUESTS.format(new=new)
    steps = list(_stretches(store, clocks, new, f"engine_steps WHERE {new}", judged_ms * _MS))
    requests = list(_stretches(store, clocks, new, f"({late}) WHERE 1", judged_ms * _MS))
    samples = _sampled(store, new, judged_ms * _MS)
    long = _tenants_with_long(store, [each.low_ns for each in (*steps, *requests, *samples)])
    due = [
        *_by_steps(store, steps, long, is_judged),
        *_by_requests(store, requests, long, f"{is_judged} AND response_id IN (SELECT response_id FROM ({late}))"),
        *_by_samples(samples, long, is_judged),
        *_by_first_tokens(store, new, is_judged, judged_ms * _MS),
    ]
    return [found for each in due if (found := listed(store, each, shards)) is not None]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A stretch of time (ns, by the clocks of the streams) that new evidence of some tenants is about, and its engines as far as named."""

    tenants: Collection[str]
    engines: Collection[EngineKey]
    low_ns: int
    high_ns: int


def _by_steps(store: Store, steps: Iterable[_Stretch], long: set[str], is_judged: str) -> Iterator[Due]:
    """Yield the streams that ran at the time of new steps, unless other engines with complete records explain their stalls."""
    for new in steps:
        for each in _running(store, new, new.low_ns, long, is_judged):
            elsewhere = _ELSEWHERE.format(engines=is_behind(new.engines), around=each.started()) if new.engines else "1"
            yield replace(each, which=f"{each.which} AND {elsewhere}")


def _by_requests(store: Store, requests: Iterable[_Stretch], long: set[str], is_named: str) -> Iterator[Due]:
    """Yield the streams that new records of finished requests are about, as far as the new steps are not."""
    for new in requests:
        yield from _running(store, new, new.low_ns - _REQUEST_LATE_NS, long, is_named)


def _stretches(store: Store, clocks: LearnedOffsets, new: str, records: str, judged_ns: int) -> Iterator[_Stretch]:
    """Yield the engines with new records of about one time. ``records``: a table and a condition.

    The engines of a tenant that has too many are not named.
    """
    windows, crowded = _windows(store, clocks, new, records)
    for batch in batches_of({key: window for key, window in windows.items() if window[0] <= judged_ns}, ENGINE_NS_SPARSE):
        yield _Stretch({tenant for tenant, _ in batch}, batch.keys(), *span_of(batch))
    for tenant in sorted(crowded):
        is_own = f"tenant = {quoted(tenant)}"
        ((first, last),) = store.select(_TIMES_OF_TENANT.format(records=f"{records} AND {is_own}"))
        low, high = stretch_of_any(store, f"{new} AND {is_own}", int(first), int(last))
        if low <= judged_ns:
            yield _Stretch({tenant}, (), low, high)


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


def _running(store: Store, new: _Stretch, low: int, long: set[str], is_judged: str) -> Iterator[Due]:
    """Yield the judged streams of these tenants that ran between ``low`` and the end of the stretch. ``long``: as `_tenants_with_long`.

    A stream's clock may be wrong; then the time at which it was received shows when it ran.
    """
    own = f"tenant IN ({quoted_all(sorted(new.tenants))}) AND {is_judged}"
    ran = f"{own} AND addNanoseconds(start_time, duration_ns) >= {time_ns(low)}"
    for each in (
        listed(store, Due(low - STREAM_NS_MAX, new.high_ns, ran)),
        listed(store, _long(low, ran)) if long.intersection(new.tenants) else None,
        _by_time_of_receipt(store, own, low, new.high_ns),
    ):
        if each is not None:
            yield each


def _long(low: int, which: str) -> Due:
    """Return the streams that started over ``STREAM_NS_MAX`` before a time and were received after it. They are few.

    The index of the times of receipt leaves out nearly all others of a day, so that no longest duration needs to be known.
    """
    received = f"received_at >= {time_ns(low - _CLOCK_NS)}"
    return Due(low - _LONG_NS_MAX, low - STREAM_NS_MAX - 1, f"{received} AND {which}")


def _tenants_with_long(store: Store, lows: Sequence[int]) -> set[str]:
    """Return the tenants with streams that `_long` may find for one of these times. Most often there are none."""
    if not lows:
        return set()
    first, last = _long(min(lows) - _REQUEST_LATE_NS, "1"), _long(max(lows), "1")
    started = replace(first, high_ns=last.high_ns).inside
    names = store.select(f"SELECT DISTINCT tenant FROM stream_revs WHERE {started} AND {first.which}")
    return {str(unquoted(name)) for (name,) in names}


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


def _sampled(store: Store, new: str, judged_ns: int) -> list[_Stretch]:
    """Return the times of new samples, widened by the distance at which one may explain a stall."""
    rows = ((str(unquoted(name)), int(low), int(high)) for name, low, high in store.select(_SAMPLES.format(new=new)))
    near = (_Stretch({name}, (), low - SCRAPE_DISTANCE_NS_MAX, high + SCRAPE_DISTANCE_NS_MAX) for name, low, high in rows)
    return [each for each in near if each.low_ns <= judged_ns]


def _by_samples(samples: Iterable[_Stretch], long: set[str], is_judged: str) -> Iterator[Due]:
    """Yield the streams with stalls that new samples may explain: with time charged to the host, or without the engine's steps."""
    for new in samples:
        low, high = new.low_ns, new.high_ns
        stalled = f"tenant IN ({quoted_all(new.tenants)}) AND cause != 'base' AND (has(missing, 'engine') OR parts['host'] > 0)"
        stalled += f" AND addMicroseconds(start_time, gap_start_us) <= {time_ns(high)}"
        stalled += f" AND addMicroseconds(start_time, gap_start_us + gap_us) >= {time_ns(low)}"
        yield _with_stalls(Due(low - STREAM_NS_MAX, high), is_judged, stalled)
        if long.intersection(new.tenants):
            each = _long(low, is_judged)
            yield _with_stalls(each, each.which, f"{stalled} AND judged_at >= {time_ns(low - _CLOCK_NS)}")


def _by_first_tokens(store: Store, new: str, is_judged: str, judged_ns: int) -> Iterator[Due]:
    """Yield the streams with stalls by a prompt of an unknown request, if a new stream got its first token from such a step."""
    sent: dict[EngineKey, list[tuple[int, int]]] = {}
    for tenant, engine_id, first_ns in store.select(_FIRST_TOKENS.format(new=new)):
        times = merged((int(at) - _FIRST_TOKEN_LATE_NS, int(at) + _FIRST_TOKEN_EARLY_NS) for at in first_ns if int(at) <= judged_ns)
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


def _with_stalls(started: Due, which: str, stalled: str) -> Due:
    """Return the streams that started at these times, satisfy ``which``, and have a stall that satisfies ``stalled``."""
    keys = f"SELECT tenant, start_time, trace_id, span_id FROM verdicts FINAL WHERE {started.started()} AND {stalled}"
    return replace(started, which=f"{which} AND (tenant, start_time, trace_id, span_id) IN ({keys})")


def _around(low: int, high: int) -> str:
    return between_ns("start_time", low - STREAM_NS_MAX, high)
