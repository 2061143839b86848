"""One page of Markdown about a range of time, to paste into a ticket.

What broke in which services, since when, the causes and the engine events behind them, the worst streams, and what changed: releases,
models, traffic and chunking, compared with the time of equal length before. The module sends queries and renders their rows; it judges
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from legato_ingest.causes import BY_NAME
from legato_ingest.reports import blame
from legato_ingest.reports.format import DASH, clean, count, duration, limit, share, some
from legato_ingest.reports.rows import Row, Run
from legato_ingest.reports.time_range import TimeRange, utc

__all__ = ["LEFT_OUT", "Incident", "IncidentQuery", "fetch", "render"]

# Columns that a narrow terminal leaves out, the first one first. The piped page has all of them.
LEFT_OUT = ("bad minutes", "start (UTC)", "model", "TTFT", "engine", "streams", "before", "outcome", "meaning", "end users hit")

_RANGE = "start_time >= fromUnixTimestamp64Nano({from_ns:Int64}) AND start_time < fromUnixTimestamp64Nano({to_ns:Int64})"
_BEFORE = "start_time >= fromUnixTimestamp64Nano({before_ns:Int64}) AND start_time < fromUnixTimestamp64Nano({from_ns:Int64})"
_BOTH = "start_time >= fromUnixTimestamp64Nano({before_ns:Int64}) AND start_time < fromUnixTimestamp64Nano({to_ns:Int64})"
_WHICH = "({service:String} = '' OR service_name = {service:String}) AND ({tenant:String} = '' OR tenant = {tenant:String})"
# What GitHub and GitLab make a link or a mention of: addresses, names of people, numbers of issues.
_LINKED = re.compile(r"://|www\.|@|#", re.IGNORECASE)
# An incident has begun in the first minute with three bad streams or more that are a tenth of the minute's streams.
_BAD_MIN, _SHARE_MIN = 3, 0.1
BAD = f"""
SELECT
    service_name AS service, vantage, sumIf(judged, in_range) AS streams, sumIf(wrong, in_range) AS bad,
    sumIf(judged, NOT in_range) AS before, sumIf(wrong, NOT in_range) AS bad_before,
    toString(minIf(minute, in_range AND wrong >= {_BAD_MIN} AND wrong >= {_SHARE_MIN} * judged)) AS since,
    countIf(in_range AND wrong >= {_BAD_MIN} AND wrong >= {_SHARE_MIN} * judged) AS minutes,
    length(arrayDistinct(arrayFlatten(groupArrayIf(hit, in_range)))) AS users,
    groupUniqArrayArray(gap_limits) AS gap_limits_us, groupUniqArrayArray(first_limits) AS first_limits_us
FROM
(
    SELECT
        service_name, vantage, toStartOfMinute(start_time) AS minute, {_RANGE} AS in_range, count(good) AS judged,
        countIf(good = 0) AS wrong, groupUniqArrayIf(client_hash, client_hash != '' AND good = 0) AS hit,
        groupUniqArray(gap_limit_us) AS gap_limits, groupUniqArray(first_output_limit_us) AS first_limits
    FROM streams
    WHERE {_BOTH} AND {_WHICH}
    GROUP BY service_name, vantage, minute, in_range
)
GROUP BY service, vantage
HAVING streams > 0
ORDER BY bad DESC, streams DESC, service, vantage
LIMIT 50
"""
WORST = f"""
SELECT
    lower(hex(trace_id)) AS trace, toString(toDateTime(start_time, 'UTC')) AS start, service_name AS service, vantage, model, outcome,
    gap_max_us, ttft_us
