"""`legato report`: goodput, gaps, jitter and first tokens, by model, service and vantage.

The query (``queries.REPORT``) returns each figure with the number of streams that it is computed from; this module adds names and units. It
sends one query and judges no stream itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from legato_ingest.cli.client import Reader
from legato_ingest.cli.format import clean, count, duration, milliseconds, n_of, ratio, share
from legato_ingest.cli.queries import REPORT
from legato_ingest.definitions import SLO_FIRST_OUTPUT_MS, SLO_GAP_MS

__all__ = ["ReportQuery", "as_json", "fetch", "no_streams", "render"]

_NO_STREAMS = (
    "no streams yet{where}\n\nTo record some:\n"
    "  make demo                         replays and records real streams on this host\n"
    "  legato.configure()                in your application, then legato.instrument_openai()\n"
    "  OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318\n"
    "                                    for any application that already uses OpenTelemetry"
)


@dataclass(frozen=True, slots=True)
class ReportQuery:
    """The streams of a report and the limits of a good stream. ``since_s``: seconds before now; 0: no limit. Empty: any."""

    since_s: int = 3_600
    model: str = ""
    service: str = ""
    vantage: str = ""
    gap_ms: float = SLO_GAP_MS
    first_ms: float = SLO_FIRST_OUTPUT_MS
    groups_max: int = 50

    def parameters(self) -> dict[str, str | int]:
        """The parameters of the SQL."""
        return {
            "since_s": self.since_s,
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
        "since_s": query.since_s,
        "gap_ms": _number(query.gap_ms),
        "first_output_ms": _number(query.first_ms),
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


def _number(value: float) -> float:
    """An integer where the limit is one, so that JSON shows 400 and not 400.0."""
    return int(value) if value == int(value) else value


def _p99_label(n: int) -> str:
    """The query returns the maximum of up to 100 values, and the label says so."""
    return "p99" if n > 100 else "max"


def render(rows: Sequence[dict[str, Any]], query: ReportQuery) -> RenderableType:
    """Return the report for a terminal."""
    if not rows:
        return no_streams(query)
    rows = [clean(row) for row in rows]
    table = Table(title=Text(f"Streams{_where(query)}"), title_justify="left", pad_edge=False, show_lines=True)
    table.add_column("model\nservice · vantage", overflow="fold")
    for name in (
        f"good at\n{milliseconds(query.gap_ms)}",
        "p99 of\np99 gaps",
        "worst\ngap",
        "jitter\nratio",
        "TTFT\np50 / p95",
        "stalls ≥ 250 ms\nexcess over it",
    ):
        table.add_column(name, justify="right")
    table.add_column("streams, by outcome")
    for row in rows[: query.groups_max]:
        table.add_row(*_cells(row))
    return Group(table, Text(_legend(rows, query), style="dim"))


def no_streams(query: ReportQuery) -> Text:
    """Return the text for a store without matching streams: how to record some."""
    return Text(_NO_STREAMS.format(where=_where(query)))


def _cells(row: dict[str, Any]) -> list[RenderableType]:
    bad = row["judged"] - row["good"]
    streams = "stream" if row["stalled"] == 1 else "streams"
    stalls = f"{count(row['stalls'])} in {count(row['stalled'])} {streams}\n{duration(row['excess_us'])}\n{n_of(row['stalls_n'])}"
    label = f"{_p99_label(row['gap_n'])} " if row["gap_n"] and row["gap_n"] <= 100 else ""
    return [
        Text.assemble((row["model"] or "(no model)", "bold"), f"\n{row['service'] or '(no service)'} · {row['vantage'] or '(no vantage)'}"),
        Text(f"{share(row['good'], row['judged'])}\n{n_of(row['judged'])}", style="red" if bad else "green" if row["judged"] else ""),
        f"{label}{duration(row['gap_p99_p99_us'])}\n{n_of(row['gap_n'])}",
        f"{duration(row['gap_worst_us'])}\n{n_of(row['gap_n'])}",
        f"{ratio(row['jitter_p50'])}\n{n_of(row['jitter_n'])}",
        f"{duration(row['ttft_p50_us'])} / {duration(row['ttft_p95_us'])}\n{n_of(row['ttft_n'])}",
        stalls if row["stalls_n"] else f"{duration(None)}\n{n_of(0)}",
        Text("\n".join(f"{count(n)} {outcome}" for outcome, n in sorted(row["outcomes"].items(), key=lambda item: -item[1]))),
    ]


def _where(query: ReportQuery) -> str:
    parts = [] if not query.since_s else [f" in the last {_span(query.since_s)}"]
    parts += [f", {name} {value}" for name in ("model", "service", "vantage") if (value := getattr(query, name))]
    return "".join(parts)


def _span(seconds: int) -> str:
    for size, name in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        if seconds % size == 0:
            number = seconds // size
            return f"{number} {name}s" if number > 1 else name
    return f"{seconds} seconds"


def _legend(rows: Sequence[dict[str, Any]], query: ReportQuery) -> str:
    lines = [
        f"good: no gap above {milliseconds(query.gap_ms)} (including the open gap before a cancel), first output within "
        f"{duration(query.first_ms * 1_000)}, no error at the end.",
        "n: streams with a known value; running streams, and for gaps streams without a timeline, are not included. "
        "max: the maximum is shown instead of the p99 for up to 100 streams.",
    ]
    if len(rows) > query.groups_max:
        lines.append(f"Only the {query.groups_max} largest groups are shown: filter with --model, --service or --vantage.")
    return "\n".join(lines)
