"""The definitions that several rooms share: what is content, an error, a stall, a good stream, and which columns are dimensions.

Each definition is written here once; docs/concepts.md explains it. The causes of stalls are in ``causes``. This module holds constants and
pure functions on names and tenants; it imports nothing of Legato.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

__all__ = [
    "ALL_TENANTS",
    "CONTENT_KINDS",
    "CONTENT_KINDS_SQL",
    "DIMENSIONS",
    "ERRORS",
    "FIRST_OUTPUT_US",
    "HOLD_STEP_US",
    "OPEN_ENDED",
    "OUTCOMES",
    "REASONING",
    "SLO_FIRST_OUTPUT_MS",
    "SLO_GAP_MS",
    "SLO_RESULTS",
    "SLO_TARGET",
    "STALL_EXCESS_MS",
    "STALL_MS",
    "SUPERSEDED_OUTCOME",
    "TEXT",
    "TOOL",
    "UNKNOWN_OUTCOME",
    "VANTAGES",
    "by_tenant",
    "VERDICT_SCOPE",
    "counter_growth",
    "count_streams",
    "server_of",
]

# The points at which a stream can be recorded, from the engine to the end user.
VANTAGES = ("engine", "server", "gateway", "client", "screen")

# Kinds of chunks that carry content (schema/TIMELINE.md). Role, usage, heartbeat, retract and done chunks carry none.
TEXT, REASONING, TOOL = 1, 2, 3
CONTENT_KINDS = (TEXT, REASONING, TOOL)
CONTENT_KINDS_SQL = str(CONTENT_KINDS)
# Holds are stored in steps of this many microseconds (schema/TIMELINE.md).
HOLD_STEP_US = 64

OUTCOMES = frozenset(("complete", "client_cancel", "timeout", "upstream_error", "abandoned", "engine_abort"))
# The outcome of a stream of a foreign emitter that does not say how the stream ended. It is no failure, and the wait at its end is unknown.
UNKNOWN_OUTCOME = "unknown"
# The outcome of a stored row that steps back for a richer row of the same response; no reader sees it.
SUPERSEDED_OUTCOME = "superseded"
# Outcomes that are failures. An abandoned stream belongs to an application that died: its user never saw an end.
ERRORS = ("timeout", "upstream_error", "engine_abort", "abandoned")
# Outcomes after which the time since the last content counts as a gap (the open gap): a user waited for it.
OPEN_ENDED = frozenset(("client_cancel", *ERRORS))

# A stall is a gap of at least STALL_MS; attribution judges a stall when at least STALL_EXCESS_MS of it is beyond a healthy engine step.
STALL_MS = 250.0
STALL_EXCESS_MS = 50.0
# Defaults of the objectives (`objectives`): the limits of a good stream, and the share of the streams that has to be good. The settings
# LEGATO_SLO_GAP_MS and LEGATO_SLO_FIRST_OUTPUT_MS change the limits. The view `current_objectives` has the same figures.
SLO_GAP_MS = 400.0
SLO_FIRST_OUTPUT_MS = 2000.0
SLO_TARGET = 0.99
# Results of a judged stream: good, or the first of gap, error, late that applies.
SLO_RESULTS = ("good", "gap", "error", "late")

# Time to the first visible text; for a stream without text (tool calls) to its first content; without content, the stream's duration.
# 0 where there is content and the start of the request is unknown: it cannot be known to be late.
FIRST_OUTPUT_US = "coalesce(ttfo_us, ttft_us, if(content_chunks > 0, 0, intDiv(duration_ns, 1000)))"

# Columns of `streams` by which rollups, dashboards and quotas group streams.
DIMENSIONS = ("vantage", "service_name", "model", "provider", "service_version", "route", "transport")

# The instrumentation scope of the spans about stalls that `legato serve` sends to a trace backend. Legato's own receiver ignores it.
VERDICT_SCOPE = "legato.verdicts"

# The tenant of a token that reads the rows of all tenants.
ALL_TENANTS = "*"


class _OfTenant(Protocol):
    @property
    def tenant(self) -> str: ...


_T = TypeVar("_T", bound=_OfTenant)


def by_tenant(rows: Iterable[_T]) -> dict[str, list[_T]]:
    """Return what each tenant has of these, in their order."""
    found: dict[str, list[_T]] = {}
    for each in rows:
        found.setdefault(each.tenant, []).append(each)
    return found


def counter_growth(at: str = "recorded_at", first: str = "value", last: str = "value", within: str = "0.") -> str:
    """Return two columns of a SELECT from samples: ``before``, the counter's value before this row, and ``grown``, the growth since then.

    ``before`` is NULL in the first row of a series. A fall is a restart from 0. ``attribution.model.counters`` has the same in Python, but
    leaves out what a restarted counter holds at its first sample, because it need not belong to the stall. A row can stand for several
    samples: ``first`` and ``last`` are then the columns of their values, and ``within`` that of the growth between them.
    """
    return f"""lagInFrame(toNullable({last})) OVER
            (
                PARTITION BY tenant, metric, engine_id, host, series
                ORDER BY {at} ROWS BETWEEN 1 PRECEDING AND CURRENT ROW
            ) AS before,
            {within} + if(before IS NULL, 0., assumeNotNull(if({first} >= before, {first} - before, {first}))) AS grown"""


def count_streams(rows: str) -> str:
    """Return a SELECT of the number of ``streams`` among rows of their vantages. ``rows``: a table and its conditions.

    A stream has a row at each of its vantages, and a trace can have several streams, as of an agent that calls several models at once: as
    many as it has spans at the vantage with the most.
    """
    return f"""SELECT sum(most) AS streams
    FROM
    (
        SELECT max(spans) AS most
        FROM (SELECT tenant, trace_id, uniqExact(span_id) AS spans FROM {rows} GROUP BY tenant, trace_id, vantage)
        GROUP BY tenant, trace_id
    )"""


def server_of(engine_id: str) -> str:
    """Return the id of the server that runs this engine: data-parallel ranks are named SERVER/RANK. Other ids are returned as they are."""
    server, slash, rank = engine_id.rpartition("/")
    return server if slash and rank.isdecimal() else engine_id
