"""Read the steps of engines from the store, and which request ended in which step; those of processes that ran at a time are apart.

An engine's steps are those of its processes, one after the other. Several at a time have one engine id where nodes are set up alike, as
pods with engines that listen at the same address. The module judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
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

Ints = NDArray[np.int64]

_COLUMNS = (
    "interval_us", "running", "waiting",
    "prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens", "draft_tokens", "preempted",
)  # fmt: skip
_STEPS = f"""
SELECT tenant, engine_id, toUnixTimestamp64Nano(recorded_at) AS at_ns, engine_epoch, step, {", ".join(_COLUMNS)}
FROM engine_steps FINAL
WHERE {{which}} AND {{inside}}"""
# Two processes record one step at most this long after each other. They record the same steps if they do so in this share of them; of two
# engines with steps of 5 ms that is a fifth by chance.
_SAME_STEP_NS, _SAME_SHARE = 500_000, 0.6


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
    epochs, first, at = np.unique(rows["engine_epoch"].astype(np.int64), return_index=True, return_inverse=True)
    if not _run_beside(recorded, first) or _are_same(recorded, at):
        return [_steps(engine, 0, rows, requests, ended_in)]
    return [
        _steps(engine, epoch, {name: column[low:high] for name, column in rows.items()}, *_within(requests, ended_in, low, high))
        for epoch, low, high in zip(epochs.tolist(), first.tolist(), [*first[1:].tolist(), len(number)], strict=True)
    ]


def _run_beside(recorded: Ints, first: Ints) -> bool:
    """Return whether processes ran at a time. ``first``: the index of the first step of each; those of one follow each other."""
    begins, ends = np.minimum.reduceat(recorded, first), np.maximum.reduceat(recorded, first)
    order = np.argsort(begins, kind="stable")
    return bool((begins[order][1:] <= np.maximum.accumulate(ends[order])[:-1]).any())


def _are_same(recorded: Ints, process: Ints) -> bool:
    """Return whether processes recorded the same steps, as several API servers of one engine do."""
    order = np.argsort(recorded, kind="stable")
    is_near = (np.diff(process[order]) != 0) & (np.diff(recorded[order]) <= _SAME_STEP_NS)
    return bool(np.count_nonzero(is_near) >= _SAME_SHARE * np.bincount(process).min())


def _within(requests: Rows | None, ended_in: Ints, low: int, high: int) -> tuple[Rows | None, Ints]:
    """Return the requests that ended in a range of the steps, and the indices of their steps in that range."""
    if requests is None:
        return None, ended_in
    own = (ended_in >= low) & (ended_in < high)
    return {name: column[own] for name, column in requests.items()}, ended_in[own] - low


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
