"""Load the engines of some streams: their steps, and the samples from which the offsets between clocks are computed.

The requests that an engine finished identify the streams that it served, so they find the engine also where no server reports it. An engine
that identifies no request is used only if it has the host and the boot of all its streams' servers. Steps are read over the time of these
streams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from legato_ingest.attribution.load.due import CLOCKS_APART_NS
from legato_ingest.attribution.load.engine_ids import is_engine
from legato_ingest.attribution.load.gpu_clock_samples import gpu_clocks
from legato_ingest.attribution.load.scraped_metrics import boots_of
from legato_ingest.attribution.load.streams import clock_of
from legato_ingest.attribution.model.clock_offset import clock_offset
from legato_ingest.attribution.model.engine import EngineRecords, steps_of_requests
from legato_ingest.attribution.model.scraped import EngineKey
from legato_ingest.attribution.model.step_model import step_ends
from legato_ingest.attribution.model.steps import Steps
from legato_ingest.attribution.model.vantage import Stream
from legato_ingest.definitions import CONTENT_KINDS_SQL
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, quoted, quoted_all, unquoted

__all__ = ["load_engines"]

Ints = NDArray[np.int64]

# Steps are read this much before and after the streams: the fit needs them, and finished requests have the time of a flush.
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
# Requests from which the offset between clocks is computed. More of them do not improve it.
_SAMPLES_MAX = 512
_LAST = f"""
SELECT
    response_id, vantage, clock, service_name, client_address,
    toUnixTimestamp64Nano(start_time)
        + 1000 * toInt64(arraySum(arraySlice(dt_us, 1, arrayLastIndex(kind -> kind IN {CONTENT_KINDS_SQL}, chunk_kind)))) AS last_ns
