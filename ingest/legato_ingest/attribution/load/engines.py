"""Load the engines of some streams: their steps, the samples of their GPUs, and the requests from which the offsets of the clocks are
computed.

The requests that an engine finished identify the streams that it served, so they find the engine also where no server reports it. An engine
that identifies no request is used only if it has the host and the boot of all its streams' servers. Steps are read over the time of these
streams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from legato_ingest.attribution.load.by_engine import Window, Windows, batches_of, rows_by_engine, span_of
from legato_ingest.attribution.load.clock_offsets import ClockOffsets, RecordedEnds, clock_offsets
from legato_ingest.attribution.load.engine_ids import IS_RANK, SERVER, is_behind, process_key
from legato_ingest.attribution.load.engine_steps import read_steps
from legato_ingest.attribution.load.gpu_clock_samples import gpu_clocks
from legato_ingest.attribution.load.learned_offsets import CLOCKS_APART_NS
from legato_ingest.attribution.load.scraped_metrics import boots_of
from legato_ingest.attribution.model.engine import EngineRecords
from legato_ingest.attribution.model.ranks import Rank
from legato_ingest.attribution.model.scraped import AROUND_NS, EngineKey
from legato_ingest.attribution.model.step_model import step_ends
from legato_ingest.attribution.model.steps import Steps
from legato_ingest.attribution.model.vantage import UNKNOWN_PROCESS, Stream
from legato_ingest.definitions import server_of
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, quoted, quoted_all, unquoted

__all__ = ["load_engines"]

_REQUESTS = """
SELECT tenant, engine_id, response_id, step, preemptions, output_tokens, toUnixTimestamp64Nano(recorded_at) AS at_ns
FROM engine_requests FINAL
WHERE {inside} AND {which}"""
# A request is finished once for each of its sequences. Of a response id that many requests have, no more is read than shows an engine.
_FINISHED = f"{_REQUESTS} ORDER BY at_ns DESC, engine_id LIMIT 16 BY tenant, response_id"
_RANKS = f"""
SELECT DISTINCT tenant, engine_id
FROM engine_steps
WHERE {{inside}} AND {IS_RANK} AND {{which}}
ORDER BY tenant, length(engine_id), engine_id
LIMIT {{most}} BY tenant, {SERVER}"""
# The servers with a rank that has steps near the streams, or of which nothing has: then clocks differ. A rank that was removed an hour ago
# served none of them. Of hours only the ids of ranks are read, which most servers do not have.
_RANKED = f"""
SELECT tenant, {SERVER} AS server
FROM
(
    SELECT DISTINCT tenant, engine_id, 0 AS is_near FROM engine_steps WHERE {{inside}} AND {IS_RANK} AND {{which}}
    UNION ALL
    SELECT DISTINCT tenant, engine_id, 1 AS is_near FROM engine_steps WHERE {{near}} AND {{which}}
)
GROUP BY tenant, server
HAVING countIf({IS_RANK}) > 0 AND maxIf(is_near, {IS_RANK}) = max(is_near)"""
# The steps of so many other ranks are read for each engine.
_RANKS_MAX = 16
# Conditions of one query.
_TENANTS_MAX = 256
_FIRST_TOKENS = """
SELECT
    tenant, engine_id, response_id, toUnixTimestamp64Nano(start_time) AS at_ns,
    toUnixTimestamp64Nano(start_time) + 1000 * toInt64(ttft_us) AS first_ns
FROM stream_revs FINAL
WHERE {inside} AND {which} AND vantage = 'server' AND ttft_us IS NOT NULL AND response_id != ''
SETTINGS do_not_merge_across_partitions_select_final = 1"""


@dataclass(frozen=True, slots=True)
class _Finished:
    """The record of a finished request. ``step``: the number of its last step (0: unknown); ``tokens``: those of its output."""

    engine: EngineKey
    response_id: str
    step: int
    recorded_ns: int
    tokens: int


_Processes = dict[EngineKey, dict[str, int]]
"""Of engines with several processes at a time: the start (ns) of the process that finished each request, by response id."""


@dataclass(frozen=True, slots=True)
class _Served:
    """The streams of one engine, and the records of their requests' ends. Without any (they are running), the clocks count as equal."""

    streams: Sequence[Stream]
    ends: Sequence[_Finished]

    @property
    def streamed(self) -> Window:
        """The stretch of time of the streams, by their clocks."""
        return min(stream.first_ns for stream in self.streams), max(stream.last_ns for stream in self.streams)

    @property
    def around(self) -> Window:
        """The stretch of time of the streams, by the engine's clock, and what the fit of the steps needs before and after it."""
        by_response = {stream.response_id: stream for stream in self.streams}
        coarse = int(np.median([each.recorded_ns - by_response[each.response_id].last_ns for each in self.ends])) if self.ends else 0
        return self.streamed[0] + coarse - AROUND_NS, self.streamed[1] + coarse + AROUND_NS


