"""`legato blame`: the causes of stalls, the engine events behind them, and waiting times that are no gaps.

Causes are ranked by the time charged to them; the counterfactuals give the effect of fixing one cause alone. This module renders the rows
of ``reports.blame``; it judges nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from legato_ingest.causes import UNEXPLAINED
from legato_ingest.cli.layout import Column, FittedTable, Prose
from legato_ingest.reports.blame import BlameResult, charged_us, event_of, unjudged
from legato_ingest.reports.format import DASH, clean, count, duration, limit, ratio, share, some
from legato_ingest.reports.rows import Row

__all__ = ["render"]

# The parts of the time to the first token.
_FIRST = {"queue": "the queue", "prefill": "its own prefill", "front_end": "the front end", "transit": "the network"}
_WORTH_SHARE = 0.001
_TIMES = ("stalled_max_us", "stalled_min_us")


_CAUSES = (
    Column("cause", folds=14),
    Column("time charged", right=True),
    Column("main-cause stalls", drop=2, right=True),
    Column("streams", drop=5, right=True),
    Column("confidence", drop=4, folds=12),
    Column("fixing it alone removes", drop=1, right=True),
    Column("of their time", drop=3, right=True),
)
_EVENTS = (
    Column("when (UTC)"),
    Column("engine", drop=3, folds=14),
    Column("event", folds=32),
    Column("stalls", drop=4, right=True),
    Column("streams", drop=1, right=True),
    Column("beyond healthy", right=True),
    Column("longest", drop=2, right=True),
)


def render(result: BlameResult) -> RenderableType:
    """Return the result for a terminal. A narrow one has fewer columns."""
    if not result.causes:
        return Group(Prose(_nothing(result)), *_without_gaps(result))
    stalls, excess = sum(row["stalls"] for row in result.causes), sum(row["excess_us"] for row in result.causes)
    parts: list[RenderableType] = [
        Text.assemble((some(stalls, "stall"), "bold"), f", {duration(excess)} beyond the healthy step"),
        Text(),
        _causes(result),
        Prose(_legend(result), style="dim"),
    ]
    if result.events:
        parts += [Text(), _events(result.events)]
    return Group(*parts, *_without_gaps(result))


def _without_gaps(result: BlameResult) -> list[RenderableType]:
    """The waiting times of end users that are no gaps."""
    return [*_first_tokens(result), *_prefix_cache(result), *_speculation(result)]


def _at_clients(result: BlameResult) -> str:
    return f"Judged at the clients: {some(result.elsewhere, 'stall')} of this service's streams. Give the client's service with --service."


def _nothing(result: BlameResult) -> str:
    if result.elsewhere and not result.stalls:
        return _at_clients(result)
    if result.stalls:
        return (
            f"{some(result.stalls, 'stall')}, and none has a verdict: `legato serve` judges some seconds after a stream's end, and leaves "
            "out gaps that are hardly longer than a healthy step"
        )
    return "no stall was judged: no stream stalled, or none matches; `legato streams` lists the streams (--since for a longer span)"


def _causes(result: BlameResult) -> FittedTable:
    table = FittedTable(_CAUSES)
    named, all_ = {row["cause"]: row for row in result.causes}, result.but_for.get("")
    charged = charged_us(result)
    charged_all = sum(charged.values())
    for name in [*charged, *(name for name in named if name not in charged)]:
        row, took = named.get(name), charged.get(name)
        if row is None and (took or 0) < _WORTH_SHARE * charged_all:
            continue
        time = DASH if took is None else f"{duration(took)}  {share(took, charged_all):>6}"
        who = (count(row["stalls"]), count(row["streams"])) if row else ("0", "0")
        title = Text.assemble(name, (" · unexplained", "yellow")) if name in UNEXPLAINED else name
        table.add_row(title, time, *who, _confidences(row), *_removed(all_, result.but_for.get(name)))
    return table


def _confidences(row: Row | None) -> str:
    return (
        DASH
        if row is None
        else ", ".join(f"{count(n)} {name}" for name, n in sorted(row["confidences"].items(), key=lambda each: -each[1]))
    )


def _removed(all_: Row | None, row: Row | None) -> tuple[str, str]:
    """Stalls and stalled time that fixing the cause removes from the replayed streams.

    A delay may have hidden more than it caused; then it removes nothing.
    """
    if row is None or all_ is None:
        return DASH, DASH
    stalls = [max(0, int(row["stalls"]) - int(row[name])) for name in ("stalls_max", "stalls_min")]
    times = [_percent(int(row["stalled_us"]) - int(row[name]), int(all_["stalled_us"])) for name in _TIMES]
    return f"{_range(*stalls)} of {count(int(all_['stalls']))}", f"{_range(*times)} %"


def _percent(part_us: int, whole_us: int) -> int:
    """Return a whole percentage: 100 for all and 0 for none alone."""
    if part_us <= 0 or part_us >= whole_us:
        return 0 if part_us <= 0 else 100
    return min(99, max(1, round(100 * part_us / whole_us)))


def _range(low: int, high: int) -> str:
    return f"{low:,}" + (f" to {high:,}" if low != high else "")


def _legend(result: BlameResult) -> str:
    missing: Counter[str] = Counter()
    total = sum(row["stalls"] for row in result.causes)
    for row in result.causes:
        missing.update({name: int(n) for name, n in row["missing"].items()})
    replayed = result.but_for.get("", {}).get("streams", 0)
    caught_up = -sum(int(row["caught_up_us"]) for row in result.causes)
    lines = [
        "time charged: every nanosecond beyond the healthy step, of all stalls, including stalls with another main cause."
        + (f" Of it, delayed streams caught up {duration(caught_up)}." if caught_up >= 1_000 else ""),
        f"fixing it alone: {count(int(replayed))} streams replayed without the cause, all else unchanged. Causes overlap, so these "
        "do not add up; a delay may hide other stalls.",
    ]
    worst = max(result.causes, key=lambda row: int(row["excess_us"]))["cause"]
    lines.append(f"what to do about {worst}: docs/runbook.md, or the dashboard Runbook.")
    if missing:
        lines.append("missing evidence: " + ", ".join(f"{name} for {count(n)} of {count(total)}" for name, n in sorted(missing.items())))
    if result.elsewhere:
        lines.append(f"{_at_clients(result)}.")
    if result.stalls > result.judged:
        lines.append(unjudged(result))
    return "\n".join(lines)


def _first_tokens(result: BlameResult) -> list[RenderableType]:
    """The parts of the time to the first token, in two lines."""
    row = result.first_tokens
    if not int(row["split_streams"]):
        return []
    whole = int(row["ttft_us"])
    parts = sorted(((int(row[f"{name}_us"]), words) for name, words in _FIRST.items()), reverse=True)
    line = ", ".join(f"{words} {share(max(us, 0), whole)}" for us, words in parts)
    late = sorted(((int(n), _FIRST[name]) for name, n in row["late_by"].items()), reverse=True)
    text = f"{count(int(row['late']))} of {count(int(row['streams']))} were later than {limit([row], 'first_limits_us')}"
    text += f"; the largest part was {', '.join(f'{words} in {count(n)}' for n, words in late)}" if late else ""
    known = f"parts of the total time to the first token, where known (n={count(int(row['split_streams']))}): {line}"
    return [Text(), Text("First tokens", style="bold"), Prose(f"{text}\n{known}")]


def _prefix_cache(result: BlameResult) -> list[RenderableType]:
    """For each engine: the cached share of its prompts, the time saved, and how much of it was spent in the queue."""
    rows = [clean(each) for each in result.prefix_cache]
    if not any(row["cached_tokens"] for row in rows):
        return []
    out: list[RenderableType] = [Text(), Text("Prefix cache (earlier first tokens)", style="bold")]
    for row in rows:
        cached, asked, requests = int(row["cached_tokens"]), int(row["prompt_tokens"]), int(row["requests"])
        line = f"{_engine(row)}: {share(cached, asked)} of {count(asked)} prompt tokens were cached"
        if row["token_us"] is None:
            line += "; the time saved is not known: too few steps with prompts were recorded"
        else:
            saved, wasted = round(row["saved_us"]), round(row["wasted_us"] or 0)
            line += f", which saved {duration(saved)} of prefill at {duration(round(row['token_us']))} a token"
            line += f", {duration(saved // requests)} a request (n={count(requests)})" if requests else ""
            line += f"; the requests had waited about {duration(wasted)} of it ({share(wasted, saved)}) in the queue" if wasted else ""
        out.append(Prose(line))
    return out


def _speculation(result: BlameResult) -> list[RenderableType]:
    """For each engine that speculates: the accepted tokens, and the loss below its own mean."""
    if not result.speculation and not result.speculation_scraped:
        return []
    out: list[RenderableType] = [Text(), Text("Speculation (fewer tokens per step, no gaps)", style="bold")]
    for row in (clean(each) for each in result.speculation):
        lost, whole, drafted = round(row["lost_us"]), round(row["generating_us"]), int(row["drafted"])
        out.append(
            Prose(
                f"{_engine(row)}: {share(int(row['accepted']), drafted)} of {count(drafted)} drafted tokens kept, "
                f"{ratio(row['tokens_per_step'])} tokens per step, in the worst 10 s {ratio(row['tokens_per_step_worst'])}; "
                f"below its own mean: {duration(lost)} of {duration(whole)} of generation ({share(lost, whole)})"
            )
        )
    for row in (clean(each) for each in result.speculation_scraped):
        drafted, worst = int(row["drafted"]), int(row["drafted_worst"])
        out.append(
            Prose(
                f"{_engine(row)}: {share(int(row['accepted']), drafted)} of {count(drafted)} drafted tokens kept (scraped metrics), "
                f"in the worst minute {share(int(row['accepted_worst']), worst)} of {count(worst)}; below its own mean: "
                f"{count(round(row['lost_tokens']))} tokens fewer; the lost time is not known, because its steps report no drafts"
            )
        )
    return out


def _engine(row: Row) -> str:
    """The engine, after its tenant if it has one: tenants may give the same id to an engine."""
    return " · ".join(filter(None, (row["tenant"], row["engine_id"])))


def _events(rows: Sequence[Row]) -> FittedTable:
    table = FittedTable(_EVENTS, "The largest engine events behind the stalls (--limit lists more)")
    for row in (clean(each) for each in rows):
        figures = (count(row["stalls"]), count(row["streams"]), duration(row["excess_us"]), duration(row["gap_max_us"]))
        table.add_row(row["happened"][11:23], row["engine_id"], event_of(row), *figures)
    return table
