"""The stalls of a stream's page: each with its verdict, parts and evidence in words, and the streams that the same step stalled.

The verdicts are those of the store; a gap without one is listed as not judged. Times are µs since the start of the page's axis. This
module judges no gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from legato_ingest.causes import HEALTHY
from legato_ingest.reports.rows import Row, Run
from legato_ingest.reports.verdict_words import sentences
from legato_ingest.reports.verdicts import OF_SPANS, span_parameters, verdicts_on

__all__ = ["SAME_STEP_MAX", "but_for", "engine_of", "judged_stalls", "parts_us"]

Gap = tuple[int, int, bool]

SAME_STEP_MAX = 50
"""Streams that are listed for one root-cause step."""
_BUT_FOR = f"""
SELECT cause, sum(stalls) AS stalls, sum(stalls_min) AS stalls_min, sum(stalls_max) AS stalls_max, sum(stalled_us) AS stalled_us,
    sum(stalled_min_us) AS stalled_min_us, sum(stalled_max_us) AS stalled_max_us
FROM replays FINAL
WHERE {OF_SPANS} AND (start_time, trace_id, span_id, judged_at) IN
    (SELECT start_time, trace_id, span_id, max(judged_at) FROM verdicts FINAL WHERE {OF_SPANS} GROUP BY start_time, trace_id, span_id)
GROUP BY cause
ORDER BY stalled_us - stalled_min_us DESC, cause"""
_SAME_STEP = f"""
SELECT
    culprit_at_ns, lower(hex(trace_id)) AS trace, max(gap_us) AS longest_us, argMax(cause, gap_us) AS named
FROM
(
    SELECT *, toString(toUnixTimestamp64Nano(culprit_at)) AS culprit_at_ns
    FROM verdicts FINAL
    WHERE tenant = {{tenant:String}}
        AND start_time BETWEEN fromUnixTimestamp64Nano({{first_ns:Int64}}) - INTERVAL 1 HOUR
        AND fromUnixTimestamp64Nano({{last_ns:Int64}}) + INTERVAL 1 HOUR
)
WHERE engine_id = {{engine:String}} AND culprit_step IS NOT NULL AND cause != '{HEALTHY}'
    AND has({{moments:Array(String)}}, culprit_at_ns) AND NOT has({{traces:Array(String)}}, lower(hex(trace_id)))
GROUP BY culprit_at_ns, trace
ORDER BY culprit_at_ns, longest_us DESC, trace
LIMIT {SAME_STEP_MAX + 1} BY culprit_at_ns"""


def judged_stalls(
    run: Run, rows: Sequence[Row], offsets: Sequence[int], gaps: Sequence[Sequence[Gap]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the stalls in order of time, and the rows of their verdicts.

    ``offsets``: the start of each row on the axis in µs. ``gaps``: the long gaps of each judged row (start on the axis, length, open). A
    gap that was judged healthy is no stall. Raises what ``run`` raises.
    """
    verdicts = verdicts_on(run, rows)
    places = {(row["trace"], row["span"]): place for place, row in enumerate(rows)}
    judged: dict[tuple[int, int], dict[str, Any]] = {}
    for verdict in verdicts:
        place = places.get((verdict["trace"], verdict["span"]))
        if place is not None:
            judged[place, int(verdict["gap_start_us"]) + offsets[place]] = verdict
    found = [_stall(place, start, verdict) for (place, start), verdict in judged.items() if verdict["cause"] != HEALTHY]
    found += [_unjudged(place, gap) for place, own in enumerate(gaps) for gap in own if (place, gap[0]) not in judged]
    stalled = [verdict for verdict in judged.values() if verdict["cause"] != HEALTHY]
    same = _same_step(run, rows, stalled)
    for stall in found:
        others = same.get(stall.pop("culprit_at_ns"), []) if stall["culprit_step"] is not None else []
        stall["same_step"], stall["same_step_more"] = others[:SAME_STEP_MAX], len(others) > SAME_STEP_MAX
    return sorted(found, key=lambda stall: (stall["start_us"], stall["vantage"])), stalled