def load_engines(store: Store, streams: Sequence[Stream]) -> tuple[list[Stream], dict[EngineKey, EngineRecords]]:
    """Return the streams, each with the id of its engine where that is known, and the records of these engines."""
    finished = _finished_requests(store, streams)
    named = _named(store, streams, finished)
    served = _served(named, finished)
    engines, processes = _engines_by_requests(store, served)
    others = {key: each.streams for key, each in served.items() if key not in engines and key not in processes}
    engines |= _engines_by_host(store, others)
    return [_with_process(stream, processes) for stream in named], engines | _with_ranks(store, engines)


def _with_process(stream: Stream, processes: _Processes) -> Stream:
    """Return the stream with the process that finished its request. No steps belong to a stream of which that is not known."""
    own = processes.get((stream.tenant, stream.engine_id))
    return stream if own is None else replace(stream, engine_epoch_ns=own.get(stream.response_id, UNKNOWN_PROCESS))


def _named(store: Store, streams: Sequence[Stream], finished: Sequence[_Finished]) -> list[Stream]:
    """Return the streams with the ids of their engines."""
    # If an engine for prompts hands requests to one for tokens, both finish them, the former with one token. The order is that of the times
    # at which the records were sent, which may differ from that of the steps by a second.
    ordered = sorted(finished, key=lambda each: (each.tokens, each.recorded_ns, each.engine))
    by_response = {(each.engine[0], each.response_id): each.engine[1] for each in ordered}
    present = _engines_with_steps(store, streams, finished)
    without_record = [stream for stream in streams if stream.engine_id and (stream.tenant, stream.response_id) not in by_response]
    ranked = _servers_with_ranks(store, without_record)
    called = {(stream.tenant, *stream.called) for stream in streams if (stream.tenant, stream.response_id) in by_response}
    named = []
    for stream in streams:
        engine = by_response.get((stream.tenant, stream.response_id), "")
        is_like_others = stream.server is None and (stream.tenant, *stream.called) in called
        if not engine and stream.judged.is_cut and is_like_others and len(present.get(stream.tenant, ())) == 1:
            # An abandoned stream is in no record of finished requests. If there is one engine only, and it finished requests that were sent
            # to the same address, it is the one. A complete stream would be in its records: another engine served it, which reports none.
            (engine,) = present[stream.tenant]
        # A server has the id of its first rank. Without a record of the request any rank may have served it.
        process = UNKNOWN_PROCESS if not engine and (stream.tenant, stream.engine_id) in ranked else 0
        # The engine that finished the request served it, also if the server has one id for all engines behind it.
        named.append(replace(stream, engine_id=engine or stream.engine_id, engine_epoch_ns=process))
    return named


def _servers_with_ranks(store: Store, streams: Sequence[Stream]) -> set[EngineKey]:
    """Return the servers of these streams that had data-parallel ranks other than the first at their time."""
    servers = {(stream.tenant, stream.engine_id) for stream in streams}
    if not servers:
        return set()
    low, high = min(stream.first_ns for stream in streams), max(stream.last_ns for stream in streams)
    near, inside = (between_ns("recorded_at", low - apart, high + apart) for apart in (AROUND_NS, CLOCKS_APART_NS))
    found = store.select(_RANKED.format(near=near, inside=inside, which=is_behind(servers)))
    return {(str(unquoted(tenant)), str(unquoted(server))) for tenant, server in found} & servers


def _served(named: Sequence[Stream], finished: Sequence[_Finished]) -> dict[EngineKey, _Served]:
    """Return what each engine served."""
    streams: dict[EngineKey, list[Stream]] = {}
    for stream in named:
        if stream.engine_id and stream.engine_epoch_ns != UNKNOWN_PROCESS:
            streams.setdefault((stream.tenant, stream.engine_id), []).append(stream)
    responses = {key: {stream.response_id for stream in own} for key, own in streams.items()}
    ends: dict[EngineKey, list[_Finished]] = {}
    for each in finished:
        if each.step > 0 and each.response_id in responses.get(each.engine, ()):
            ends.setdefault(each.engine, []).append(each)
    return {key: _Served(own, ends.get(key, ())) for key, own in sorted(streams.items())}


