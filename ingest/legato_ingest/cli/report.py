"""`legato report`: how streams felt, by model, service and vantage.

One idea: a figure never stands without the number of streams that know it; the query (`queries.REPORT`) gives both, this page gives them
names and units. It asks once, and judges nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from legato_ingest.cli.client import Reader
from legato_ingest.cli.format import clean, count, duration, n_of, ratio, share
from legato_ingest.cli.queries import REPORT

__all__ = ["Question", "as_json", "fetch", "nothing", "render"]

_NO_STREAMS = (
    "no streams yet{where}\n\nHow to get some:\n"
    "  make demo                         real streams, replayed and recorded here\n"
    "  legato.configure()                in your application, then legato.instrument_openai()\n"
    "  OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318\n"
    "                                    for any application that has OpenTelemetry already"
)


@dataclass(frozen=True, slots=True)
class Question:
    """What a report is about: since when (0: ever), of whom, and the limits of a good stream."""

    since_s: int = 3_600
    model: str = ""
    service: str = ""
    vantage: str = ""
    gap_ms: int = 400
    first_ms: int = 2_000
    groups_max: int = 50

    def parameters(self) -> dict[str, str | int]:
        """As the query binds them."""
        return {
            "since_s": self.since_s,
            "model": self.model,
            "service": self.service,
            "vantage": self.vantage,
            "gap_us": self.gap_ms * 1_000,
            "first_us": self.first_ms * 1_000,
            "limit": self.groups_max + 1,
        }


def fetch(reader: Reader, question: Question) -> list[dict[str, Any]]:
    """One row a group, largest first; one more than ``groups_max`` when there are more. Raises ``ReadError``."""
    return reader.rows(REPORT, question.parameters())


def as_json(rows: Sequence[dict[str, Any]], question: Question) -> dict[str, Any]:
    """The report as data: every figure with its n; what no stream knows is null."""
    return {
        "since_s": question.since_s,
        "gap_ms": question.gap_ms,
        "first_output_ms": question.first_ms,
        "groups": [_group(row) for row in rows[: question.groups_max]],
        "more_groups": len(rows) > question.groups_max,
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


def _p99_label(n: int) -> str:
    """Up to 100 values have no p99 of their own: the query gives their maximum, and it is called that."""
    return "p99" if n > 100 else "max"


def render(rows: Sequence[dict[str, Any]], question: Question) -> RenderableType:
    """The report as a page for a terminal."""
    if not rows:
        return nothing(question)
    rows = [clean(row) for row in rows]
    table = Table(title=Text(f"How streams felt{_where(question)}"), title_justify="left", pad_edge=False, show_lines=True)
    table.add_column("model\nservice · vantage", overflow="fold")
    for name in (
        f"good at\n{question.gap_ms} ms",
        "p99 of\np99 gaps",
        "worst\ngap",
        "jitter\nratio",
        "TTFT\np50 / p95",
        "stalls ≥ 250 ms\nexcess over it",
    ):
        table.add_column(name, justify="right")
    table.add_column("streams, by outcome")
    for row in rows[: question.groups_max]:
        table.add_row(*_cells(row))
    return Group(table, Text(_legend(rows, question), style="dim"))


def nothing(question: Question) -> Text:
    """What to print when there is nothing to print."""
    return Text(_NO_STREAMS.format(where=_where(question)))


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


def _where(question: Question) -> str:
    parts = [] if not question.since_s else [f" in the last {_span(question.since_s)}"]
    parts += [f", {name} {value}" for name in ("model", "service", "vantage") if (value := getattr(question, name))]
    return "".join(parts)


def _span(seconds: int) -> str:
    for size, name in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        if seconds % size == 0:
            number = seconds // size
            return f"{number} {name}s" if number > 1 else name
    return f"{seconds} seconds"


def _legend(rows: Sequence[dict[str, Any]], question: Question) -> str:
    lines = [
        f"good: no gap over {question.gap_ms} ms (the open gap before a cancel too), first output within "
        f"{duration(question.first_ms * 1_000)}, no error at the end.",
        "n: the streams that know the figure; those that run, and for gaps those without a timeline, are not in it. "
        "max: up to 100 streams have no p99 of their own.",
    ]
    if len(rows) > question.groups_max:
        lines.append(f"Only the {question.groups_max} largest groups are shown: narrow it with --model, --service or --vantage.")
    return "\n".join(lines)
