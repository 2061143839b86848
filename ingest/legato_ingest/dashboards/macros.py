"""Expand the variables and macros of a panel's SQL in the same way as Grafana and its ClickHouse plugin, so that it runs without them.

The expanded text equals that of grafana-clickhouse-datasource 4.20. Only the macros that Legato's panels use are supported; any other macro
is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from legato_ingest.errors import LegatoError

__all__ = ["MacroError", "Range", "expand", "with_macros", "with_variables"]

Values = Mapping[str, str | Sequence[str]]
_VARIABLE = re.compile(r"\$\{(\w+)(?::(\w+))?\}")
_MACRO = re.compile(r"\$__(\w+)(\(([^()]*)\))?")
_ALL = "$__all"
# JavaScript's encodeURIComponent leaves these too; Grafana encodes them as well.
_UNESCAPED = "-_.~"


class MacroError(LegatoError):
    """The SQL has a variable or a macro that cannot be expanded."""


@dataclass(frozen=True, slots=True)
class Range:
    """The time range of a panel: from and to in ms since the epoch, and the interval of its points in ms."""

    from_ms: int
    to_ms: int
    interval_ms: int = 60_000


def expand(sql: str, span: Range, values: Values | None = None) -> str:
    """Return the statement with its variables, then its macros, expanded. Raises ``MacroError``."""
    return with_macros(with_variables(sql, values), span)


def with_variables(sql: str, values: Values | None = None) -> str:
    """Return the statement with its variables expanded, as Grafana's front end does it. Raises ``MacroError``.

    A variable that ``values`` lacks is at "All". Only the format ``queryparam`` is accepted: a value can break out of all other formats.
    """

    def filled(match: re.Match[str]) -> str:
        name, form = match.groups()
        if form != "queryparam":
            raise MacroError(
                f"the variable {name} has the format {form}, expected queryparam: with other formats a value can change the statement"
            )
        given = (values or {}).get(name, _ALL)
        return "&".join(f"var-{name}={_encoded(value)}" for value in ([given] if isinstance(given, str) else given))

    return _VARIABLE.sub(filled, sql)


def with_macros(sql: str, span: Range) -> str:
    """Return the statement with its macros expanded, as the plugin's back end does it. Raises ``MacroError``."""

    def filled(match: re.Match[str]) -> str:
        name, _, argument = match.groups()
        return _ALL if match.group(0) == _ALL else _macro(name, (argument or "").strip(), span)

    return _MACRO.sub(filled, sql)


def _encoded(value: str) -> str:
    """A value in Grafana's encoding; the value for "All" is not encoded, as in Grafana's URLs."""
    return value if value == _ALL else quote(value, safe=_UNESCAPED)


def _macro(name: str, argument: str, span: Range) -> str:
    low, high, seconds = span.from_ms // 1000, span.to_ms // 1000, max(1, span.interval_ms // 1000)
    low_ms, high_ms = (f"fromUnixTimestamp64Milli({moment})" for moment in (span.from_ms, span.to_ms))
    known = {
        "timeFilter": f"{argument} >= toDateTime({low}) AND {argument} <= toDateTime({high})",
        "timeFilter_ms": f"{argument} >= {low_ms} AND {argument} <= {high_ms}",
        "fromTime": f"toDateTime({low})",
        "toTime": f"toDateTime({high})",
        "fromTime_ms": low_ms,
        "toTime_ms": high_ms,
        "timeInterval": f"toStartOfInterval(toDateTime({argument}), INTERVAL {seconds} second)",
        "timeInterval_ms": f"toStartOfInterval(toDateTime64({argument}, 3), INTERVAL {span.interval_ms} millisecond)",
        "interval_s": str(seconds),
        "interval_ms": str(span.interval_ms),
    }
    if name not in known:
        raise MacroError(f"$__{name} is not a macro of Legato's panels: expected one of {', '.join(sorted(known))}")
    return known[name]
