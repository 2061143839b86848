"""The text of a verdict: one line with its causes, and the evidence in full for one stall.

The line names the parts of the gap, the confidence, the engine steps and the responsible requests. The evidence includes the exclusions.
This module judges nothing; ``legato stream --json`` returns all verdicts in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from legato_ingest.cli.format import DASH, duration
from legato_ingest.cli.layout import Prose

__all__ = ["evidence_lines", "why"]

Row = Mapping[str, Any]
# Parts below this share of the gap are printed only as JSON.
_WORTH_SHARE = 0.05
_EVIDENCE = {
    "server_gap_us": "the server sent the next chunk after {}",
    "hold_us": "the application held it for {}",
    "record_late_us": "the engine's record arrived {} after its step",
}
_FLAGS = {
    ("buffered", 1): "the stream arrived in releases of several chunks",
    ("unread", 1): "data lay unread in the client's socket",
}


def _clock(evidence: Mapping[str, Any]) -> Iterator[str]:
    """The throttling that the driver reported."""
    if "throttled_us" in evidence:
        seen = f", down to {evidence['clock_mhz']} MHz" if "clock_mhz" in evidence else ""
        usual = f" of {evidence['clock_usual_mhz']}" if seen and "clock_usual_mhz" in evidence else ""
        yield f"the driver throttled a GPU for {duration(int(evidence['throttled_us']))}{seen}{usual}"


def _kernel(evidence: Mapping[str, Any]) -> Iterator[str]:
    """The kernel's counters around a stall of the host."""
    texts = {
        "cpu_wait": "the engine's threads were ready without a CPU for {} in total in",
        "cpu_stolen": "CPU time of {} in total was stolen in",
    }
    for name, words in texts.items():
        if f"{name}_us" in evidence:
            counted, whole = (duration(int(evidence[key])) for key in (f"{name}_us", f"{name}_of_us"))
            yield f"{words.format(counted)} the {whole} around it"


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
    shown = f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"
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
    facts = [words.format(duration(int(verdict["evidence"][name]))) for name, words in _EVIDENCE.items() if name in verdict["evidence"]]
    facts += [*_clock(verdict["evidence"]), *_kernel(verdict["evidence"])]
    facts += [words for (name, value), words in _FLAGS.items() if int(verdict["evidence"].get(name, -1)) == value]
    if "caught_up_percent" in verdict["evidence"]:
        facts.append(f"{verdict['evidence']['caught_up_percent']} % of the missing chunks arrived immediately after it")
    if "coincident_stalls" in verdict["evidence"]:
        facts.append(f"{verdict['evidence']['coincident_stalls']} other streams had the same gap at the same moment with this cause")
    if facts:
        yield Prose(f"  evidence: {'; '.join(facts)}", style="dim")
    if verdict["excluded"]:
        yield Prose("  excluded: " + "; ".join(f"{name}: {reason}" for name, reason in verdict["excluded"].items()), style="dim")
