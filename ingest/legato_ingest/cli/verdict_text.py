"""The text of a verdict: one line with its causes, and the evidence in full for one stall.

The line names the parts of the gap, the confidence, the engine steps and the responsible requests. The evidence includes the exclusions.
This module judges nothing; ``legato stream --json`` returns all verdicts in full.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from legato_ingest.causes import RESPONSES_MAX
from legato_ingest.cli.layout import Prose
from legato_ingest.reports.format import DASH, duration
from legato_ingest.reports.rows import Row
from legato_ingest.reports.verdict_words import phrases

__all__ = ["evidence_lines", "why"]

# Parts below this share of the gap are printed only as JSON.
_WORTH_SHARE = 0.05


def why(verdict: Row | None) -> str:
    """Return a verdict in one line: its main parts (largest first), confidence, engine steps, responsible requests, missing evidence."""
    if verdict is None:
        return DASH
    missing = f"without {' and '.join(verdict['missing'])}" if verdict["missing"] else ""
    return " · ".join(filter(None, (", ".join(_parts(verdict)), verdict["confidence"], _steps(verdict), _responsible(verdict), missing)))


def _parts(verdict: Row) -> list[str]:
    parts = sorted(((int(ns) // 1_000, name) for name, ns in verdict["parts"].items()), reverse=True)
    return [f"{name} {duration(us)}" for us, name in parts if us >= _WORTH_SHARE * int(verdict["gap_us"])]


def _steps(verdict: Row) -> str:
    first, last = verdict["step_first"], verdict["step_last"]
    return "" if first is None else f"step {first}" if first == last else f"steps {first} to {last}"


def _responsible(verdict: Row) -> str:
    names = verdict["culprit_responses"]
    if not names:
        return ""
    # A verdict names some requests of a step with more.
    more = f"{'at least ' if len(names) >= RESPONSES_MAX else ''}{len(names) - 1} more"
    shown = f"{names[0]} and {more}" if len(names) > 1 else names[0]
    if verdict["cause"] == "scheduling":
        return f"prompt of {shown}"
    return "itself preempted" if "preempted_step" in verdict["evidence"] else f"recompute of {shown}"


def _part(name: str, ns: int) -> str:
    """Return a part in full. A negative one belongs to a gap that was shorter than at the server."""
    return f"{name} {ns / 1e6:,.3f} ms" if ns >= 0 else f"−{-ns / 1e6:,.3f} ms that the delayed stream caught up ({name})"


def evidence_lines(verdict: Row) -> Iterator[Text]:
    """Yield the parts, the evidence and the exclusions of a verdict, one line each."""
    yield Prose(f"the longest ({duration(int(verdict['gap_us']))}), in full:", style="dim")
    parts = ", ".join(_part(name, int(ns)) for name, ns in verdict["parts"].items())
    yield Prose(f"  parts: {parts}; each within {duration(int(verdict['error_us']))}", style="dim")
    facts = phrases(verdict["evidence"])
    if facts:
        yield Prose(f"  evidence: {'; '.join(facts)}", style="dim")
    if verdict["excluded"]:
        yield Prose("  excluded: " + "; ".join(f"{name}: {reason}" for name, reason in verdict["excluded"].items()), style="dim")
