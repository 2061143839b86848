"""What the store knows of the engines of some streams: their steps, charged, and how their records' clocks stand to the others.

One idea: the requests that an engine finished name the streams that it served, so they find the engine where no server told of it, and how
far its clock is; an engine that names none is of its server's clock where both say that they are on one host. Only then are steps read,
over the time of those streams. It reads and does not judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from legato_ingest.attribution.load.gpu_clock_samples import clocks_of
from legato_ingest.attribution.load.scraped_metrics import boots_of
from legato_ingest.attribution.load.streams import CLOCKS_APART_NS, Stream, clock_of
from legato_ingest.attribution.model.clock_offset import shift_of
from legato_ingest.attribution.model.step_model import Charges, Steps, charge
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, quoted, quoted_all, unquoted

__all__ = ["Engine", "engines_of"]

# Steps are read this much before and after the streams: for the fit, and as finished requests tell the time of their flush only.
_AROUND_NS = 60_000_000_000
_STEPS = """
SELECT toUnixTimestamp64Nano(s.recorded_at) AS recorded_ns, s.step AS number, {columns}
FROM engine_steps AS s FINAL
WHERE {which} AND {inside}
ORDER BY engine_epoch, number
SETTINGS max_threads = 1"""
_COLUMNS = (
    "interval_us", "running", "waiting",
    "prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens", "draft_tokens",
)  # fmt: skip
_REQUESTS = """
SELECT tenant, engine_id, response_id, step, toUnixTimestamp64Nano(recorded_at) AS recorded_ns
FROM engine_requests FINAL
WHERE {inside} AND {which}
SETTINGS max_query_size = 1000000000, max_ast_elements = 10000000, max_threads = 1"""
# Requests that tell how far clocks are apart: more say it no better.
_SAMPLES_MAX = 512
_LAST = """
SELECT
    response_id, vantage, clock, service_name, client_address,
    toUnixTimestamp64Nano(start_time)
        + 1000 * toInt64(arraySum(arraySlice(dt_us, 1, arrayLastIndex(kind -> kind IN (1, 2, 3), chunk_kind)))) AS last_ns
FROM stream_revs FINAL
WHERE {inside} AND {which} AND ended AND vantage IN ('server', 'client') AND content_chunks > 0
SETTINGS do_not_merge_across_partitions_select_final = 1, max_threads = 1, max_query_size = 1000000000, max_ast_elements = 10000000"""
_FIRST_TOKENS = """
SELECT response_id, toUnixTimestamp64Nano(start_time) + 1000 * ttft_us AS first_ns
FROM stream_revs FINAL
WHERE {inside} AND {which} AND vantage = 'server' AND ttft_us IS NOT NULL AND response_id != ''
SETTINGS do_not_merge_across_partitions_select_final = 1, max_threads = 1"""

# By as much of a usual step, and by no more than that, the offset of an engine's clock may be off: a front end is seldom later.
_SHIFT_ERROR_SHARE, _SHIFT_ERROR_NS_MAX = 0.35, 10_000_000

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine over the time of some streams.

    ``shift_ns``: its records' clock minus its server's; ``client_shift_ns``: minus each client's (``Stream.clock``), the soonest delivery
    taken for none. What nothing tells is ``None`` or absent. ``shift_error_ns``: by how much ``shift_ns`` may be more. ``last_step``: the
    place of the step that ended a request, by response id. ``first_tokens``: the place of the step that gave a request its first token, by
    response id, as its server saw it.
    """

    charges: Charges
    shift_ns: int | None
    client_shift_ns: dict[str, int]
    last_step: dict[str, int]
    first_tokens: dict[str, int]
    shift_error_ns: int = 0


@dataclass(frozen=True, slots=True)
class _Finished:
    engine: Key
    response_id: str
    step: int
    recorded_ns: int


def engines_of(store: Store, streams: Sequence[Stream]) -> tuple[list[Stream], dict[Key, Engine]]:
    """The streams, each with its engine's id where anything tells it, and those engines by tenant and id."""
    finished = _finished_by(store, streams)
    served = {(each.engine[0], each.response_id): each.engine[1] for each in finished}
    there = _engines_in(store, streams, finished)
    named = []
    for stream in streams:
        by = served.get((stream.tenant, stream.response_id), "")
        if not by and stream.server is None and len(there.get(stream.tenant, ())) == 1:
            # A stream that was left is in no record of finished requests; with one engine there is nothing to choose.
            (by,) = there[stream.tenant]
        # The engine that finished the request is the one that served it, whatever the server calls the several behind it.
        named.append(replace(stream, engine_id=by or stream.engine_id))
    engines = {}
    for key in sorted({(stream.tenant, stream.engine_id) for stream in named if stream.engine_id}):
        own = [stream for stream in named if (stream.tenant, stream.engine_id) == key]
        engine = _engine(store, key, own, [each for each in finished if each.engine == key])
        if engine is not None:
            engines[key] = engine
    return named, engines


