"""Find the streams that are due: those that were received, and those that evidence arrived about after they were judged.

A judgement uses everything that is in the store at its time, so evidence that arrives later, however late, makes the streams due again that
it is about. The module reads which streams these are; it loads no stream.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from legato_ingest.attribution.load.by_engine import ENGINE_NS_SPARSE, batches_of, span_of
from legato_ingest.attribution.load.engine_ids import is_one_of, is_one_of_servers
from legato_ingest.attribution.load.gpu_clock_samples import GPU_METRICS
from legato_ingest.attribution.load.scraped_metrics import SCRAPED_METRICS
from legato_ingest.attribution.model.scraped import SCRAPE_DISTANCE_NS_MAX, EngineKey
from legato_ingest.causes import sql_list
from legato_ingest.definitions import server_of
from legato_ingest.storage import Store
from legato_ingest.storage.sql import after_until_ms, between_ns, quoted, quoted_all, time_ns, unquoted

__all__ = ["CLOCKS_APART_NS", "STREAM_NS_MAX", "ClockOffsets", "Due", "due_by_evidence", "due_by_receipt", "joined"]

_MS = 1_000_000
STREAM_NS_MAX = 600_000_000_000
"""A stream that ran at some time started at most this long before it."""
# The server sends a first token at most this long before, or after, the record of the step with the prompt.
_FIRST_TOKEN_EARLY_NS, _FIRST_TOKEN_LATE_NS = 250 * _MS, 1_000 * _MS
# An agent sends what it recorded after this time at the latest, so a longer delay is an offset between two clocks.
_FLUSH_NS_MAX = 30_000_000_000
# The streams of an engine are searched far from its records at most so often.
_SEARCH_EVERY_S = 60.0
CLOCKS_APART_NS = 7_200_000_000_000
"""The clocks of the client, the server and the engine may differ by this much, and they still find each other."""
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
SELECT toUnixTimestamp64Nano(start_time) AS start_ns, reinterpretAsUInt64(span_id) AS span FROM stream_revs
WHERE {inside} AND vantage IN ('client', 'server') AND {which}
LIMIT {most}"""
_SPANS_MAX = 16_000
_STEPS = """
SELECT tenant, engine_id, toUnixTimestamp64Nano(min(recorded_at)) AS low, toUnixTimestamp64Nano(max(recorded_at)) AS high
FROM engine_steps
WHERE {new}
GROUP BY tenant, engine_id"""
_OFFSETS = """
WITH
    finished AS
    (
        SELECT tenant, engine_id, response_id, toUnixTimestamp64Nano(recorded_at) AS recorded_ns
        FROM engine_requests
        WHERE {new} AND response_id != ''
        LIMIT 16 BY tenant, engine_id
    )
SELECT
    tenant, engine_id, countIf(ended_ns != 0) AS known, toInt64(quantileExactIf(recorded_ns - ended_ns, ended_ns != 0)) AS offset_ns
FROM finished
LEFT JOIN
(
    SELECT tenant, response_id, toUnixTimestamp64Nano(start_time) + toInt64(duration_ns) AS ended_ns
    FROM stream_revs
    WHERE {around} AND ended AND vantage IN ('client', 'server') AND response_id IN (SELECT response_id FROM finished)
) AS ends USING (tenant, response_id)
GROUP BY tenant, engine_id"""
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
    """Streams that are due: they started between two times (ns, both included), and their rows satisfy two conditions in SQL.

    ``keys`` is about columns of the primary key alone, so it may select rows before FINAL.
    """

    low_ns: int
    high_ns: int
    which: str = "1"
    keys: str = "1"

    def started(self, around_ns: int = 0) -> str:
        """Return the condition on the start, for streams that started up to ``around_ns`` earlier or later."""
        return between_ns("start_time", self.low_ns - around_ns, self.high_ns + around_ns)

    @property
    def inside(self) -> str:
        """The conditions on the primary key."""
        return f"{self.started()} AND {self.keys}"


def joined(due: Iterable[Due]) -> list[Due]:
    """Return the same streams with those of overlapping times as one, in order of time.

    A stream is then loaded and judged once although it is due for several reasons, and an engine's steps are read once for all its streams.
    """
    out: list[Due] = []
    for each in sorted(due, key=lambda each: (each.low_ns, each.high_ns)):
        if out and each.low_ns <= out[-1].high_ns:
            last = out[-1]
            keys = f"({last.inside} OR {each.inside})"
            all_rows = last.which == each.which == "1"
            which = "1" if all_rows else f"({last.inside} AND {last.which} OR {each.inside} AND {each.which})"
            out[-1] = Due(last.low_ns, max(last.high_ns, each.high_ns), which, keys)
        else:
            out.append(each)
    return out


