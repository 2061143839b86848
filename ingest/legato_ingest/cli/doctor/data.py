"""Checks of the received data: silent vantages, engines without steps or with one id, wrong clocks, rejections, and `legato serve` itself.

Each check is one query of the read endpoint about the last day at most. The data that should have arrived is not known, so a finding
compares the present with the past.
"""

from __future__ import annotations

from typing import Any

import httpx

from legato_ingest.cli.doctor.endpoints import samples_in
from legato_ingest.cli.doctor.findings import Check, Finding, Setup, fault, skipped, warning, well
from legato_ingest.definitions import server_of

__all__ = ["CHECKS"]

_SHOWN_MAX = 3
# Engines with fewer streams are not reported.
_STREAMS_MIN = 5
_LAG_S_WARNED, _LAG_S_MAX = 60.0, 600.0
# As in the alert rule `ingest_backlog`.
_QUEUE_SHARE_MAX, _SILENT_S_MAX = 0.5, 300
# Vantages with 20 streams or more in the hour before, and none in the last 10 minutes.
_STOPPED = """
SELECT service_name AS service, vantage, toUInt32(countIf(received_at < now() - INTERVAL 10 MINUTE)) AS before,
       toUInt32(dateDiff('minute', max(received_at), now())) AS silent_min
FROM stream_revs
WHERE received_at > now() - INTERVAL 70 MINUTE
GROUP BY service, vantage
HAVING before >= 20 AND countIf(received_at >= now() - INTERVAL 10 MINUTE) = 0
ORDER BY before DESC"""
_GOING_ON = "SELECT count() AS streams FROM stream_revs WHERE received_at > now() - INTERVAL 10 MINUTE"
# For each engine in streams or in an agent's data: the number of streams, and whether steps or scraped metrics arrive.
_ENGINES = """
SELECT engine_id, toUInt32(sum(seen)) AS streams, max(source = 'steps') AS steps, max(source = 'metrics') AS metrics
FROM
(
    SELECT engine_id, 'streams' AS source, uniqExact(trace_id) AS seen
    FROM stream_revs
    WHERE received_at > now() - INTERVAL 1 HOUR AND vantage IN ('server', 'engine') AND engine_id != ''
    GROUP BY engine_id
    UNION ALL
    SELECT DISTINCT engine_id, 'steps', 0
    FROM engine_steps
    WHERE received_at > now() - INTERVAL 1 HOUR
    UNION ALL
    SELECT DISTINCT engine_id, 'metrics', 0
    FROM node_samples
    WHERE recorded_at > now() - INTERVAL 1 HOUR AND metric = 'legato.engine.up' AND value > 0 AND engine_id != ''
)
GROUP BY engine_id
ORDER BY streams DESC, engine_id"""
# Engine ids under which several processes made steps at the same time, as they do with two nodes and the default id. A process that
# was started again makes its first step after the last one of the process before.
_SHARED_IDS = """
SELECT engine_id, toUInt32(max(length(steps))) AS processes, any(hosts) AS hosts
FROM
(
    SELECT tenant, engine_id, arraySort(groupArray((first_at, last_at))) AS steps
    FROM
    (
        SELECT tenant, engine_id, engine_epoch, min(recorded_at) AS first_at, max(recorded_at) AS last_at
        FROM engine_steps
        WHERE received_at > now() - INTERVAL 1 HOUR
        GROUP BY tenant, engine_id, engine_epoch
    )
    GROUP BY tenant, engine_id
    HAVING arrayExists(
        (place, step) -> step.1 + INTERVAL 10 SECOND < arrayMax(before -> before.2, arraySlice(steps, 1, place - 1)),
        arraySlice(arrayEnumerate(steps), 2), arraySlice(steps, 2)
    )
) AS shared
LEFT JOIN
(
    SELECT engine_id, toUInt32(uniqExact(host)) AS hosts
    FROM node_samples
    WHERE recorded_at > now() - INTERVAL 1 HOUR AND engine_id != ''
    GROUP BY engine_id
) AS sampled USING (engine_id)
GROUP BY engine_id
ORDER BY processes DESC, engine_id"""
_CLOCKS = """
-- A wrong clock is wrong by the same time for all streams. Streams that are late by very different times, or that were received together
-- although they ended minutes apart, are a backlog that drains, or recordings that were sent later.
SELECT
    service_name AS service, toUInt32(count()) AS streams, toInt64(median(off_s)) AS ahead_s,
    quantile(0.9)(off_s) - quantile(0.1)(off_s) AS spread_s, dateDiff('second', min(received_at), max(received_at)) AS received_s
FROM
(
    SELECT service_name, received_at, dateDiff('second', received_at, addNanoseconds(start_time, coalesce(duration_ns, 0))) AS off_s
    FROM stream_revs
    WHERE received_at > now() - INTERVAL 1 HOUR
)
GROUP BY service
HAVING ahead_s > 60 OR (ahead_s < -1800 AND spread_s < 600 AND spread_s < 60 + received_s)
ORDER BY streams DESC"""
_REJECTED = """
SELECT reason, toUInt32(count()) AS spans, any(detail) AS example, any(service_name) AS service
FROM rejected FINAL
WHERE received_at > now() - INTERVAL 1 DAY
GROUP BY reason
ORDER BY spans DESC"""