def but_for(run: Run, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the store's counterfactual by cause: stalls and stalled µs as they were, and the least and most without the cause."""
    found = run(_BUT_FOR, span_parameters(rows))
    return [{name: value if name == "cause" else int(value) for name, value in row.items()} for row in found]


def engine_of(verdicts: Sequence[Row], rows: Sequence[Row]) -> str:
    """Return the id of the engine that most stalls were judged by, else of the first vantage that names one; "" if none does."""
    named = Counter(verdict["engine_id"] for verdict in verdicts if verdict["engine_id"])
    return str(named.most_common(1)[0][0]) if named else next((str(row["engine_id"]) for row in rows if row["engine_id"]), "")


def parts_us(parts_ns: Mapping[str, int | str]) -> dict[str, int]:
    """Return the positive parts of a gap in µs, rounded so that they add up to the sum of the parts in ns, rounded down."""
    positive = {name: int(ns) for name, ns in parts_ns.items() if int(ns) > 0}
    sums = [total // 1_000 for total in accumulate(positive.values(), initial=0)]
    return {name: after - before for name, (before, after) in zip(positive, pairwise(sums), strict=True)}


def _stall(place: int, start_us: int, verdict: Row) -> dict[str, Any]:
    """A stall with its verdict. Negative parts (a delayed stream caught up) are added up in ``caught_up_us``."""
    caught_up = -sum(min(int(ns), 0) for ns in verdict["parts"].values())
    steps = {name: None if verdict[name] is None else int(verdict[name]) for name in ("step_first", "step_last", "culprit_step")}
    return {
        "vantage": place,
        "start_us": start_us,
        "end_us": start_us + int(verdict["gap_us"]),
        **{name: int(verdict[name]) for name in ("gap_us", "excess_us", "error_us", "culprit_us")},
        "open": bool(int(verdict["evidence"].get("open", 0))),
        **{name: verdict[name] for name in ("cause", "confidence", "missing", "culprit_responses", "culprit_at_ns")},
        "engine": verdict["engine_id"],
        "share": round(float(verdict["share"]), 4),
        "parts_us": parts_us(verdict["parts"]),
        "caught_up_us": caught_up // 1_000,
        **steps,
        "evidence": sentences(verdict["evidence"]),
        "excluded": [{"cause": name, "reason": reason} for name, reason in verdict["excluded"].items()],
    }


def _unjudged(place: int, gap: Gap) -> dict[str, Any]:
    """A stall without a verdict: it is too recent, its evidence has expired, or the stream has 1,024 longer ones."""
    start_us, length_us, is_open = gap
    return {
        "vantage": place,
        "start_us": start_us,
        "end_us": start_us + length_us,
        "gap_us": length_us,
        "excess_us": length_us,
        "error_us": 0,
        "culprit_us": 0,
        "open": is_open,
        "cause": "",
        "confidence": "",
        "missing": [],
        "culprit_responses": [],
        "culprit_at_ns": "",
        "engine": "",
        "share": 0.0,
        "parts_us": {},
        "caught_up_us": 0,
        "step_first": None,
        "step_last": None,
        "culprit_step": None,
        "evidence": [],
        "excluded": [],
    }


def _same_step(run: Run, rows: Sequence[Row], verdicts: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
    """The other streams that each root-cause step stalled, longest gap first, by the time of the step."""
    moments = sorted({verdict["culprit_at_ns"] for verdict in verdicts if verdict["culprit_step"] is not None})
    if not moments:
        return {}
    traces = sorted({row["trace"] for row in rows})
    where = {**span_parameters(rows), "traces": traces, "moments": moments, "engine": engine_of(verdicts, rows)}
    out: dict[str, list[dict[str, Any]]] = {}
    for row in run(_SAME_STEP, where):
        out.setdefault(row["culprit_at_ns"], []).append({"trace": row["trace"], "gap_us": int(row["longest_us"]), "cause": row["named"]})
    return out