FROM stream_revs FINAL
WHERE {{inside}} AND {{which}} AND ended AND vantage IN ('server', 'client') AND content_chunks > 0
SETTINGS do_not_merge_across_partitions_select_final = 1, max_threads = 1, max_query_size = 1000000000, max_ast_elements = 10000000"""
_FIRST_TOKENS = """
SELECT response_id, toUnixTimestamp64Nano(start_time) + 1000 * ttft_us AS first_ns
FROM stream_revs FINAL
WHERE {inside} AND {which} AND vantage = 'server' AND ttft_us IS NOT NULL AND response_id != ''
SETTINGS do_not_merge_across_partitions_select_final = 1, max_threads = 1"""
# The key of the server's clock among those of the clients.
_SERVER = ""


@dataclass(frozen=True, slots=True)
class _Finished:
    """The record of a finished request. ``step``: the number of its last step (0: unknown)."""

    engine: EngineKey
    response_id: str
    step: int
    recorded_ns: int


def load_engines(store: Store, streams: Sequence[Stream]) -> tuple[list[Stream], dict[EngineKey, EngineRecords]]:
    """Return the streams, each with the id of its engine where that is known, and the records of these engines."""
    finished = _finished_requests(store, streams)
    by_response = {(each.engine[0], each.response_id): each.engine[1] for each in finished}
    present = _engines_with_steps(store, streams, finished)
    named = []
    for stream in streams:
        engine = by_response.get((stream.tenant, stream.response_id), "")
        if not engine and stream.server is None and len(present.get(stream.tenant, ())) == 1:
            # An abandoned stream is in no record of finished requests; if there is one engine only, it is the one.
            (engine,) = present[stream.tenant]
        # The engine that finished the request served it, also if the server has one id for all engines behind it.
        named.append(replace(stream, engine_id=engine or stream.engine_id))
    engines = {}
    for key in sorted({(stream.tenant, stream.engine_id) for stream in named if stream.engine_id}):
        own = [stream for stream in named if (stream.tenant, stream.engine_id) == key]
        records = _engine_by_requests(store, key, own, [each for each in finished if each.engine == key])
        if records is not None:
            engines[key] = records
    return named, engines


def _finished_requests(store: Store, streams: Sequence[Stream]) -> list[_Finished]:
    """Return the records of the ends of these streams' requests. Their clock may differ from the streams' clocks."""
    responses = sorted({stream.response_id for stream in streams if stream.response_id})
    if not responses:
        return []
    low, high = min(stream.first_ns for stream in streams), max(stream.last_ns for stream in streams)
    return _requests(store, low - CLOCKS_APART_NS, high + CLOCKS_APART_NS, f"response_id IN ({quoted_all(responses)})")


def _requests(store: Store, low: int, high: int, which: str) -> list[_Finished]:
    table = store.select_arrow(_REQUESTS.format(inside=between_ns("recorded_at", low, high), which=which))
    columns = (table[name].to_pylist() for name in ("tenant", "engine_id", "response_id", "step", "recorded_ns"))
    return [
        _Finished((unquoted(tenant), unquoted(engine)), unquoted(response), int(step), int(recorded))
        for tenant, engine, response, step, recorded in zip(*columns, strict=True)
    ]


def _engines_with_steps(store: Store, streams: Sequence[Stream], finished: Sequence[_Finished]) -> dict[str, set[str]]:
    """Return, by tenant, the engines with steps at the time of these finished requests, by the engines' clocks.

    They are needed only for streams without a server.
    """
    out: dict[str, set[str]] = {}
    if not finished or all(stream.server is not None for stream in streams):
        return out
    inside = between_ns("recorded_at", min(each.recorded_ns for each in finished), max(each.recorded_ns for each in finished))
    for tenant, engine_id in store.select(f"SELECT DISTINCT tenant, engine_id FROM engine_steps WHERE {inside}"):
        out.setdefault(unquoted(tenant), set()).add(unquoted(engine_id))
    return out


def _engine_by_requests(store: Store, key: EngineKey, streams: Sequence[Stream], finished: Sequence[_Finished]) -> EngineRecords | None:
    """Return an engine with requests that identify streams, these or others at their time; else an engine by its host."""
    by_response = {stream.response_id: stream for stream in streams}
    ours = [each for each in finished if each.response_id in by_response and each.step > 0]
    # Without requests of these streams (they are running), those of other streams show the offset if the clocks are nearly equal.
    coarse = int(np.median([each.recorded_ns - by_response[each.response_id].last_ns for each in ours])) if ours else 0
    low = min(stream.first_ns for stream in streams) + coarse - _AROUND_NS
    high = max(stream.last_ns for stream in streams) + coarse + _AROUND_NS
    read = _read_steps(store, key, low, high, _requests(store, low, high + _AROUND_NS, is_engine(key)))
    if read is None or not (ours or read[1]):
        return _engine_by_host(store, key, streams)
    steps, last_step = read
    recorded = {response: int(steps.recorded_ns[step]) for response, step in last_step.items()}
    server_offset, client_offsets = _offsets(store, key, streams, recorded)
    if server_offset is None and not ours:
        return _engine_by_host(store, key, streams)
    return EngineRecords(
        steps=steps,
        gpus=_gpus(store, key, steps),
        server_offset=server_offset,
        client_offsets=client_offsets,
        last_step=last_step,
        first_token_ns=_first_tokens(store, key, step_ends(steps) - server_offset[0]) if server_offset is not None else {},
    )


def _engine_by_host(store: Store, key: EngineKey, streams: Sequence[Stream]) -> EngineRecords | None:
    """Return an engine without requests that identify streams, if it has the host and the boot of all its streams' servers.

    Its records have the server's clock. If several nodes have an engine with this id, the steps cannot be assigned.
    """
    low, high = min(stream.first_ns for stream in streams) - _AROUND_NS, max(stream.last_ns for stream in streams) + _AROUND_NS
    boots = boots_of(store, [key], low, high)[key]
    if len(boots) != 1 or not all(stream.server is not None and stream.server_boot in boots for stream in streams):
        return None
    read = _read_steps(store, key, low, high, ())
    if read is None:
        return None
    # The end of a step is known only by the time at which its record reached the reader: the chunk may have been sent before. So the
    # error of the offset is unknown.
    steps = read[0]
    return EngineRecords(
        steps=steps,
        gpus=_gpus(store, key, steps),
        server_offset=(0, None),
        first_token_ns=_first_tokens(store, key, step_ends(steps)),
    )


def _gpus(store: Store, key: EngineKey, steps: Steps) -> list[Any]:
    first, last = int(steps.recorded_ns.min()), int(steps.recorded_ns.max())
    return gpu_clocks(store, key, first - _AROUND_NS, last + _AROUND_NS)


def _first_tokens(store: Store, key: EngineKey, end_ns: Ints) -> dict[str, int]:
    """Return ``EngineRecords.first_token_ns``; ``end_ns`` are the ends of the steps by the server's clock."""
    inside = between_ns("start_time", int(end_ns[0]) - _AROUND_NS, int(end_ns[-1]))
    table = store.select_arrow(_FIRST_TOKENS.format(inside=inside, which=is_engine(key)))
    times = _array(table, "first_ns").astype(np.int64).tolist()
    return {unquoted(name): first_ns for name, first_ns in zip(table["response_id"].to_pylist(), times, strict=True)}