# The processes of `legato serve` by their samples about themselves. The last sample of one that was stopped is 0.
_INSTANCES = """
SELECT host, dateDiff('second', max(recorded_at), now()) AS silent_s, argMax(value, recorded_at) AS up
FROM node_samples
WHERE metric = 'legato_up' AND recorded_at > now() - INTERVAL 1 HOUR
GROUP BY host
ORDER BY silent_s DESC, host"""


def vantages(setup: Setup) -> Finding:
    """Check whether a vantage has stopped sending while others continue."""
    name = "vantages"
    stopped = setup.reader.rows(_STOPPED)
    (now,) = setup.reader.rows(_GOING_ON)
    if not stopped:
        return well(name, f"none has stopped sending; n={now['streams']:,} in the last 10 minutes")
    shown = _shown(f"{row['vantage']} of {row['service'] or '(no name)'} ({row['before']:,} in the hour before)" for row in stopped)
    if not now["streams"]:
        return warning(
            name,
            f"no streams for 10 minutes; in the hour before: {shown}",
            "no traffic, or no network path to the endpoint? See the Collector",
        )
    return fault(
        name, f"silent for 10 minutes, while others continue: {shown}", "check its SDK configuration, its token, and its last release"
    )


def engines(setup: Setup) -> Finding:
    """Check whether every engine that serves streams reports its steps, or at least has its metrics scraped."""
    name = "engine steps"
    rows = setup.reader.rows(_ENGINES)
    # A rank's steps count for its server as well.
    stepping, scraped = ({own for row in rows if row[source] for own in _names(row)} for source in ("steps", "metrics"))
    without = [row for row in rows if row["streams"] >= _STREAMS_MIN and row["engine_id"] not in stepping]
    unscraped = [row for row in without if row["engine_id"] not in scraped]
    if not without:
        return well(name, "every engine that serves streams reports them")
    shown = _shown(f"{row['engine_id']} ({row['streams']:,} streams)" for row in unscraped or without)
    if not unscraped:
        todo = "use the plugin (vLLM), LEGATO_FORWARD_PASSES or LEGATO_ITERATIONS where the engine supports it"
        return warning(name, f"only scraped metrics, which identify few causes: {shown}", todo)
    found = f"streams in the last hour, but no steps: {shown}"
    named = {row["engine_id"] for row in rows if row["streams"]}
    if nameless := [row["engine_id"] for row in rows if named.isdisjoint(_names(row))]:
        found += f"; engines with data, but without streams: {_shown(nameless)}"
        return fault(
            name,
            found,
            "if these are the same engines, set LEGATO_ENGINE_ID for each server and use it in the agent's LEGATO_ENGINES=ID=URL",
        )
    todo = "run `legato-gpu-agent` on its host with the engine's LEGATO_ENGINE_PIPE: without steps a server's part is `generation`"
    return fault(name, found, todo)


def engine_ids(setup: Setup) -> Finding:
    """Check whether an engine id stands for one engine. Several API servers of one vLLM, which look like several, are a warning."""
    name = "engine ids"
    rows = setup.reader.rows(_SHARED_IDS)
    if not rows:
        return well(name, "no two engines have one id")
    several = [row for row in rows if row["hosts"] != 1]
    shown = _shown(f"{row['engine_id']} ({row['processes']} processes)" for row in several or rows)
    found = f"steps of several processes at the same time under one id: {shown}"
    if several:
        return fault(name, found, "set LEGATO_ENGINE_ID in the environment of each engine: the default id is the same on each node")
    return warning(name, found, "set LEGATO_ENGINE_ID for each engine; several API servers of one vLLM (--api-server-count) look the same")


def emitters_clocks(setup: Setup) -> Finding:
    """Check whether streams end in the future, or long before they are received."""
    name = "emitters' clocks"
    off = setup.reader.rows(_CLOCKS)
    if not off:
        return well(name, "streams end shortly before they are received")
    shown = _shown(f"{row['service'] or '(no name)'} by {abs(int(row['ahead_s'])):,} s (n={row['streams']:,})" for row in off)
    late = all(int(row["ahead_s"]) < 0 for row in off)
    found = f"streams end long before they are received: {shown}" if late else f"streams end after they are received: {shown}"
    return fault(name, found, "set that host's clock by NTP" + (", or find the delay (a Collector's backlog)" if late else ""))