class ClockOffsets:
    """The offset of each engine's clock, in ns, as far as it is known: its records minus the clock of its streams."""

    def __init__(self) -> None:
        self._offset_ns: dict[EngineKey, int] = {}
        # The engines of which the streams were searched far from the records within the last minute, and when (monotonic).
        self._searched_s: dict[EngineKey, float] = {}

    def learn(self, store: Store, new: str, low_ns: int, high_ns: int) -> None:
        """Compute the offsets of the engines with new records of finished requests between these times, from the ends of their streams.

        Streams that started at most ``STREAM_NS_MAX`` before the records are searched first. Those of the hours around them are searched
        only for engines without any of the first, and at most once a minute for each engine.
        """
        unknown = self._learn(store, new, between_ns("start_time", low_ns - STREAM_NS_MAX, high_ns + _FLUSH_NS_MAX))
        now_s = time.monotonic()
        self._searched_s = {key: at_s for key, at_s in self._searched_s.items() if now_s - at_s < _SEARCH_EVERY_S}
        far = [key for key in unknown if key not in self._searched_s]
        if far:
            self._searched_s |= dict.fromkeys(far, now_s)
            around = between_ns("start_time", low_ns - CLOCKS_APART_NS, high_ns + CLOCKS_APART_NS)
            self._learn(store, f"{new} AND {is_one_of(far)}", around)

    def _learn(self, store: Store, new: str, around: str) -> list[EngineKey]:
        """Compute the offsets from streams that started at some times. Return the engines without any of them."""
        unknown = []
        for tenant, engine_id, known, offset_ns in store.select(_OFFSETS.format(new=new, around=around)):
            key = str(unquoted(tenant)), str(unquoted(engine_id))
            if int(known):
                self._offset_ns[key] = int(offset_ns)
            else:
                unknown.append(key)
        return unknown

    def stretch(self, key: EngineKey, low_ns: int, high_ns: int) -> tuple[int, int]:
        """Return the stretch of time, by the clock of the streams, that steps from ``low_ns`` to ``high_ns`` are about.

        A small offset may be the time between two flushes, so the stretch then includes the one without the offset.
        """
        offset = self._offset_ns.get(key, 0)
        if abs(offset) > _FLUSH_NS_MAX:
            return low_ns - offset - _FLUSH_NS_MAX, high_ns - offset + _FLUSH_NS_MAX
        return low_ns - max(offset, 0), high_ns - min(offset, 0)


def due_by_receipt(store: Store, after_ms: int, until_ms: int) -> list[Due]:
    """Return the streams with a vantage that was received between these times.

    The other streams of their traces are included if they started within ``CLOCKS_APART_NS`` of a new one. A search for the traces among
    all streams took 0.3 s with ten million in the store.
    """
    new = after_until_ms("received_at", after_ms, until_ms)
    starts = ((int(low) - CLOCKS_APART_NS, int(high) + CLOCKS_APART_NS) for low, high in store.select(_STARTS.format(new=new)))
    stretches = _merged(starts)
    if len(stretches) > _STRETCHES_MAX:
        stretches = [(stretches[0][0], stretches[-1][1])]
    return [due for low, high in stretches if (due := _of_new_traces(store, new, low, high)) is not None]


def _of_new_traces(store: Store, new: str, low: int, high: int) -> Due | None:
    """Return the streams that started between these times and belong to the trace of a new stream that did, too."""
    new_streams = f"FROM stream_revs WHERE {between_ns('start_time', low, high)} AND {new}"
    # The first condition alone decides, unless two tenants have one trace id, and takes a third of the time of the second.
    which = f"trace_id IN (SELECT trace_id {new_streams}) AND (tenant, trace_id) IN (SELECT tenant, trace_id {new_streams})"
    return _found(store, Due(low, high, which))


def due_by_evidence(store: Store, clocks: ClockOffsets, judged_ms: int, after_ms: int, until_ms: int) -> list[Due]:
    """Return the streams received until ``judged_ms`` that evidence received between the two other times is about."""
    new, is_judged = after_until_ms("received_at", after_ms, until_ms), f"received_at <= {time_ns(judged_ms * _MS)}"
    due = [
        *_by_steps(store, clocks, new, is_judged, judged_ms * _MS),
        *_by_samples(store, new, is_judged, judged_ms * _MS),
        *_by_first_tokens(store, new, is_judged, judged_ms * _MS),
    ]
    return [found for each in due if (found := _found(store, each)) is not None]


