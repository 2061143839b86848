"""The engine's lanes of a stream's page: its steps, and the samples of its GPUs and its host, in the time of the stream.

Times are µs since the start of the page's axis, by the clock of the server. The steps are placed at their true ends as far as the engine's
own durations show them. This module charges no step to a cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legato_ingest.definitions import server_of
from legato_ingest.quoting import Value
from legato_ingest.reports.rows import Run

__all__ = ["STEPS_MAX", "engine_lanes", "step_ends_us"]

Ints = NDArray[np.int64]

STEPS_MAX = 90_000
"""Steps on one page: half an hour at 20 ms a step."""
_SAMPLES_MAX = 20_000
# Steps this long before and after the stream are shown; samples come every second or more rarely, so a line needs more to reach the edges.
_STEPS_MARGIN_US, _SAMPLES_MARGIN_US = 1_000_000, 15_000_000
# Intervals are rounded down and come from another clock. Ends are moved by at most the rest, so errors do not add up over many steps.
_INTERVAL_SHARE, _INTERVAL_ERROR_US = 0.99, 100
_COLUMNS = (
    "interval_us", "elapsed_us", "running", "waiting", "prefill_tokens", "decode_requests", "decode_tokens", "draft_tokens",
    "accepted_tokens", "preempted", "kv_used_ppm",
)  # fmt: skip
_BETWEEN = (
    "tenant = {tenant:String} AND recorded_at BETWEEN fromUnixTimestamp64Nano({from_ns:Int64}) AND fromUnixTimestamp64Nano({to_ns:Int64})"
)
# One row with a list a column. -1: unknown.
_STEPS = f"""
SELECT
    groupArray(at_us) AS at_us, groupArray(step) AS step,
    {", ".join(f"groupArray(ifNull(toInt64({name}), -1)) AS {name}" for name in _COLUMNS)}