def _engines_in(store: Store, streams: Sequence[Stream], finished: Sequence[_Finished]) -> dict[str, set[str]]:
    """By tenant, the engines that told of steps around the time of these requests' ends, by the engines' clocks."""
    out: dict[str, set[str]] = {}
    if not finished or all(stream.server is not None for stream in streams):
        return out
    inside = between_ns("recorded_at", min(each.recorded_ns for each in finished), max(each.recorded_ns for each in finished))
    for tenant, engine_id in store.select(f"SELECT DISTINCT tenant, engine_id FROM engine_steps WHERE {inside}"):
        out.setdefault(unquoted(tenant), set()).add(unquoted(engine_id))
    return out


def _finished_by(store: Store, streams: Sequence[Stream]) -> list[_Finished]:
    """The records of these streams' ends, whatever clock they are of."""
    responses = sorted({stream.response_id for stream in streams if stream.response_id})
    if not responses:
        return []
    low, high = min(_first(stream) for stream in streams), max(_last(stream) for stream in streams)
    return _requests(store, low - CLOCKS_APART_NS, high + CLOCKS_APART_NS, f"response_id IN ({quoted_all(responses)})")


def _requests(store: Store, low: int, high: int, which: str) -> list[_Finished]:
    table = store.select_arrow(_REQUESTS.format(inside=between_ns("recorded_at", low, high), which=which))
    columns = (table[name].to_pylist() for name in ("tenant", "engine_id", "response_id", "step", "recorded_ns"))
    return [
        _Finished((unquoted(tenant), unquoted(engine)), unquoted(response), int(step), int(recorded))
        for tenant, engine, response, step, recorded in zip(*columns, strict=True)
    ]


def _engine(store: Store, key: Key, streams: Sequence[Stream], finished: Sequence[_Finished]) -> Engine | None:
    by_response = {stream.response_id: stream for stream in streams}
    # Those of which it is known in which step they ended.
    ours = [each for each in finished if each.response_id in by_response and each.step > 0]
    if not ours:
        return _beside(store, key, streams)
    coarse = int(np.median([each.recorded_ns - _last(by_response[each.response_id]) for each in ours]))
    low = min(_first(stream) for stream in streams) + coarse - _AROUND_NS
    high = max(_last(stream) for stream in streams) + coarse + _AROUND_NS
    told = _requests(store, low, high + _AROUND_NS, _of_engine(key))
    read = _read_steps(store, key, low, high, told)
    if read is None:
        return None
    steps, last_step = read
    charges = _charges(store, key, steps)
    most = _error_most_ns(charges)
    shift, shifts = _shifts(store, key, streams, {response: int(steps.recorded_ns[place]) for response, place in last_step.items()})
    return Engine(
        charges=charges,
        shift_ns=shift[0] if shift else None,
        client_shift_ns=shifts,
        last_step=last_step,
        first_tokens=_first_tokens(store, key, charges.end_ns - shift[0]) if shift else {},
        shift_error_ns=most if shift is None or shift[1] is None else min(shift[1], most),
    )


def _beside(store: Store, key: Key, streams: Sequence[Stream]) -> Engine | None:
    """An engine none of whose requests is known by name, where it is read on the host, and in the boot, that all its servers are of."""
    low, high = min(map(_first, streams)) - _AROUND_NS, max(map(_last, streams)) + _AROUND_NS
    boots = boots_of(store, [key], low, high)[key]
    # Engines of several nodes may have one id: then nobody knows whose steps these are.
    if len(boots) != 1 or not all(stream.server is not None and stream.server_boot in boots for stream in streams):
        return None
    read = _read_steps(store, key, low, high, ())
    if read is None:
        return None
    charges = _charges(store, key, read[0])
    # When a record reached its reader is all that is known of the step's end: the chunk may have been sent before.
    return Engine(charges, 0, {}, {}, _first_tokens(store, key, charges.end_ns), _error_most_ns(charges))


def _error_most_ns(charges: Charges) -> int:
    """Beyond this a chunk may as well be of the step before."""
    return min(int(_SHIFT_ERROR_SHARE * charges.usual_ns), _SHIFT_ERROR_NS_MAX)


def _charges(store: Store, key: Key, steps: Steps) -> Charges:
    """The steps, charged; with what is known of the engine's GPUs meanwhile."""
    first, last = int(steps.recorded_ns.min()), int(steps.recorded_ns.max())
    return charge(steps, clocks_of(store, *key, first - _AROUND_NS, last + _AROUND_NS))


