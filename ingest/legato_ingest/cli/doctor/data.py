"""What `legato doctor` learns from what came in: what stopped, what is missing beside it, what was refused, and whether Legato keeps up.

One idea: each check is one question to the read door about the last day, whose rows are the findings' evidence. They are a guess at what is
wrong, as nobody knows what should have come; so a finding says what was there before and is not now.
"""

from __future__ import annotations

import re
from typing import Any

import httpx

from legato_ingest.cli.doctor.findings import Check, Finding, Setup, fault, skipped, warning, well
from legato_ingest.definitions import server_of

__all__ = ["CHECKS"]

_SHOWN_MAX = 3
# Of fewer streams nobody misses a cause.
_STREAMS_MIN = 5
_LAG_S_WARNED, _LAG_S_MAX = 60.0, 600.0
_SAMPLE = re.compile(r"^(legato_\w+)(\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)
# Vantages that told of twenty streams or more in the hour before, and of none in the last ten minutes.
_STOPPED = """
SELECT service_name AS service, vantage, toUInt32(countIf(received_at < now() - INTERVAL 10 MINUTE)) AS before,
       toUInt32(dateDiff('minute', max(received_at), now())) AS silent_min
FROM stream_revs
WHERE received_at > now() - INTERVAL 70 MINUTE
GROUP BY service, vantage
HAVING before >= 20 AND countIf(received_at >= now() - INTERVAL 10 MINUTE) = 0
ORDER BY before DESC"""
_GOING_ON = "SELECT count() AS streams FROM stream_revs WHERE received_at > now() - INTERVAL 10 MINUTE"
# Of each engine that streams name or an agent tells of: how many streams, and what is told.
_ENGINES = """
SELECT engine_id, toUInt32(sum(seen)) AS streams, max(told = 'steps') AS steps, max(told = 'page') AS page
FROM
(
    SELECT engine_id, 'streams' AS told, uniqExact(trace_id) AS seen
    FROM stream_revs
    WHERE received_at > now() - INTERVAL 1 HOUR AND vantage IN ('server', 'engine') AND engine_id != ''
    GROUP BY engine_id
    UNION ALL
    SELECT DISTINCT engine_id, 'steps', 0
    FROM engine_steps
    WHERE received_at > now() - INTERVAL 1 HOUR
    UNION ALL
    SELECT DISTINCT engine_id, 'page', 0
    FROM node_samples
    WHERE recorded_at > now() - INTERVAL 1 HOUR AND metric = 'legato.engine.up' AND value > 0 AND engine_id != ''
)
GROUP BY engine_id
ORDER BY streams DESC, engine_id"""
_CLOCKS = """
SELECT service_name AS service, toUInt32(count()) AS streams,
       toInt64(median(dateDiff('second', received_at, addNanoseconds(start_time, coalesce(duration_ns, 0))))) AS ahead_s
FROM stream_revs
WHERE received_at > now() - INTERVAL 1 HOUR
GROUP BY service
HAVING ahead_s > 60 OR ahead_s < -1800
ORDER BY streams DESC"""
_REJECTED = """
SELECT reason, toUInt32(count()) AS spans, any(detail) AS example, any(service_name) AS service
FROM rejected FINAL
WHERE received_at > now() - INTERVAL 1 DAY
GROUP BY reason
ORDER BY spans DESC"""


def vantages(setup: Setup) -> Finding:
    """Whether a vantage that told of streams has fallen silent while others go on."""
    name = "vantages"
    stopped = setup.reader.rows(_STOPPED)
    (now,) = setup.reader.rows(_GOING_ON)
    if not stopped:
        return well(name, f"none has fallen silent; n={now['streams']:,} in the last 10 minutes")
    shown = _shown(f"{row['vantage']} of {row['service'] or '(no name)'} ({row['before']:,} in the hour before)" for row in stopped)
    if not now["streams"]:
        return warning(name, f"nothing has come for 10 minutes, before it: {shown}", "no traffic, or no way here? See the Collector")
    return fault(name, f"silent for 10 minutes, while others go on: {shown}", "is its SDK configured, its token good, its release new?")


def engines(setup: Setup) -> Finding:
    """Whether an engine that serves streams tells of its steps, or at least has its page read."""
    name = "engine steps"
    rows = setup.reader.rows(_ENGINES)
    # A rank tells of its server, too.
    stepping, read = ({own for row in rows if row[told] for own in _names(row)} for told in ("steps", "page"))
    without = [row for row in rows if row["streams"] >= _STREAMS_MIN and row["engine_id"] not in stepping]
    unread = [row for row in without if row["engine_id"] not in read]
    if not without:
        return well(name, "no engine that serves streams is without them")
    shown = _shown(f"{row['engine_id']} ({row['streams']:,} streams)" for row in unread or without)
    if not unread:
        todo = "where it can tell them: the plugin (vLLM), LEGATO_FORWARD_PASSES, LEGATO_ITERATIONS"
        return warning(name, f"by their pages alone, which name few causes: {shown}", todo)
    found = f"streams in the last hour, and no step: {shown}"
    named = {row["engine_id"] for row in rows if row["streams"]}
    if nameless := [row["engine_id"] for row in rows if named.isdisjoint(_names(row))]:
        found += f"; told of, and named by no stream: {_shown(nameless)}"
        return fault(
            name, found, "if they are the same, give each one LEGATO_ENGINE_ID, for its server and in the agent's LEGATO_ENGINES=ID=URL"
        )
    todo = "does `legato-gpu-agent` run beside it, with its LEGATO_ENGINE_PIPE and LEGATO_ENGINE_ID? Without steps no stall has a cause"
    return fault(name, found, todo)


def emitters_clocks(setup: Setup) -> Finding:
    """Whether streams come from the future, or from long ago."""
    name = "emitters' clocks"
    off = setup.reader.rows(_CLOCKS)
    if not off:
        return well(name, "streams end shortly before they come in")
    shown = _shown(f"{row['service'] or '(no name)'} by {abs(int(row['ahead_s'])):,} s (n={row['streams']:,})" for row in off)
    late = all(int(row["ahead_s"]) < 0 for row in off)
    found = f"streams end long before they come in: {shown}" if late else f"streams end after they come in: {shown}"
    return fault(name, found, "set that host's clock by NTP" + (", or see what held them up (a Collector's backlog)" if late else ""))


def rejections(setup: Setup) -> Finding:
    """What was refused in the last day, and why."""
    name = "rejected"
    rows = setup.reader.rows(_REJECTED)
    if not rows:
        return well(name, "nothing in the last day")
    shown = _shown(f"{row['spans']:,} {row['reason']} ({row['service'] or 'no name'}: {row['example']})" for row in rows)
    return warning(name, f"in the last day: {shown}", "docs/operating.md says what each reason means; the table `rejected` has all of them")


def keeping_up(setup: Setup) -> Finding:
    """Whether attribution and rollups keep up, and what failed."""
    name = "keeping up"
    try:
        reply = setup.get(f"{setup.otlp_url}/metrics")
    except httpx.TransportError as error:
        return fault(name, f"its metrics do not come ({type(error).__name__})", "see the log of `legato serve`")
    if reply.status_code == 401:
        return skipped(name, "its metrics are an operator's: LEGATO_READ_PASSWORD must be a token of all tenants")
    samples: dict[str, float] = {}
    errors: dict[str, float] = {}
    for sample, labels, value in _SAMPLE.findall(reply.text):
        samples[sample] = max(samples.get(sample, 0.0), float(value))
        if sample == "legato_errors_total" and float(value):
            errors[labels] = float(value)
    lag_s = max(samples.get("legato_attribution_lag_seconds", 0.0), samples.get("legato_rollup_lag_seconds", 0.0))
    if lag_s > _LAG_S_MAX:
        return fault(name, f"verdicts or minutes are {lag_s:,.0f} s behind", "see its log: a slow server, or too few cores")
    if errors:
        shown = _shown(f"{count:,.0f} × {labels}" for labels, count in sorted(errors.items(), key=lambda each: -each[1]))
        return warning(name, f"since its start: {shown}", "its log says what each was; what it could not store, senders sent again")
    if lag_s > _LAG_S_WARNED:
        return warning(name, f"verdicts or minutes are {lag_s:,.0f} s behind", "ask again in a minute")
    return well(name, f"verdicts and minutes are {lag_s:,.0f} s behind")


def _names(row: dict[str, Any]) -> tuple[str, str]:
    return row["engine_id"], server_of(row["engine_id"])


def _shown(items: Any) -> str:
    listed = list(items)
    more = f" and {len(listed) - _SHOWN_MAX} more" if len(listed) > _SHOWN_MAX else ""
    return ", ".join(listed[:_SHOWN_MAX]) + more


CHECKS = (
    Check("vantages", vantages, "read door"),
    Check("engine steps", engines, "read door"),
    Check("emitters' clocks", emitters_clocks, "read door"),
    Check("rejected", rejections, "read door"),
    Check("keeping up", keeping_up, "OTLP door"),
)