def rejections(setup: Setup) -> Finding:
    """Report the spans that were rejected in the last day, by reason."""
    name = "rejected"
    rows = setup.reader.rows(_REJECTED)
    if not rows:
        return well(name, "none in the last day")
    shown = _shown(f"{row['spans']:,} {row['reason']} ({row['service'] or 'no name'}: {row['example']})" for row in rows)
    return warning(name, f"in the last day: {shown}", "docs/operating.md explains each reason; the table `rejected` has all rows")


def instances(setup: Setup) -> Finding:
    """Check whether a process of `legato serve` has gone without being stopped."""
    name = "instances"
    rows = setup.reader.rows(_INSTANCES)
    silent = [row for row in rows if row["up"] and int(row["silent_s"]) > _SILENT_S_MAX]
    if not rows:
        return skipped(name, "the store has no samples of `legato serve` about itself in the last hour, or this reader sees none")
    if silent:
        shown = _shown(f"{row['host'] or '(no host)'} for {int(row['silent_s']):,} s" for row in silent)
        return fault(name, f"`legato serve` is silent: {shown}", "it was killed, or cannot store: see its log, and what should restart it")
    return well(name, f"none of {len(rows)} has gone silent in the last hour")


def keeping_up(setup: Setup) -> Finding:
    """Check whether inserts, attribution and rollups keep up, and report failures."""
    name = "keeping up"
    try:
        reply = setup.get(f"{setup.otlp_url}/metrics")
    except httpx.TransportError as error:
        return fault(name, f"its metrics cannot be read ({type(error).__name__})", "see the log of `legato serve`")
    if reply.status_code == 401:
        return skipped(name, "its metrics need a token of all tenants in LEGATO_READ_PASSWORD")
    samples: dict[str, float] = {}
    errors: dict[str, float] = {}
    for sample, labels, value in samples_in(reply.text):
        samples[sample] = max(samples.get(sample, 0.0), value)
        if sample == "legato_errors_total" and value:
            errors[", ".join(f"{label} {text}" for label, text in labels)] = value
    queued = samples.get("legato_queue_bytes", 0.0) / (samples.get("legato_queue_bytes_max") or float("inf"))
    if queued > _QUEUE_SHARE_MAX:
        todo = "the store is slow, often its disk: see the log of `legato serve`; a full queue refuses requests"
        return fault(name, f"its queue of inserts is {queued:.0%} full", todo)
    lag_s = max(samples.get("legato_attribution_lag_seconds", 0.0), samples.get("legato_rollup_lag_seconds", 0.0))
    if lag_s > _LAG_S_MAX:
        return fault(
            name,
            f"verdicts or rollups are {lag_s:,.0f} s behind",
            "see the log of `legato serve`: a slow ClickHouse server, or too few cores",
        )
    export_lag_s = samples.get("legato_trace_export_lag_seconds", 0.0)
    if export_lag_s > _LAG_S_MAX:
        todo = "its address, its token, and whether it answers: LEGATO_TRACES_EXPORT_ENDPOINT, LEGATO_TRACES_EXPORT_HEADERS"
        return fault(name, f"the trace backend has taken no spans about stalls for {export_lag_s:,.0f} s", todo)
    if errors:
        shown = _shown(f"{count:,.0f} × {labels}" for labels, count in sorted(errors.items(), key=lambda each: -each[1]))
        return warning(
            name, f"errors since its start: {shown}", "see the log of `legato serve`; senders retry data that could not be stored"
        )
    if lag_s > _LAG_S_WARNED:
        return warning(name, f"verdicts or rollups are {lag_s:,.0f} s behind", "check again in a minute")
    return well(name, f"verdicts and rollups are {lag_s:,.0f} s behind")


def _names(row: dict[str, Any]) -> tuple[str, str]:
    return row["engine_id"], server_of(row["engine_id"])


def _shown(items: Any) -> str:
    listed = list(items)
    more = f" and {len(listed) - _SHOWN_MAX} more" if len(listed) > _SHOWN_MAX else ""
    return ", ".join(listed[:_SHOWN_MAX]) + more


CHECKS = (
    Check("vantages", vantages, "read endpoint"),
    Check("engine steps", engines, "read endpoint"),
    Check("engine ids", engine_ids, "read endpoint"),
    Check("emitters' clocks", emitters_clocks, "read endpoint"),
    Check("rejected", rejections, "read endpoint"),
    Check("instances", instances, "read endpoint"),
    Check("keeping up", keeping_up, "OTLP endpoint"),
)
