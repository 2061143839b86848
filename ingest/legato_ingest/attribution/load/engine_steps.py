"""Read the steps of engines from the store, and which request ended in which step; those of processes that ran at a time are apart.

An engine's steps are those of its processes, one after the other. Several at a time have one engine id where nodes are set up alike, as
pods with engines that listen at the same address. The module judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.load.by_engine import Rows, Windows, rows_by_engine
from legato_ingest.attribution.model.engine import steps_of_requests
from legato_ingest.attribution.model.scraped import EngineKey
from legato_ingest.attribution.model.steps import Steps
from legato_ingest.storage import Store
from legato_ingest.storage.sql import unquoted

__all__ = ["ReadSteps", "read_steps"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_COLUMNS = (
    "interval_us", "running", "waiting",
    "prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens", "draft_tokens", "preempted",
)  # fmt: skip
_STEPS = f"""
SELECT tenant, engine_id, toUnixTimestamp64Nano(recorded_at) AS at_ns, engine_epoch, step, {", ".join(_COLUMNS)}
FROM engine_steps FINAL
WHERE {{which}} AND {{inside}}"""
# API servers of one engine record a step within this share of its duration of each other, and measure durations that differ by at most so
# many µs. Two processes record the same steps if both hold for this share of the steps, of at least so many. For two engines with steps of
# one length both hold for half of them by chance.
_NEAR_SHARE, _SAME_US, _SAME_SHARE, _STEPS_MIN = 0.25, 200, 0.7, 20
# With more processes in a stretch of time than this, each counts as apart.
_PROCESSES_MAX = 64


class ReadSteps(NamedTuple):
    """The steps of an engine, the index of the step in which each request ended, by response id, and the ids of the requests that the
    engine reports as preempted and as never preempted.

    ``epoch_ns``: the start of the process if several of the engine's ran at a time, as on two nodes without an id each; else 0, and the
    steps are those of all its processes, one after the other.
    """

    engine: EngineKey
    epoch_ns: int
    steps: Steps
    last_step: Mapping[str, int]
    preempted: frozenset[str]
    never_preempted: frozenset[str]


def read_steps(store: Store, windows: Windows, requests: Mapping[EngineKey, Rows]) -> list[ReadSteps]:
    """Return the steps of the engines that have some between these times. ``requests``: those that the engines finished."""
    read = rows_by_engine(store, _STEPS, windows, "recorded_at")
    return [each for key, rows in read.items() for each in _by_process(key, rows, requests.get(key))]


def _by_process(engine: EngineKey, rows: Rows, requests: Rows | None) -> list[ReadSteps]:
    """Return the steps of an engine, by process if several ran at a time."""
    order = np.lexsort((rows["step"], rows["engine_epoch"]))
    rows = {name: column[order] for name, column in rows.items()}
    number, recorded = (rows[name].astype(np.int64) for name in ("step", "at_ns"))
    ended_in = np.zeros(0, np.int64)
    if requests is not None:
        ended_in = steps_of_requests(requests["step"].astype(np.int64), requests["at_ns"].astype(np.int64), number, recorded)
    epochs, first, process = np.unique(rows["engine_epoch"].astype(np.int64), return_index=True, return_inverse=True)
    group = _groups(recorded, rows["interval_us"], process) if _run_beside(recorded, first) else np.zeros(len(epochs), np.int64)
    if not group.any():
        return [_steps(engine, 0, rows, requests, ended_in)]
    return [
        _steps(engine, int(epochs[each]), {name: column[own] for name, column in rows.items()}, *_within(requests, ended_in, own))
        for each in np.unique(group).tolist()
        for own in [np.flatnonzero(group[process] == each)]
    ]


def _run_beside(recorded: Ints, first: Ints) -> bool:
    """Return whether processes ran at a time. ``first``: the index of the first step of each; those of one follow each other."""
    begins, ends = np.minimum.reduceat(recorded, first), np.maximum.reduceat(recorded, first)
    order = np.argsort(begins, kind="stable")
    return bool((begins[order][1:] <= np.maximum.accumulate(ends[order])[:-1]).any())


def _groups(recorded: Ints, interval_us: Floats, process: Ints) -> Ints:
    """Return for each process the first one of those that recorded the steps of the same engine. ``process``: that of each step."""
    group = np.arange(process.max() + 1)
    if len(group) > _PROCESSES_MAX:
        return group
    by_time = np.argsort(recorded, kind="stable")
    own = [by_time[process[by_time] == each] for each in group.tolist()]
    for one, other in combinations(range(len(group)), 2):
        if group[one] != group[other] and _are_same(*((recorded[own[each]], interval_us[own[each]]) for each in (one, other))):
            group[group == group[other]] = group[one]
    return group


def _are_same(one: tuple[Ints, Floats], other: tuple[Ints, Floats]) -> bool:
    """Return whether two processes recorded the same steps, as API servers of one engine do: at the same times, with the same durations.

    Each is given by the times of its records, in order, and the durations of its steps by the engine's clock.
    """
    first, last = max(one[0][0], other[0][0]), min(one[0][-1], other[0][-1])
    cuts = [(times[is_in], took_us[is_in]) for times, took_us in (one, other) for is_in in [(times >= first) & (times <= last)]]
    (few, few_us), (more, more_us) = sorted(cuts, key=lambda cut: len(cut[0]))
    if len(few) < _STEPS_MIN:
        return False
    after = np.clip(np.searchsorted(more, few), 1, len(more) - 1)
    at = after - (few - more[after - 1] < more[after] - few)
    apart_us, longer_us = np.abs(few - more[at]) / 1000, np.abs(few_us - more_us[at])
    is_known = ~np.isnan(longer_us)
    is_same = (apart_us <= _NEAR_SHARE * few_us) & (longer_us <= _SAME_US)
    return bool(is_known.sum() >= _STEPS_MIN and is_same[is_known].mean() >= _SAME_SHARE)


def _within(requests: Rows | None, ended_in: Ints, own: Ints) -> tuple[Rows | None, Ints]:
    """Return the requests that ended in some of the steps, and the indices of their steps among these."""
    if requests is None:
        return None, ended_in
    place = np.searchsorted(own, ended_in)
    is_own = own[np.minimum(place, len(own) - 1)] == ended_in
    return {name: column[is_own] for name, column in requests.items()}, place[is_own]


def _steps(engine: EngineKey, epoch_ns: int, rows: Rows, requests: Rows | None, ended_in: Ints) -> ReadSteps:
    """Convert rows in order. ``ended_in``: the index of the step in which each of the requests ended, -1: unknown."""
    recorded = rows["at_ns"].astype(np.int64)
    steps = Steps(
        number=rows["step"].astype(np.int64),
        recorded_ns=recorded,
        finished=np.bincount(ended_in[ended_in >= 0], minlength=len(recorded)).astype(np.float64),
        interval_ns=1000 * rows["interval_us"].astype(np.float64),
        **{name: rows[name].astype(np.float64) for name in _COLUMNS[1:]},
    )
    if requests is None:
        return ReadSteps(engine, epoch_ns, steps, {}, frozenset(), frozenset())
    names = list(map(unquoted, requests["response_id"].tolist()))
    # By step: a response of several sequences ends with the last of them.
    by_step = np.argsort(ended_in, kind="stable").tolist()
    last_step = {names[row]: int(ended_in[row]) for row in by_step if ended_in[row] >= 0 and names[row]}
    is_reported = not np.isnan(steps.preempted).all()
    preempted = frozenset(names[row] for row in np.flatnonzero(requests["preemptions"] > 0).tolist()) - {""}
    never = frozenset(names) - preempted - {""} if is_reported else frozenset[str]()
    return ReadSteps(engine, epoch_ns, steps, last_step, preempted, never)
