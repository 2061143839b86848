"""A verdict in words: why, and on what grounds.

One idea: a line says what took the time, how sure that is and whom to ask; whoever doubts it gets all of it, the causes that are out of the
question among it, for the longest stall. The rest is in the JSON. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from legato_ingest.cli.format import DASH, duration

__all__ = ["grounds", "why"]

Row = Mapping[str, Any]
# Parts below this share of the gap are not printed (the JSON has them).
_WORTH_SHARE = 0.05
_EVIDENCE = {
    "server_gap_us": "the server sent the next chunk after {}",
    "hold_us": "the application held it for {}",
    "record_late_us": "the engine's record came {} after its step",
}
_FLAGS = {
    ("buffered", 1): "the stream came in releases of several chunks",
    ("unread", 1): "data lay unread in the client's socket",
}


def _clock(evidence: Mapping[str, Any]) -> Iterator[str]:
    """What the driver said of the GPU's clock."""
    if "throttled_us" in evidence:
        seen = f", down to {evidence['clock_mhz']} MHz" if "clock_mhz" in evidence else ""
        usual = f" of {evidence['clock_usual_mhz']}" if seen and "clock_usual_mhz" in evidence else ""
        yield f"the driver had lowered a GPU's clock for {duration(int(evidence['throttled_us']))}{seen}{usual}"


def _kernel(evidence: Mapping[str, Any]) -> Iterator[str]:
    """What the kernel counted beside a stall of the host's."""
    said = {
        "cpu_wait": "the engine's threads, all together, were ready and had no CPU for {} in",
        "cpu_stolen": "CPUs, all together, were stolen for {} in",
    }
    for name, words in said.items():
        if f"{name}_us" in evidence:
            counted, whole = (duration(int(evidence[key])) for key in (f"{name}_us", f"{name}_of_us"))
            yield f"{words.format(counted)} the {whole} around it"


def why(verdict: Row | None) -> str:
    """A verdict in a line: the parts that matter, largest first, how sure, over which engine steps and whose, without which vantage."""
    if verdict is None:
        return DASH
    missing = f"without {' and '.join(verdict['missing'])}" if verdict["missing"] else ""
    return " · ".join(filter(None, (", ".join(_parts(verdict)), verdict["confidence"], _steps(verdict), _whose(verdict), missing)))


def _parts(verdict: Row) -> list[str]:
    parts = sorted(((int(ns) // 1_000, name) for name, ns in verdict["parts"].items()), reverse=True)
    return [f"{name} {duration(us)}" for us, name in parts if us >= _WORTH_SHARE * int(verdict["gap_us"])]


def _steps(verdict: Row) -> str:
    first, last = verdict["step_first"], verdict["step_last"]
    return "" if first is None else f"step {first}" if first == last else f"steps {first} to {last}"


def _whose(verdict: Row) -> str:
    names = verdict["culprit_responses"]
    if not names:
        return ""
    shown = f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"
    if verdict["cause"] == "scheduling":
        return f"prompt of {shown}"
    return "itself preempted" if "preempted_step" in verdict["evidence"] else f"recompute of {shown}"


def grounds(verdict: Row) -> Iterator[Text]:
    """What a verdict rests on, a line each."""
    yield Text(f"the longest ({duration(int(verdict['gap_us']))}), in full:", style="dim")
    parts = ", ".join(f"{name} {int(ns) / 1e6:,.3f} ms" for name, ns in verdict["parts"].items())
    yield Text(f"  it is {parts}; each within {duration(int(verdict['error_us']))}", style="dim")
    facts = [words.format(duration(int(verdict["evidence"][name]))) for name, words in _EVIDENCE.items() if name in verdict["evidence"]]
    facts += [*_clock(verdict["evidence"]), *_kernel(verdict["evidence"])]
    facts += [words for (name, value), words in _FLAGS.items() if int(verdict["evidence"].get(name, -1)) == value]
    if "caught_up_percent" in verdict["evidence"]:
        facts.append(f"{verdict['evidence']['caught_up_percent']} % of what was missing came right behind it")
    if "coincident_stalls" in verdict["evidence"]:
        facts.append(f"{verdict['evidence']['coincident_stalls']} other streams had the same gap at the same moment, and say so")
    if facts:
        yield Text(f"  because {'; '.join(facts)}", style="dim")
    if verdict["excluded"]:
        yield Text("  and not " + "; not ".join(f"{name}: {reason}" for name, reason in verdict["excluded"].items()), style="dim")