def _places_of(finished: Sequence[_Finished], number: NDArray[np.int64], recorded_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places of the steps in which these requests ended; -1: not there.

    An engine that starts again counts its steps from one again: of several steps of a number it is the one recorded nearest the flush that
    told of the request.
    """
    order = np.lexsort((recorded_ns, number))
    out = np.full(len(finished), -1, np.int64)
    wanted = np.array([each.step for each in finished], np.int64)
    low, high = np.searchsorted(number[order], wanted, "left"), np.searchsorted(number[order], wanted, "right")
    for row, (first, last) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        if last > first:
            same = order[first:last]
            out[row] = same[np.argmin(np.abs(recorded_ns[same] - finished[row].recorded_ns))]
    return out


def _first_tokens(store: Store, key: Key, end_ns: NDArray[np.int64]) -> dict[str, int]:
    """``Engine.first_tokens``; ``end_ns`` are the ends of the steps by the server's clock."""
    inside = between_ns("start_time", int(end_ns[0]) - _AROUND_NS, int(end_ns[-1]))
    table = store.select_arrow(_FIRST_TOKENS.format(inside=inside, which=_of_engine(key)))
    places = np.searchsorted(end_ns, _array(table, "first_ns").astype(np.int64), "right") - 1
    return {unquoted(name): int(place) for name, place in zip(table["response_id"].to_pylist(), places, strict=True) if place >= 0}


def _of_engine(key: Key) -> str:
    return f"tenant = {quoted(key[0])} AND engine_id = {quoted(key[1])}"


def _shifts(
    store: Store, key: Key, streams: Sequence[Stream], recorded_ns: Mapping[str, int]
) -> tuple[tuple[int, int | None] | None, dict[str, int]]:
    """The records' clock minus the server's, and by how much it may be more; and minus each client's; ``recorded_ns``: of each request's
    last step, by response id.

    From all requests that ended around these streams, not theirs alone: a sweep may judge one stream, and its last send may have waited.
    """
    if not recorded_ns:
        return None, {}
    middle = (min(recorded_ns.values()) + max(recorded_ns.values())) // 2
    nearest = sorted(recorded_ns, key=lambda response: abs(recorded_ns[response] - middle))[:_SAMPLES_MAX]
    low, high = min(_first(stream) for stream in streams), max(_last(stream) for stream in streams)
    inside = between_ns("start_time", low - CLOCKS_APART_NS, high + CLOCKS_APART_NS)
    which = f"tenant = {quoted(key[0])} AND response_id IN ({quoted_all(nearest)})"
    table = store.select_arrow(_LAST.format(inside=inside, which=which))
    ends: dict[str, list[tuple[int, int]]] = {}
    columns = ("response_id", "vantage", "clock", "service_name", "client_address", "last_ns")
    for response, vantage, clock, service, address, last in zip(*(table[name].to_pylist() for name in columns), strict=True):
        whose = "" if unquoted(vantage) == "server" else clock_of(unquoted(clock), unquoted(service), unquoted(address))
        ends.setdefault(whose, []).append((int(last), recorded_ns[unquoted(response)]))
    shifts = {whose: _shift(pairs) for whose, pairs in ends.items()}
    return shifts.pop("", None), {whose: shift for whose, (shift, _) in shifts.items()}


def _shift(pairs: Sequence[tuple[int, int]]) -> tuple[int, int | None]:
    """From each request's last send (or arrival) and its last step's record."""
    last, recorded = np.array(pairs, np.int64).reshape(-1, 2).T
    shift = shift_of(last, recorded)
    assert shift is not None
    return shift


def _read_steps(store: Store, key: Key, low: int, high: int, told: Sequence[_Finished]) -> tuple[Steps, dict[str, int]] | None:
    """The engine's steps between these times, and by response id the place of the step in which each of these requests ended."""
    columns = ", ".join(f"s.{name} AS {name}" for name in _COLUMNS)
    table = store.select_arrow(_STEPS.format(columns=columns, which=_of_engine(key), inside=between_ns("recorded_at", low, high)))
    if not table.num_rows:
        return None
    numbers = _array(table, "number").astype(np.int64)
    recorded = _array(table, "recorded_ns").astype(np.int64)
    places = _places_of(told, numbers, recorded)
    finished = np.bincount(places[places >= 0], minlength=len(numbers)).astype(np.float64)
    values = {name: _array(table, name).astype(np.float64) for name in _COLUMNS}
    steps = Steps(
        number=numbers,
        recorded_ns=recorded,
        interval_ns=1000 * values.pop("interval_us"),
        finished=finished,
        **values,
    )
    return steps, {each.response_id: place for each, place in zip(told, places.tolist(), strict=True) if place >= 0 and each.response_id}


def _first(stream: Stream) -> int:
    times = (stream.server or stream.client).times_ns
    return int(times[0]) if len(times) else stream.start_ns


def _last(stream: Stream) -> int:
    times = (stream.server or stream.client).times_ns
    return int(times[-1]) if len(times) else stream.start_ns


def _array(table: pa.Table, name: str) -> NDArray[Any]:
    """A column; unknown values as NaN."""
    return np.asarray(table[name].combine_chunks().to_numpy(zero_copy_only=False))