def _offsets(
    store: Store, key: EngineKey, streams: Sequence[Stream], recorded_ns: Mapping[str, int]
) -> tuple[tuple[int, int | None] | None, dict[str, int]]:
    """Return ``server_offset`` and ``client_offsets`` of ``EngineRecords``.

    ``recorded_ns``: the record of each request's last step, by response id. All requests that ended around the streams are used, because
    one run may judge a single stream, and the last send of a single stream may have waited.
    """
    if not recorded_ns:
        return None, {}
    middle = (min(recorded_ns.values()) + max(recorded_ns.values())) // 2
    nearest = sorted(recorded_ns, key=lambda response: abs(recorded_ns[response] - middle))[:_SAMPLES_MAX]
    low, high = min(stream.first_ns for stream in streams), max(stream.last_ns for stream in streams)
    inside = between_ns("start_time", low - CLOCKS_APART_NS, high + CLOCKS_APART_NS)
    which = f"tenant = {quoted(key[0])} AND response_id IN ({quoted_all(nearest)})"
    table = store.select_arrow(_LAST.format(inside=inside, which=which))
    samples: dict[str, list[tuple[int, int]]] = {}
    columns = ("response_id", "vantage", "clock", "service_name", "client_address", "last_ns")
    for response, vantage, clock, service, address, last in zip(*(table[name].to_pylist() for name in columns), strict=True):
        own = _SERVER if unquoted(vantage) == "server" else clock_of(unquoted(clock), unquoted(service), unquoted(address))
        samples.setdefault(own, []).append((int(last), recorded_ns[unquoted(response)]))
    offsets = {clock: offset for clock, pairs in samples.items() if (offset := clock_offset(*np.array(pairs, np.int64).T)) is not None}
    return offsets.pop(_SERVER, None), {clock: offset for clock, (offset, _) in offsets.items()}


def _read_steps(store: Store, key: EngineKey, low: int, high: int, finished: Sequence[_Finished]) -> tuple[Steps, dict[str, int]] | None:
    """Return the engine's steps between these times, and the index of the step in which each request ended, by response id."""
    columns = ", ".join(f"s.{name} AS {name}" for name in _COLUMNS)
    table = store.select_arrow(_STEPS.format(columns=columns, which=is_engine(key), inside=between_ns("recorded_at", low, high)))
    if not table.num_rows:
        return None
    number, recorded = (_array(table, name).astype(np.int64) for name in ("number", "recorded_ns"))
    request_steps = np.array([each.step for each in finished], np.int64)
    request_recorded = np.array([each.recorded_ns for each in finished], np.int64)
    ended_in = steps_of_requests(request_steps, request_recorded, number, recorded)
    values = {name: _array(table, name).astype(np.float64) for name in _COLUMNS}
    steps = Steps(
        number=number,
        recorded_ns=recorded,
        interval_ns=1000 * values.pop("interval_us"),
        finished=np.bincount(ended_in[ended_in >= 0], minlength=len(number)).astype(np.float64),
        **values,
    )
    requests = zip(finished, ended_in.tolist(), strict=True)
    return steps, {each.response_id: step for each, step in requests if step >= 0 and each.response_id}


def _array(table: pa.Table, name: str) -> NDArray[Any]:
    """Return a column as a numpy array; unknown values are NaN."""
    return np.asarray(table[name].combine_chunks().to_numpy(zero_copy_only=False))
