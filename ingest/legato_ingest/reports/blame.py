"""What stalled streams: the time charged to each cause, the counterfactuals, the engine events, and waiting times that are no gaps.

The queries are in ``queries`` and ``engine_queries``. This module sends them and adds up their rows; it judges nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from legato_ingest.causes import RESPONSES_MAX
from legato_ingest.quoting import Value
from legato_ingest.reports.engine_queries import PREFIX_CACHE, SPECULATION, SPECULATION_SCRAPED
from legato_ingest.reports.format import count
from legato_ingest.reports.queries import BLAME, BUT_FOR, ENGINE_EVENTS, FIRST_TOKENS, JUDGED_STALLS
from legato_ingest.reports.rows import Row, Run
from legato_ingest.reports.time_range import TimeRange

__all__ = ["BlameQuery", "BlameResult", "as_json", "charged_us", "event_of", "fetch", "unjudged"]

_NAMES_SHOWN = 2


@dataclass(frozen=True, slots=True)
class BlameQuery:
    """The stalls to report. Empty: any. ``limit``: number of engine events."""

    when: TimeRange = TimeRange()
    model: str = ""
    service: str = ""
    engine: str = ""
    limit: int = 10
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class BlameResult:
    """The rows of the queries: one per cause, its counterfactual, one per engine event, the number of stalls, the parts of the time
    to the first token, and speculation and prefix cache of each engine. ``elsewhere``: the stalls of matching server streams that are
    judged at their clients, so that their verdicts are not among these. An engine's speculation is in ``speculation`` (from its steps)
    or in ``speculation_scraped`` (from its scraped metrics), never in both.
    """

    causes: Sequence[Row]
    but_for: Mapping[str, Row]
    events: Sequence[Row]
    stalls: int
    judged: int
    elsewhere: int
    first_tokens: Row
    speculation: Sequence[Row]
    speculation_scraped: Sequence[Row]
    prefix_cache: Sequence[Row]


def fetch(run: Run, query: BlameQuery) -> BlameResult:
    """Send the queries. Raises what ``run`` raises."""
    parameters: dict[str, Value] = {
        **query.when.parameters(),
        "tenant": query.tenant,
        "model": query.model,
        "service": query.service,
        "vantage": "",
        "engine": query.engine,
        "limit": query.limit,
    }
    (counts,) = run(JUDGED_STALLS, parameters)
    (first,) = run(FIRST_TOKENS, parameters)
    return BlameResult(
        causes=run(BLAME, parameters),
        but_for={row["cause"]: row for row in run(BUT_FOR, parameters)},
        events=run(ENGINE_EVENTS, parameters),
        # Only verdicts have the engine of a stream, so unjudged stalls cannot be counted per engine.
        stalls=0 if query.engine else int(counts["stalls"] or 0),
        judged=int(counts["judged"]),
        # Of all services, the clients of these streams match, too.
        elsewhere=int(counts["elsewhere"] or 0) if query.service and not query.engine else 0,
        first_tokens=first,
        speculation=run(SPECULATION, parameters),
        speculation_scraped=run(SPECULATION_SCRAPED, parameters),
        prefix_cache=run(PREFIX_CACHE, parameters),
    )


def charged_us(result: BlameResult) -> dict[str, int]:
    """Return the time charged to each cause over all stalls in µs, largest first, without the healthy part (`base`)."""
    total: Counter[str] = Counter()
    for row in result.causes:
        total.update({name: int(ns) for name, ns in row["parts"].items() if name != "base"})
    return {name: ns // 1_000 for name, ns in total.most_common()}


def unjudged(result: BlameResult) -> str:
    """Return in a sentence how many stalls have no verdict; empty if all have one."""
    missing = result.stalls - result.judged
    if missing <= 0:
        return ""
    return (
        f"{count(missing)} of {count(result.stalls)} stalls of 250 ms or more have no verdict: open at the stream's end, hardly longer "
        "than a healthy step, or not judged yet."
    )


def as_json(result: BlameResult) -> dict[str, Any]:
    """Return the result as data, times in µs."""
    named = {row["cause"]: row for row in result.causes}
    charged = charged_us(result)
    names = [*charged, *(name for name in named if name not in charged)]
    return {
        "stalls_250ms": result.stalls,
        "stalls_250ms_judged": result.judged,
        "stalls_250ms_judged_at_clients": result.elsewhere,
        "stalls": sum(row["stalls"] for row in result.causes),
        "excess_us": sum(row["excess_us"] for row in result.causes),
        "causes": [
            {
                "cause": name,
                "charged_us": charged.get(name, 0),
                "stalls": named[name]["stalls"] if name in named else 0,
                "caught_up_us": int(named[name]["caught_up_us"]) if name in named else 0,
                "streams": named[name]["streams"] if name in named else 0,
                "confidences": named[name]["confidences"] if name in named else {},
                "missing": named[name]["missing"] if name in named else {},
                "without": _without(result.but_for.get(name)),
            }
            for name in names
        ],
        "replayed": {name: result.but_for.get("", {}).get(name, 0) for name in ("streams", "stalls", "stalled_us")},
        "events": list(result.events),
        "first_tokens": dict(result.first_tokens),
        "speculation": list(result.speculation),
        "speculation_by_page": list(result.speculation_scraped),
        "prefix_cache": list(result.prefix_cache),
    }


def _without(row: Row | None) -> dict[str, Any] | None:
    return None if row is None else {name: value for name, value in row.items() if name != "cause"}


def event_of(row: Row) -> str:
    """Return an engine event (a row of ``events``) in words."""
    names = ", ".join(row["responses"][:_NAMES_SHOWN])
    more = len(row["responses"]) - _NAMES_SHOWN
    at_least = "at least " if len(row["responses"]) >= RESPONSES_MAX else ""
    who = f": {names}{f' and {at_least}{more} more' if more > 0 else ''}" if names else ""
    if row["cause"] == "scheduling":
        return f"{count(row['prefill_tokens'])} prompt tokens prefilled{who}"
    if row["cause"] == "kv_pressure":
        waited = row["stalls"] - row["own"]
        done = [f"preempted{who}"] if row["own"] else []
        done += [f"recompute of {count(row['recompute_tokens'])} tokens{'' if row['own'] else who}"] if waited else []
        return "; ".join(done)
    if row["cause"] == "front_end":
        return f"the front end did not send after step {row['step']}"
    return f"step {row['step']} took longer than its work explains"