FROM streams
WHERE {_RANGE} AND {_WHICH} AND good = 0
-- A stream that was recorded at several vantages is listed once.
ORDER BY gap_max_us DESC NULLS LAST, trace
LIMIT 1 BY trace
LIMIT 10
"""
# A value is new if the time before has streams and none with this value.
CHANGES = f"""
SELECT what, service, value, toString(toDateTime(min(first_at), 'UTC')) AS first_at, sumIf(n, in_range) AS streams
FROM
(
    SELECT change.1 AS what, service, change.2 AS value, in_range, min(start_time) AS first_at, count() AS n
    FROM
    (
        SELECT
            service_name AS service, start_time, {_RANGE} AS in_range,
            arrayJoin([('release', service_version::String), ('model', model::String), ('engine', engine_id::String)]) AS change
        FROM streams
        WHERE {_BOTH} AND {_WHICH}
    )
    WHERE value != ''
    GROUP BY what, service, value, in_range
)
WHERE service IN (SELECT service_name FROM streams WHERE {_BEFORE} AND {_WHICH})
GROUP BY what, service, value
HAVING countIf(NOT in_range) = 0
ORDER BY first_at, what, value
LIMIT 30
"""
CHUNKING = f"""
SELECT service_name AS service, model, provider, kind, toString(changed_at) AS changed, share_before, share_after
FROM chunking_changes FINAL
WHERE found AND changed_at >= toDateTime(fromUnixTimestamp64Nano({{before_ns:Int64}}))
    AND changed_at < toDateTime(fromUnixTimestamp64Nano({{to_ns:Int64}})) AND {_WHICH}