def _finished_requests(store: Store, streams: Sequence[Stream]) -> list[_Finished]:
    """Return the records of the ends of these streams' requests. Their clock may differ from the streams' clocks."""
    responses = sorted({stream.response_id for stream in streams if stream.response_id})
    if not responses:
        return []
    low, high = min(stream.first_ns for stream in streams), max(stream.last_ns for stream in streams)
    inside = between_ns("recorded_at", low - CLOCKS_APART_NS, high + CLOCKS_APART_NS)
    tenants = quoted_all(sorted({stream.tenant for stream in streams}))
    which = f"tenant IN ({tenants}) AND response_id IN ({quoted_all(responses)})"
    table = store.select_arrow(_FINISHED.format(inside=inside, which=which))
    columns = (table[name].to_pylist() for name in ("tenant", "engine_id", "response_id", "step", "at_ns", "output_tokens"))
    found = (
        _Finished((unquoted(tenant), unquoted(engine)), unquoted(response), int(step), int(at_ns), int(tokens))
        for tenant, engine, response, step, at_ns, tokens in zip(*columns, strict=True)
    )
    own = {(stream.tenant, stream.response_id) for stream in streams}
    return [each for each in found if (each.engine[0], each.response_id) in own]


def _engines_with_steps(store: Store, streams: Sequence[Stream], finished: Sequence[_Finished]) -> dict[str, set[str]]:
    """Return, by tenant, the engines with steps at the time of the tenant's finished requests, by the engines' clocks.

    They are needed only for streams without a server.
    """
    needed = {stream.tenant for stream in streams if stream.server is None}
    recorded: dict[str, list[int]] = {}
    for each in finished:
        if each.engine[0] in needed:
            recorded.setdefault(each.engine[0], []).append(each.recorded_ns)
    at = [
        f"tenant = {quoted(tenant)} AND {between_ns('recorded_at', min(times), max(times))}" for tenant, times in sorted(recorded.items())
    ]
    out: dict[str, set[str]] = {}
    for first in range(0, len(at), _TENANTS_MAX):
        inside = " OR ".join(at[first : first + _TENANTS_MAX])
        for tenant, engine_id in store.select(f"SELECT DISTINCT tenant, engine_id FROM engine_steps WHERE {inside}"):
            out.setdefault(unquoted(tenant), set()).add(unquoted(engine_id))
    return out


def _engines_by_requests(store: Store, served: Mapping[EngineKey, _Served]) -> tuple[dict[EngineKey, EngineRecords], _Processes]:
    """Return the engines with requests that identify streams, these or others at their time, and those of several processes."""
    around = {key: each.around for key, each in served.items()}
    requests = rows_by_engine(store, _REQUESTS, {key: (low, high + AROUND_NS) for key, (low, high) in around.items()}, "recorded_at")
    found = [each for each in read_steps(store, around, requests) if each.last_step or served[each.engine].ends]
    read = {process_key(each.engine, each.epoch_ns): each for each in found}
    ends = {
        key: RecordedEnds(
            {response: int(each.steps.recorded_ns[step]) for response, step in each.last_step.items()},
            (around[each.engine][0], around[each.engine][1] + AROUND_NS),
            served[each.engine].streamed,
            frozenset(stream.clock for stream in served[each.engine].streams if stream.server is None),
        )
        for key, each in read.items()
    }
    offsets = {key: each for key, each in clock_offsets(store, ends).items() if each.server is not None or served[read[key].engine].ends}
    # Samples and first tokens bear the id alone, so those of several processes cannot be assigned.
    alone = {key: read[key].steps for key in offsets if not read[key].epoch_ns}
    gpus, first_tokens = gpu_clocks(store, _sampled(alone)), _first_tokens(store, alone, offsets)
    engines = {
        key: EngineRecords(
            steps=read[key].steps,
            gpus=gpus.get(key, ()),
            server_offset=offsets[key].server,
            client_offsets=offsets[key].clients,
            last_step=read[key].last_step,
            preempted=read[key].preempted,
            never_preempted=read[key].never_preempted,
            first_token_ns=first_tokens.get(key, {}),
        )
        for key in offsets
    }
    processes: _Processes = {}
    for each in found:
        if each.epoch_ns:
            processes.setdefault(each.engine, {}).update(dict.fromkeys(each.last_step, each.epoch_ns))
    return engines, processes


