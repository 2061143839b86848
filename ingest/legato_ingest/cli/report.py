"""`legato report`: goodput, gaps, jitter and first tokens, by model, service and vantage.

The query (``queries.REPORT``) returns each figure with the number of streams that it is computed from; this module adds names and units. It
sends one query and judges no stream itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from legato_ingest.cli.client import Reader
from legato_ingest.cli.layout import Column, FittedTable, Prose
from legato_ingest.reports.format import clean, count, duration, limit, n_of, ratio, share
from legato_ingest.reports.queries import REPORT
from legato_ingest.reports.time_range import TimeRange

__all__ = ["ReportQuery", "as_json", "fetch", "no_streams", "render"]

_NO_STREAMS = (
    "no streams yet\n\nTo record some:\n"
    "  make demo                         replays and records real streams on this host\n"
    "  python -m legato run app.py       in front of your application, without a change of its code\n"
    "  legato.configure()                in your application, then legato.instrument()\n"
    "  OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318\n"
    "                                    for any application that already uses OpenTelemetry"
)


@dataclass(frozen=True, slots=True)
class ReportQuery:
    """The streams of a report; empty: any. ``gap_ms``, ``first_ms``: limits of a good stream instead of those of its objective; 0: none."""

    when: TimeRange = TimeRange()
    model: str = ""
    service: str = ""
    vantage: str = ""
    gap_ms: float = 0
    first_ms: float = 0
    groups_max: int = 50
    tenant: str = ""

    def parameters(self) -> dict[str, str | int]:
        """The parameters of the SQL."""
        return {
            **self.when.parameters(),
            "tenant": self.tenant,
            "model": self.model,
            "service": self.service,
            "vantage": self.vantage,
            "gap_us": round(self.gap_ms * 1_000),
            "first_us": round(self.first_ms * 1_000),
            "limit": self.groups_max + 1,
        }


def fetch(reader: Reader, query: ReportQuery) -> list[dict[str, Any]]:
    """Return one row per group, largest first; one more than ``groups_max`` when there are more. Raises ``ReadError``."""
    return reader.rows(REPORT, query.parameters())


def as_json(rows: Sequence[dict[str, Any]], query: ReportQuery) -> dict[str, Any]:
    """Return the report as data: every figure with its n; null where no stream has a value."""
    return {
        **query.when.parameters(),
        "groups": [_group(row) for row in rows[: query.groups_max]],
        "more_groups": len(rows) > query.groups_max,
    }


def _group(row: dict[str, Any]) -> dict[str, Any]:
    known = bool(row["stalls_n"])
    return {
        "model": row["model"],
        "service": row["service"],
        "vantage": row["vantage"],
        "streams": row["streams"],
        "running": row["running"],
        "limits": {"gap_ms": _numbers(row["gap_limits_us"]), "first_output_ms": _numbers(row["first_limits_us"])},
        "goodput": {"value": row["good"] / row["judged"] if row["judged"] else None, "good": row["good"], "n": row["judged"]},
        "gap_p99_of_p99_ms": {"value": _ms(row["gap_p99_p99_us"]), "n": row["gap_n"], "label": _p99_label(row["gap_n"])},
        "gap_max_ms": {"value": _ms(row["gap_worst_us"]), "n": row["gap_n"]},
        "jitter_ratio_p50": {"value": row["jitter_p50"], "n": row["jitter_n"]},
        "ttft_ms": {"p50": _ms(row["ttft_p50_us"]), "p95": _ms(row["ttft_p95_us"]), "n": row["ttft_n"]},
        "stalls_250ms": {"value": row["stalls"] if known else None, "streams": row["stalled"], "n": row["stalls_n"]},
        "excess_250ms_ms": {"value": _ms(row["excess_us"]) if known else None, "n": row["stalls_n"]},
        "outcomes": row["outcomes"],
    }


def _ms(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1_000


def _numbers(limits_us: Sequence[Any]) -> list[float]:
    """Return limits in ms: an integer where the limit is one, so that JSON shows 400 and not 400.0."""
    values = [int(us) / 1_000 for us in limits_us]
    return [int(value) if value == int(value) else value for value in values]


def _p99_label(n: int) -> str:
    """The query returns the maximum of up to 100 values, and the label says so."""
    return "p99" if n > 100 else "max"


def render(rows: Sequence[dict[str, Any]], query: ReportQuery) -> RenderableType:
    """Return the report for a terminal."""
    rows = [clean(row) for row in rows]
    columns = (
        Column("model\nservice · vantage", folds=14),
        Column(f"good at\n{limit(rows, 'gap_limits_us')}", right=True),
        Column("p99 of\np99 gaps", drop=4, right=True),
        Column("worst\ngap", right=True),
        Column("jitter\nratio", drop=5, right=True),
        Column("TTFT\np50 / p95", drop=2, right=True),
        Column("stalls ≥ 250 ms\nexcess over it", drop=1, right=True),
        Column("streams,\nby outcome", drop=3),
    )
    table = FittedTable(columns, f"Streams{_where(query)}", lines=True)
    for row in rows[: query.groups_max]:
        table.add_row(*_cells(row))
    return Group(table, Prose(_legend(rows, query), style="dim"))


def no_streams(query: ReportQuery, store_has_streams: bool, *, also: bool = False) -> Text:
    """Return the text for a query without rows: how to record streams, or which filter left none. ``also``: there were further filters."""
    if not store_has_streams:
        return Text(_NO_STREAMS)
    others = " and the other filters" if also else ""
    return Prose(f"no stream matches{_where(query)}{others}: choose a longer time, or remove a filter (`legato streams --since all`)")


def _cells(row: dict[str, Any]) -> list[str | Text]:
    bad = row["judged"] - row["good"]
    streams = "stream" if row["stalled"] == 1 else "streams"
    stalls = f"{count(row['stalls'])} in {count(row['stalled'])} {streams}\n{duration(row['excess_us'])}\n{n_of(row['stalls_n'])}"
    label = f"{_p99_label(row['gap_n'])} " if row["gap_n"] and row["gap_n"] <= 100 else ""
    return [
        Text.assemble((row["model"] or "(no model)", "bold"), f"\n{row['service'] or '(no service)'} · {row['vantage'] or '(no vantage)'}"),
        Text.assemble(f"{share(row['good'], row['judged'])}\n{n_of(row['judged'])}", (f"\n{count(bad)} bad" if bad else "", "red")),
        f"{label}{duration(row['gap_p99_p99_us'])}\n{n_of(row['gap_n'])}",
        f"{duration(row['gap_worst_us'])}\n{n_of(row['gap_n'])}",
        f"{ratio(row['jitter_p50'])}\n{n_of(row['jitter_n'])}",
        f"{duration(row['ttft_p50_us'])} / {duration(row['ttft_p95_us'])}\n{n_of(row['ttft_n'])}",
        stalls if row["stalls_n"] else f"{duration(None)}\n{n_of(0)}",
        "\n".join(f"{count(n)} {outcome}" for outcome, n in sorted(row["outcomes"].items(), key=lambda item: -item[1])),
    ]


def _where(query: ReportQuery) -> str:
    names = ("model", "service", "vantage", "tenant")
    return "".join([str(query.when), *(f", {name} {value}" for name in names if (value := getattr(query, name)))])


def _legend(rows: Sequence[dict[str, Any]], query: ReportQuery) -> str:
    lines = [
        f"good: no gap above {limit(rows, 'gap_limits_us')} (including the open gap before a cancel), first output within "
        f"{limit(rows, 'first_limits_us')}, no error at the end.",
        "n: streams with a known value; running streams, and for gaps streams without a timeline, are not included. "
        "max: the maximum is shown instead of the p99 for up to 100 streams.",
    ]
    if len(rows) > query.groups_max:
        lines.append(f"Only the {query.groups_max} largest groups are shown: filter with --model, --service or --vantage.")
    return "\n".join(lines)
