"""`legato blame`: what stalled streams, cause by cause, and the engine events behind it.

One idea: time is what a stall costs, so causes are ranked by the time charged to them, and a count of names stands beside it; what
fixing one would bring is what the replays say. It asks some questions (`queries`), and judges nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from legato_ingest.cli.client import Reader
from legato_ingest.cli.engine_queries import PREFIX_CACHE, SPECULATION, SPECULATION_BY_PAGE
from legato_ingest.cli.format import DASH, clean, count, duration, ratio, share
from legato_ingest.cli.queries import BLAME, BUT_FOR, CULPRITS, FIRST_TOKENS, JUDGED_STALLS

__all__ = ["Answer", "Question", "as_json", "fetch", "render"]

Row = Mapping[str, Any]
# Causes that name no event: what evidence was too short to say.
_SHORT = frozenset(("generation", "delivery", "unknown"))
# How the time to a first token divides, in words.
_FIRST = {"queue": "the queue", "prefill": "its own prefill", "front_end": "the front end", "transit": "the way there and back"}
_NAMES_SHOWN = 2
_WORTH_SHARE = 0.001
_TIMES = ("stalled_max_us", "stalled_min_us")


@dataclass(frozen=True, slots=True)
class Question:
    """Whose stalls, since when (0: ever), and how many engine events."""

    since_s: int = 3_600
    model: str = ""
    service: str = ""
    engine: str = ""
    limit: int = 10
    first_ms: int = 2_000


@dataclass(frozen=True, slots=True)
class Answer:
    """What the store said: a row a cause, what would be left without each, a row an engine event, how many stalls there were, how the
    first tokens' time divides, and what speculation and the prefix cache brought each engine. An engine's speculation is told by its steps
    or by its page, never by both.
    """

    causes: Sequence[Row]
    but_for: Mapping[str, Row]
    culprits: Sequence[Row]
    stalls: int
    judged: int
    first_tokens: Row
    first_ms: int
    speculation: Sequence[Row]
    speculation_by_page: Sequence[Row]
    prefix_cache: Sequence[Row]


def fetch(reader: Reader, question: Question) -> Answer:
    """Ask. Raises ``ReadError``."""
    parameters: dict[str, str | int | float | Sequence[str]] = {
        "since_s": question.since_s,
        "model": question.model,
        "service": question.service,
        "vantage": "",
        "engine": question.engine,
        "limit": question.limit,
        "first_us": question.first_ms * 1_000,
    }
    (told,) = reader.rows(JUDGED_STALLS, parameters)
    (first,) = reader.rows(FIRST_TOKENS, parameters)
    return Answer(
        causes=reader.rows(BLAME, parameters),
        but_for={row["cause"]: row for row in reader.rows(BUT_FOR, parameters)},
        culprits=reader.rows(CULPRITS, parameters),
        # Which engine's a stream was, only its verdicts say.
        stalls=0 if question.engine else int(told["stalls"] or 0),
        judged=int(told["judged"]),
        first_tokens=first,
        first_ms=question.first_ms,
        speculation=reader.rows(SPECULATION, parameters),
        speculation_by_page=reader.rows(SPECULATION_BY_PAGE, parameters),
        prefix_cache=reader.rows(PREFIX_CACHE, parameters),
    )


def charged_us(answer: Answer) -> dict[str, int]:
    """The time charged to each cause over all stalls, most first; the healthy part is none of it."""
    total: Counter[str] = Counter()
    for row in answer.causes:
        total.update({name: int(ns) for name, ns in row["parts"].items() if name != "base"})
    return {name: ns // 1_000 for name, ns in total.most_common()}


def as_json(answer: Answer) -> dict[str, Any]:
    """The answer as data, times in µs."""
    named = {row["cause"]: row for row in answer.causes}
    charged = charged_us(answer)
    names = [*charged, *(name for name in named if name not in charged)]
    return {
        "stalls_250ms": answer.stalls,
        "stalls_250ms_judged": answer.judged,
        "stalls": sum(row["stalls"] for row in answer.causes),
        "excess_us": sum(row["excess_us"] for row in answer.causes),
        "causes": [
            {
                "cause": name,
                "charged_us": charged.get(name, 0),
                "stalls": named[name]["stalls"] if name in named else 0,
                "streams": named[name]["streams"] if name in named else 0,
                "confidences": named[name]["confidences"] if name in named else {},
                "missing": named[name]["missing"] if name in named else {},
                "without": _without(answer.but_for.get(name)),
            }
            for name in names
        ],
        "replayed": {name: answer.but_for.get("", {}).get(name, 0) for name in ("streams", "stalls", "stalled_us")},
        "events": list(answer.culprits),
        "first_tokens": dict(answer.first_tokens),
        "speculation": list(answer.speculation),
        "speculation_by_page": list(answer.speculation_by_page),
        "prefix_cache": list(answer.prefix_cache),
    }


def _without(row: Row | None) -> dict[str, Any] | None:
    return None if row is None else {name: value for name, value in row.items() if name != "cause"}


def render(answer: Answer) -> RenderableType:
    """The answer as a page for a terminal."""
    if not answer.causes:
        return Group(Text(_nothing(answer)), *_without_gaps(answer))
    stalls, excess = sum(row["stalls"] for row in answer.causes), sum(row["excess_us"] for row in answer.causes)
    parts: list[RenderableType] = [
        Text.assemble((f"{count(stalls)} stalls", "bold"), f", {duration(excess)} beyond the healthy step"),
        Text(),
        _causes(answer, excess),
        Text(_legend(answer), style="dim"),
    ]
    if answer.culprits:
        parts += [Text(), _culprits(answer.culprits)]
    return Group(*parts, *_without_gaps(answer))


def _without_gaps(answer: Answer) -> list[RenderableType]:
    """What readers waited for, or were spared, that is no gap."""
    return [*_first_tokens(answer), *_prefix_cache(answer), *_speculation(answer)]


def _nothing(answer: Answer) -> str:
    if answer.stalls:
        return (
            f"{count(answer.stalls)} stalls, and none has a verdict: `legato serve` judges some seconds after a stream's end, and leaves "
            "out gaps that are hardly longer than a healthy step"
        )
    return (
        "no stall was judged: no client stream stalled, or none matches; `legato streams` lists what there is (ask for more with --since)"
    )


def _causes(answer: Answer, excess: int) -> Table:
    table = Table(pad_edge=False, box=None)
    table.add_column("cause", no_wrap=True)
    for name in ("time charged", "stalls so named", "streams"):
        table.add_column(name, justify="right")
    table.add_column("how sure")
    for name in ("fixing it alone removes", "of their time"):
        table.add_column(name, justify="right", no_wrap=True)
    named, all_ = {row["cause"]: row for row in answer.causes}, answer.but_for.get("")
    charged = charged_us(answer)
    for name in [*charged, *(name for name in named if name not in charged)]:
        row, took = named.get(name), charged.get(name)
        if row is None and (took or 0) < _WORTH_SHARE * excess:
            # A delay that a stream made up for later is charged and given back: what is left of it says nothing.
            continue
        time = DASH if took is None else f"{duration(max(took, 0))}  {share(max(took, 0), excess):>6}"
        who = (count(row["stalls"]), count(row["streams"])) if row else ("0", "0")
        table.add_row(
            Text(name, style="yellow" if name in _SHORT else ""), time, *who, _sure(row), *_removed(all_, answer.but_for.get(name))
        )
    return table


def _sure(row: Row | None) -> str:
    return (
        DASH
        if row is None
        else ", ".join(f"{count(n)} {name}" for name, n in sorted(row["confidences"].items(), key=lambda each: -each[1]))
    )


def _removed(all_: Row | None, row: Row | None) -> tuple[str, str]:
    """Stalls and their time that would not be, of all that could be replayed. Less than none when a delay hid more stalls than it made."""
    if row is None or all_ is None:
        return DASH, DASH
    stalls = [int(row["stalls"]) - int(row[name]) for name in ("stalls_max", "stalls_min")]
    times = [round(100 * (int(row["stalled_us"]) - int(row[name])) / int(all_["stalled_us"])) for name in _TIMES]
    return f"{_range(*stalls)} of {count(int(all_['stalls']))}", f"{_range(*times)} %"


def _range(low: int, high: int) -> str:
    return f"{low:,}".replace("-", "−") + (f" to {high:,}".replace("-", "−") if low != high else "")


def _legend(answer: Answer) -> str:
    missing: Counter[str] = Counter()
    total = sum(row["stalls"] for row in answer.causes)
    for row in answer.causes:
        missing.update({name: int(n) for name, n in row["missing"].items()})
    replayed = answer.but_for.get("", {}).get("streams", 0)
    lines = [
        "time charged: every nanosecond beyond the healthy step, of all stalls, whatever their name.",
        f"fixing it alone: {count(int(replayed))} streams replayed without the cause, all else as it was. Causes overlap, so these do "
        "not add up; a delay may hide other stalls.",
    ]
    if missing:
        lines.append(
            "evidence that was missing: " + ", ".join(f"{name} for {count(n)} of {count(total)}" for name, n in sorted(missing.items()))
        )
    if answer.stalls > answer.judged:
        lines.append(
            f"{count(answer.stalls - answer.judged)} of {count(answer.stalls)} stalls of 250 ms or more have no verdict: open at the "
            "stream's end, hardly longer than a healthy step, or not settled yet."
        )
    return "\n".join(lines)


def _first_tokens(answer: Answer) -> list[RenderableType]:
    """Where the time to the first token went, in two sentences."""
    row = answer.first_tokens
    if not int(row["split_streams"]):
        return []
    whole = int(row["ttft_us"])
    parts = sorted(((int(row[f"{name}_us"]), words) for name, words in _FIRST.items()), reverse=True)
    line = ", ".join(f"{words} {share(max(us, 0), whole)}" for us, words in parts)
    late = sorted(((int(n), _FIRST[name]) for name, n in row["late_by"].items()), reverse=True)
    text = f"{count(int(row['late']))} of {count(int(row['streams']))} came later than {duration(answer.first_ms * 1_000)}"
    text += f"; most of that was {', '.join(f'{words} in {count(n)}' for n, words in late)}" if late else ""
    known = f"the time to all of them, where it is known (n={count(int(row['split_streams']))}): {line}"
    return [Text(), Text("First tokens", style="bold"), Text(f"{text}\n{known}")]


def _prefix_cache(answer: Answer) -> list[RenderableType]:
    """Of each engine, how much of its prompts was cached, what that saved, and how much of it the queue took back."""
    rows = [clean(each) for each in answer.prefix_cache]
    if not any(row["cached_tokens"] for row in rows):
        return []
    out: list[RenderableType] = [Text(), Text("Prefix cache (first tokens that came sooner)", style="bold")]
    for row in rows:
        cached, asked, requests = int(row["cached_tokens"]), int(row["prompt_tokens"]), int(row["requests"])
        line = f"{row['engine_id']}: {share(cached, asked)} of {count(asked)} prompt tokens were cached"
        if row["token_us"] is None:
            line += "; what that saved is not known: too few steps with prompts were recorded"
        else:
            saved, wasted = round(row["saved_us"]), round(row["wasted_us"] or 0)
            line += f", which saved {duration(saved)} of prefill at {duration(round(row['token_us']))} a token"
            line += f", {duration(saved // requests)} a request (n={count(requests)})" if requests else ""
            line += f"; about {duration(wasted)} of it ({share(wasted, saved)}) they had waited in the queue before" if wasted else ""
        out.append(Text(line))
    return out


def _speculation(answer: Answer) -> list[RenderableType]:
    """Of each engine that speculates, what it brought and what fell short of its own mean."""
    if not answer.speculation and not answer.speculation_by_page:
        return []
    out: list[RenderableType] = [Text(), Text("Speculation (no gaps: fewer tokens a step)", style="bold")]
    for row in (clean(each) for each in answer.speculation):
        lost, whole, drafted = round(row["lost_us"]), round(row["generating_us"]), int(row["drafted"])
        out.append(
            Text(
                f"{row['engine_id']}: {share(int(row['accepted']), drafted)} of {count(drafted)} drafted tokens kept, "
                f"{ratio(row['tokens_per_step'])} tokens a step, in the worst 10 s {ratio(row['tokens_per_step_worst'])}; "
                f"below its own mean: {duration(lost)} of {duration(whole)} of generating ({share(lost, whole)})"
            )
        )
    for row in (clean(each) for each in answer.speculation_by_page):
        drafted, worst = int(row["drafted"]), int(row["drafted_worst"])
        out.append(
            Text(
                f"{row['engine_id']}: {share(int(row['accepted']), drafted)} of {count(drafted)} drafted tokens kept, by its own page, "
                f"in the worst minute {share(int(row['accepted_worst']), worst)} of {count(worst)}; below its own mean: "
                f"{count(round(row['lost_tokens']))} tokens fewer; what that took is not known: its steps tell no drafts"
            )
        )
    return out


def _culprits(rows: Sequence[Row]) -> Table:
    table = Table(title=Text("The engine events behind them", style="bold"), title_justify="left", pad_edge=False, box=None)
    for name in ("when (UTC)", "engine"):
        table.add_column(name, no_wrap=True)
    table.add_column("what")
    for name in ("stalls", "streams", "beyond healthy", "longest"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in (clean(each) for each in rows):
        table.add_row(
            row["happened"][11:23],
            Text(row["engine_id"]),
            Text(_what(row)),
            count(row["stalls"]),
            count(row["streams"]),
            duration(row["excess_us"]),
            duration(row["gap_max_us"]),
        )
    return table


def _what(row: Row) -> str:
    """An engine event in words."""
    names = ", ".join(row["responses"][:_NAMES_SHOWN])
    more = len(row["responses"]) - _NAMES_SHOWN
    who = f": {names}{f' and {more} more' if more > 0 else ''}" if names else ""
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