def _found(store: Store, due: Due) -> Due | None:
    """Return these streams by their span ids, and the times at which they started; ``None`` without any.

    Any stream of ten minutes may be due, and few are. The queries that follow then need neither read ten minutes nor repeat the condition.
    Too many streams for a list stay as they are.
    """
    table = store.select_arrow(_SPANS.format(inside=due.inside, which=due.which, most=_SPANS_MAX + 1))
    if not table.num_rows or table.num_rows > _SPANS_MAX:
        return due if table.num_rows else None
    starts, spans = table["start_ns"].to_pylist(), sorted(set(table["span"].to_pylist()))
    return Due(min(starts), max(starts), keys=f"reinterpretAsUInt64(span_id) IN ({','.join(map(str, spans))})")


def _by_steps(store: Store, clocks: ClockOffsets, new: str, is_judged: str, judged_ns: int) -> Iterator[Due]:
    """Yield the streams that ran at the time of new steps, unless other engines with complete records explain their stalls.

    A stream's clock may be wrong; then the time at which it was received shows when it ran.
    """
    steps = [
        ((str(unquoted(tenant)), str(unquoted(engine))), int(low), int(high))
        for tenant, engine, low, high in store.select(_STEPS.format(new=new))
    ]
    if not steps:
        return
    clocks.learn(store, new, min(low for _, low, _ in steps), max(high for _, _, high in steps))
    windows = {key: clocks.stretch(key, low, high) for key, low, high in steps}
    for batch in batches_of({key: window for key, window in windows.items() if window[0] <= judged_ns}, ENGINE_NS_SPARSE):
        low, high = span_of(batch)
        own = f"tenant IN ({quoted_all(sorted({tenant for tenant, _ in batch}))}) AND {is_judged}"
        ran = Due(low - STREAM_NS_MAX, high, f"{own} AND addNanoseconds(start_time, duration_ns) >= {time_ns(low)}")
        for each in (_found(store, ran), _by_time_of_receipt(store, own, low, high)):
            if each is not None:
                elsewhere = _ELSEWHERE.format(engines=is_one_of_servers(batch), around=each.started())
                yield replace(each, which=f"{each.which} AND {elsewhere}")


# The streams are not explained by the complete records of other engines.
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
    for tenant, low_ns, high_ns in store.select(_SAMPLES.format(new=new)):
        low, high = int(low_ns) - SCRAPE_DISTANCE_NS_MAX, int(high_ns) + SCRAPE_DISTANCE_NS_MAX
        if low > judged_ns:
            continue
        stalled = f"tenant = {quoted(str(unquoted(tenant)))} AND cause != 'base' AND (has(missing, 'engine') OR parts['host'] > 0)"
        stalled += f" AND addMicroseconds(start_time, gap_start_us) <= {time_ns(high)}"
        stalled += f" AND addMicroseconds(start_time, gap_start_us + gap_us) >= {time_ns(low)}"
        yield _with_stalls(low, high, is_judged, stalled)


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
    engines: set[EngineKey] = set()
    steps: list[int] = []
    for tenant, engine_id, at_ns in store.select(
        _UNKNOWN_PROMPTS.format(around=_around(low, high), inside=between_ns("culprit_at", low, high))
    ):
        own = str(unquoted(tenant)), str(unquoted(engine_id))
        if any(_contains(sent.get((own[0], server), ()), int(at_ns)) for server in (own[1], server_of(own[1]))):
            engines.add(own)
            steps.append(int(at_ns))
    if steps:
        unknown = f"{is_one_of(engines)} AND {_IS_UNKNOWN_PROMPT} AND {between_ns('culprit_at', min(steps), max(steps))}"
        yield _with_stalls(min(steps), max(steps), is_judged, unknown)


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


def _with_stalls(low: int, high: int, is_judged: str, stalled: str) -> Due:
    keys = f"SELECT tenant, start_time, trace_id, span_id FROM verdicts FINAL WHERE {_around(low, high)} AND {stalled}"
    return Due(low - STREAM_NS_MAX, high, f"{is_judged} AND (tenant, start_time, trace_id, span_id) IN ({keys})")


def _around(low: int, high: int) -> str:
    return between_ns("start_time", low - STREAM_NS_MAX, high)