def _engines_by_host(store: Store, streams: Mapping[EngineKey, Sequence[Stream]]) -> dict[EngineKey, EngineRecords]:
    """Return the engines without requests that identify streams, if they have the host and the boot of all their streams' servers.

    Their records have the server's clock. If several nodes have an engine with this id, the steps cannot be assigned.
    """
    around = {}
    for key, own in streams.items():
        low, high = _Served(own, ()).streamed
        around[key] = low - AROUND_NS, high + AROUND_NS
    read = {each.engine: each for each in read_steps(store, around, {}) if not each.epoch_ns}
    boots = boots_of(store, {key: around[key] for key in read})
    on_host = {
        key: each.steps
        for key, each in read.items()
        if len(boots[key]) == 1 and all(stream.server is not None and stream.server_boot in boots[key] for stream in streams[key])
    }
    # The end of a step is known only by the time at which its record reached the reader: the chunk may have been sent before. So the
    # error of the offset is unknown.
    offset = ClockOffsets(server=(0, None))
    gpus, first_tokens = gpu_clocks(store, _sampled(on_host)), _first_tokens(store, on_host, dict.fromkeys(on_host, offset))
    return {
        key: EngineRecords(steps=steps, gpus=gpus.get(key, ()), server_offset=offset.server, first_token_ns=first_tokens.get(key, {}))
        for key, steps in on_host.items()
    }


def _with_ranks(store: Store, engines: Mapping[EngineKey, EngineRecords]) -> dict[EngineKey, EngineRecords]:
    """Return those of the engines that are ranks, with the steps of the other ranks behind their servers."""
    windows = {key: (int(each.steps.recorded_ns.min()), int(each.steps.recorded_ns.max())) for key, each in engines.items()}
    others = _other_ranks(store, windows)
    around: dict[EngineKey, Window] = {}
    for key, own in others.items():
        for other in own[:_RANKS_MAX]:
            low, high = around.get(other, windows[key])
            around[other] = min(low, windows[key][0]), max(high, windows[key][1])
    found = (each for each in read_steps(store, around, {}) if not each.epoch_ns)
    read = {each.engine: Rank.of(each.steps, step_ends(each.steps)) for each in found}
    return {
        key: replace(engines[key], ranks=[read[other] for other in own[:_RANKS_MAX] if other in read], has_all_ranks=len(own) <= _RANKS_MAX)
        for key, own in others.items()
    }


def _other_ranks(store: Store, windows: Windows) -> dict[EngineKey, list[EngineKey]]:
    """Return, for each engine that is a rank, the other ranks behind its server with steps within its window."""
    ranks: dict[EngineKey, list[EngineKey]] = {}
    for batch in batches_of(windows):
        inside = between_ns("recorded_at", *span_of(batch))
        for row in store.select(_RANKS.format(inside=inside, which=is_behind(batch), most=_RANKS_MAX + 2)):
            tenant, engine = str(unquoted(row[0])), str(unquoted(row[1]))
            own = ranks.setdefault((tenant, server_of(engine)), [(tenant, server_of(engine))])
            if (tenant, engine) not in own:
                own.append((tenant, engine))
    found = {key: ranks.get((key[0], server_of(key[1])), []) for key in windows}
    return {key: others for key, own in found.items() if (others := [other for other in own if other != key])}


def _sampled(steps: Mapping[EngineKey, Steps]) -> dict[EngineKey, Window]:
    """Return when the GPUs of these engines were sampled, as far as their steps need it."""
    return {key: (int(each.recorded_ns.min()) - AROUND_NS, int(each.recorded_ns.max()) + AROUND_NS) for key, each in steps.items()}


def _first_tokens(
    store: Store, steps: Mapping[EngineKey, Steps], offsets: Mapping[EngineKey, ClockOffsets]
) -> dict[EngineKey, dict[str, int]]:
    """Return ``EngineRecords.first_token_ns`` of the engines with a known offset to the server's clock."""
    windows = {}
    for key, each in steps.items():
        server = offsets[key].server
        if server is not None:
            end_ns = step_ends(each) - server[0]
            windows[key] = int(end_ns[0]) - AROUND_NS, int(end_ns[-1])
    return {
        key: {unquoted(name): at for name, at in zip(rows["response_id"].tolist(), rows["first_ns"].tolist(), strict=True)}
        for key, rows in rows_by_engine(store, _FIRST_TOKENS, windows, "start_time").items()
    }