ORDER BY changed_at
LIMIT 10
"""


@dataclass(frozen=True, slots=True)
class IncidentQuery:
    """The range (unix ns; both ends are known) and the filters; empty: any."""

    from_ns: int
    to_ns: int
    service: str = ""
    tenant: str = ""

    def parameters(self) -> dict[str, str | int]:
        """Return the parameters of the SQL."""
        return {
            "from_ns": self.from_ns,
            "to_ns": self.to_ns,
            "before_ns": max(1, 2 * self.from_ns - self.to_ns),
            "service": self.service,
            "tenant": self.tenant,
        }


@dataclass(frozen=True, slots=True)
class Incident:
    """The rows of the queries, and what `legato blame` says of the range."""

    query: IncidentQuery
    bad: Sequence[Row]
    worst: Sequence[Row]
    changes: Sequence[Row]
    chunking: Sequence[Row]
    causes: blame.BlameResult


def fetch(run: Run, query: IncidentQuery) -> Incident:
    """Send the queries. Raises what ``run`` raises."""
    which = query.parameters()
    when = TimeRange(0, query.from_ns, query.to_ns)
    causes = blame.fetch(run, blame.BlameQuery(when, service=query.service, tenant=query.tenant))
    bad, worst, changes, chunking = (clean(run(sql, which)) for sql in (BAD, WORST, CHANGES, CHUNKING))
    return Incident(query, bad, worst, changes, chunking, causes)


def render(incident: Incident) -> str:
    """Return the page."""
    return "\n".join([*_summary(incident), *_causes(incident.causes), *_worst(incident.worst), *_changes(incident)]) + "\n"


def _summary(incident: Incident) -> Iterator[str]:
    query = incident.query
    yield f"# Incident {utc(query.from_ns)} to {utc(query.to_ns)} UTC{f', {_name(clean(query.service))}' if query.service else ''}"
    yield ""
    if not incident.bad:
        yield from ("No stream was recorded in this time.", "")
        return
    yield (
        f"Bad: a gap above {limit(incident.bad, 'gap_limits_us')}, a first output after {limit(incident.bad, 'first_limits_us')}, "
        "or an error. Before: the time of equal length before."
    )
    yield ""
    if not any(row["bad"] for row in incident.bad):
        yield "No stream was bad in this time."
        yield ""
        return
    yield from _table(
        ("service · vantage", "bad streams", "share", "before", "end users hit", "since (UTC)", "bad minutes"),
        (
            (
                f"{_name(row['service']) or '(no service)'} · {row['vantage']}",
                f"{count(int(row['bad']))} of {count(int(row['streams']))}",
                share(int(row["bad"]), int(row["streams"])),
                share(int(row["bad_before"]), int(row["before"])),
                count(int(row["users"])) if int(row["users"]) else "unknown",
                row["since"] if int(row["minutes"]) else DASH,
                count(int(row["minutes"])),
            )
            for row in incident.bad
        ),
    )


def _causes(found: blame.BlameResult) -> Iterator[str]:
    unjudged = blame.unjudged(found)
    if unjudged and not found.causes:
        yield from (unjudged, "")
    charged = blame.charged_us(found)
    whole = sum(charged.values())
    if not whole and not found.elsewhere:
        return
    yield "## Causes"
    yield ""
    if found.elsewhere:
        yield f"Judged at the clients, on the page of their service: {some(found.elsewhere, 'stall')} of its streams."
        yield ""
    if not whole:
        return
    named = {row["cause"]: row for row in found.causes}
    yield from _table(
        ("cause", "meaning", "stalled time", "share", "stalls"),
        (
            (
                f"`{name}`",
                BY_NAME[name].meaning,
                duration(us),
                share(us, whole),
                count(int(named[name]["stalls"])) if name in named else "0",
            )
            for name, us in charged.items()
            if us >= 0.01 * whole
        ),
    )
    if unjudged:
        yield from (unjudged, "")
    if found.events:
        yield "## Engine events"
        yield ""
        yield from _table(
            ("when (UTC)", "engine", "event", "streams", "stalled time"),
            (
                (
                    row["happened"][:23],
                    _name(row["engine_id"]),
                    _name(blame.event_of(row)),
                    count(int(row["streams"])),
                    duration(int(row["excess_us"])),
                )
                for row in (clean(each) for each in found.events[:5])
            ),
        )


def _worst(rows: Sequence[Row]) -> Iterator[str]:
    if not rows:
        return
    yield "## Worst streams"
    yield ""
    yield from _table(
        ("stream", "start (UTC)", "service · vantage", "model", "longest gap", "TTFT", "outcome"),
        (
            (
                f"`{row['trace']}`",
                row["start"],
                f"{_name(row['service'])} · {row['vantage']}",
                _name(row["model"]),
                duration(_int(row["gap_max_us"])),
                duration(_int(row["ttft_us"])),
                row["outcome"],
            )
            for row in rows
        ),
    )


def _changes(incident: Incident) -> Iterator[str]:
    yield "## What changed"
    yield ""
    lines = [
        f"{row['first_at']}: new {row['what']} {_code(row['value'])} of {_name(row['service']) or '(no service)'}"
        for row in incident.changes
    ]
    for row in incident.bad:
        now, before = int(row["streams"]), int(row["before"])
        if before and not 0.5 <= now / before <= 2:
            lines.append(f"{_name(row['service'])} · {row['vantage']}: {some(now, 'stream')}, {count(before)} before")
    lines += [
        f"{row['changed']}: chunking of {_name(row['provider'] or row['service'])} {_name(row['model'])}, chunks with several tokens "
        f"{100 * float(row['share_before']):.0f} % to {100 * float(row['share_after']):.0f} %"
        for row in incident.chunking
    ]
    yield from (f"- {line}" for line in lines or ["no new release, model or engine, and no change of traffic by half or double"])


def _table(head: Sequence[str], rows: Iterator[Sequence[str]] | Any) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
    yield ""


def _name(text: Any) -> str:
    """A name from a sender, which must stay text in Markdown: `[Log in](https://…)` is no link, and `@someone` no mention.

    GitHub and GitLab make links of addresses and mentions of names also where they are escaped, but not in code.
    """
    name = str(text)
    return _code(name) if _LINKED.search(name) else re.sub(r"([\\`\[\]<>&])", r"\\\1", name)


def _code(text: str) -> str:
    """The text as code in Markdown."""
    return f"`{text.replace('`', '´')}`"


def _int(value: Any) -> int | None:
    return None if value is None else int(value)
