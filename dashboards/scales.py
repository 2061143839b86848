"""What the values of a figure mean: from which value on a figure has which word and colour.

Each scale belongs to one meaning: a share that is good when it is high has another scale than one that is bad when it is high. A figure for
which no value is good or bad in general has none. A panel shows the word of a value next to its colour (`word`), or names the words of its
dashed lines in its description (`sentence`), so a colour is never the only carrier. Which panel has which scale is in `boards/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as shapes

from legato_ingest.definitions import SLO_FIRST_OUTPUT_MS, SLO_GAP_MS, STALL_MS

__all__ = ["SCALES", "Scale", "Step", "sentence", "thresholds", "word", "words"]


@dataclass(frozen=True, slots=True)
class Step:
    """From ``since`` on (None: from the beginning) a value has this word and colour."""

    since: float | None
    word: str
    color: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Steps in ascending order. ``better``: whether high or low values are good."""

    better: Literal["high", "low"]
    steps: Sequence[Step]


def _low(good: str, *worse: tuple[float, str, str]) -> Scale:
    return Scale("low", (Step(None, good, "green"), *(Step(*step) for step in worse)))


# The target of the default objective is 99 % good streams, and its limits are those of gaps and first outputs; the queue's limit is that of
# the alert rules. The others are judgements: a KV cache preempts when it is full, and a busy CPU delays the engine's front end.
SCALES = {
    "goodput": Scale("high", (Step(None, "bad", "red"), Step(0.95, "below objective", "orange"), Step(0.99, "good", "green"))),
    "budget": Scale("high", (Step(None, "used up", "red"), Step(0.0, "nearly used up", "orange"), Step(0.25, "within budget", "green"))),
    "gap": _low("smooth", (STALL_MS / 1000, "visible", "orange"), (SLO_GAP_MS / 1000, "frozen", "red")),
    "first output": _low("in time", (SLO_FIRST_OUTPUT_MS / 2000, "slow", "orange"), (SLO_FIRST_OUTPUT_MS / 1000, "late", "red")),
    "jitter": _low("even", (5.0, "uneven", "orange"), (10.0, "in bursts", "red")),
    "bad streams": _low("within objective", (0.01, "above objective", "orange"), (0.05, "bad", "red")),
    "evidence missing": _low("explained", (0.05, "partly explained", "orange"), (0.25, "poorly explained", "red")),
    "KV cache": _low("has room", (0.9, "nearly full", "orange"), (0.95, "will preempt", "red")),
    "preemptions": _low("none", (1e-9, "preempting", "red")),
    "throttling": _low("not throttled", (0.01, "throttled", "orange"), (0.1, "heavily throttled", "red")),
    "CPU": _low("has room", (0.8, "busy", "orange"), (0.95, "saturated", "red")),
    "queue": _low("drains", (0.5, "fills", "orange"), (0.9, "nearly full", "red")),
    "rejections": _low("none", (1e-9, "some rejected", "red")),
}
_ANY = 1e-9


def thresholds(name: str) -> dashboard.ThresholdsConfig:
    """Return the thresholds of a scale in Grafana's form; one neutral colour for the empty name."""
    steps = [shapes.Threshold(value=step.since, color=step.color) for step in SCALES[name].steps] if name else []
    return dashboard.ThresholdsConfig().mode(shapes.ThresholdsMode.ABSOLUTE).steps(steps or [shapes.Threshold(value=None, color="blue")])


def word(name: str, value: str) -> str:
    """Return an expression in SQL: the word for ``value``, an expression or alias; NULL if the value is NULL."""
    first, *others = SCALES[name].steps
    cases = ", ".join(f"{value} >= {step.since}, '{step.word}'" for step in reversed(others))
    return f"multiIf({value} IS NULL, NULL, {cases}, '{first.word}')"


def words(name: str) -> list[dict[str, Any]]:
    """Return the value mappings that give each word of a scale its colour."""
    colors = {step.word: {"color": step.color, "index": number} for number, step in enumerate(SCALES[name].steps)}
    return [{"type": "value", "options": colors}]


def sentence(name: str, unit: str) -> str:
    """Return what the dashed lines of a curve mean."""
    above = [step for step in SCALES[name].steps if step.since is not None]
    if [step.since for step in above] == [_ANY]:
        return f"Above 0: {above[0].word}."
    return "Dashed lines: " + ", ".join(f"{step.word} from {_shown(step.since, unit)}" for step in above) + "."


def _shown(value: float | None, unit: str) -> str:
    value = value or 0.0
    if unit == "percentunit":
        return f"{100 * value:g} %"
    if unit == "s":
        return f"{1000 * value:g} ms" if value < 1 else f"{value:g} s"
    return f"{value:g}"