FROM
(
    SELECT intDiv(toUnixTimestamp64Nano(recorded_at) - {{zero_ns:Int64}}, 1000) AS at_us, step,
        {", ".join(_COLUMNS)}
    FROM engine_steps FINAL
    WHERE engine_id = {{engine:String}} AND {_BETWEEN}
    ORDER BY recorded_at, step
    LIMIT {{limit:UInt32}}
)"""
_SERIES = f"""
SELECT name, groupArray(at_us) AS at_us, groupArray(value) AS value
FROM
(
    SELECT {{name}} AS name, intDiv(toUnixTimestamp64Nano(recorded_at) - {{{{zero_ns:Int64}}}}, 1000) AS at_us, {{value}} AS value
    FROM node_samples FINAL
    WHERE {{which}} AND value IS NOT NULL AND {_BETWEEN.replace("{", "{{").replace("}", "}}")}
    ORDER BY recorded_at
    LIMIT {_SAMPLES_MAX}
)
GROUP BY name
ORDER BY name"""
_OWN = "engine_id IN ({engine:String}, {server:String})"
# The samples of a GPU that several engines share have another engine's id, or none.
_GPU_CLOCK = _SERIES.format(
    name="attributes['hw.id']",
    value="value",
    which=f"metric = 'hw.gpu.clock.sm' AND ({_OWN} OR attributes['hw.id'] IN "
    f"(SELECT attributes['hw.id'] FROM node_samples WHERE metric = 'legato.gpu.engine' AND {_OWN} AND {_BETWEEN}))",
)
_HOST_CPU = _SERIES.format(
    name="host",
    value="1 - value",
    which="metric = 'system.cpu.utilization' AND attributes['cpu.mode'] = 'idle' AND attributes['cpu.logical_number'] = '' "
    f"AND host IN (SELECT host FROM node_samples WHERE {_OWN} AND host != '' AND {_BETWEEN})",
)


def engine_lanes(run: Run, tenant: str, engine: str, zero_ns: int, end_us: int) -> dict[str, Any]:
    """Return ``engine``, ``gpu_clock`` (MHz) and ``host_cpu`` (share of all CPUs, 0 to 1) from 0 to ``end_us`` of the axis.

    ``zero_ns``: wall time of the axis' start. Each value has ``reason``: why it is empty, else "". Raises what ``run`` raises.
    """
    if not engine:
        reason = "The engine of this stream is unknown: its server names none (legato.engine.id)."
        samples = _empty("The engine of this stream is unknown.")
        return {"engine": {"id": "", "reason": reason, "steps": None}, "gpu_clock": samples, "host_cpu": samples}
    around: dict[str, Value] = {"tenant": tenant, "engine": engine, "zero_ns": zero_ns}
    steps = _steps(run, {**around, **_range(zero_ns, end_us, _STEPS_MARGIN_US), "limit": STEPS_MAX})
    where: dict[str, Value] = {**around, "server": server_of(engine), **_range(zero_ns, end_us, _SAMPLES_MARGIN_US)}
    no_steps = f"The engine {engine} recorded no steps in this time. They need Legato's plugin and agent."
    return {
        "engine": {"id": engine, "reason": "" if steps else no_steps, "steps": steps},
        "gpu_clock": _samples(
            run(_GPU_CLOCK, where), "No samples of a GPU's clock in this time. They need Legato's agent and an NVIDIA GPU."
        ),
        "host_cpu": _samples(run(_HOST_CPU, where), "No samples of the host's CPUs in this time. They need Legato's agent."),
    }


def step_ends_us(recorded_us: Ints, interval_us: Ints) -> Ints:
    """Return the ends of steps in µs. ``recorded_us``: when each was recorded, ascending; ``interval_us``: durations, -1 is unknown.

    A record is late if the front end is late. No step ends later than its record, nor later than the next end less the next duration.
    """
    if not len(recorded_us):
        return recorded_us
    sure = np.maximum(interval_us * _INTERVAL_SHARE - _INTERVAL_ERROR_US, 0).astype(np.int64)
    passed = np.cumsum(sure)
    return np.asarray(passed + np.minimum.accumulate((recorded_us - passed)[::-1])[::-1], np.int64)


def _range(zero_ns: int, end_us: int, margin_us: int) -> dict[str, int]:
    return {"from_ns": zero_ns - 1_000 * margin_us, "to_ns": zero_ns + 1_000 * (end_us + margin_us)}


def _steps(run: Run, parameters: Mapping[str, Value]) -> dict[str, Any] | None:
    """The steps as columns: start and duration in µs, tokens by what the step did, load; None in a column: unknown in all steps."""
    (row,) = run(_STEPS, parameters)
    columns = {name: np.asarray(values).astype(np.int64) for name, values in row.items()}
    count = len(columns["at_us"])
    if not count:
        return None
    interval = np.where(columns["elapsed_us"] >= 0, columns["elapsed_us"], columns["interval_us"])
    ends = step_ends_us(columns["at_us"], columns["interval_us"])
    before = np.concatenate(([ends[0] - max(int(interval[0]), 0)], ends[:-1]))
    starts = np.maximum(ends - np.maximum(interval, 0), np.minimum(before, ends))
    return {
        "count": count,
        "is_cut": count == STEPS_MAX,
        "start_us": starts.tolist(),
        "duration_us": (ends - starts).tolist(),
        "late_us": (columns["at_us"] - ends).tolist(),
        "step": columns["step"].tolist(),
        **{name: _known(columns[name]) for name in _COLUMNS[2:]},
        "recompute_tokens": _known(_recompute(columns)),
    }


def _recompute(columns: dict[str, Ints]) -> Ints:
    """Tokens of preempted requests that were computed again: the engine counts them as decode tokens, beyond its requests and drafts."""
    tokens, requests = columns["decode_tokens"], columns["decode_requests"]
    beyond = np.maximum(tokens - requests - np.maximum(columns["draft_tokens"], 0), 0)
    return np.asarray(np.where((tokens < 0) | (requests < 0), -1, beyond), np.int64)


def _known(values: Ints) -> list[int] | None:
    listed: list[int] = values.tolist()
    return listed if (values >= 0).any() else None


def _empty(reason: str) -> dict[str, Any]:
    return {"reason": reason, "series": []}


def _samples(rows: Sequence[dict[str, Any]], reason: str) -> dict[str, Any]:
    """The series with their times in µs and values; a value keeps four digits behind the point."""
    series = [
        {
            "name": row["name"],
            "at_us": np.asarray(row["at_us"]).astype(np.int64).tolist(),
            "value": np.round(np.asarray(row["value"], np.float64), 4).tolist(),
        }
        for row in rows
    ]
    return {"reason": "" if series else reason, "series": series}
