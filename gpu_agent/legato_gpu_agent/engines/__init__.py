"""The serving engines whose pages the agent reads: one file an engine, each a table of what its families mean.

One idea: an engine is data, no code: which names are its own, which of them is which signal, and what is special about it. Values that fall
together once labels are left out (models, ranks) are added up, but for ratios, of which the largest counts. It reads no page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from legato_gpu_agent.engines.signals import Signal, signal

__all__ = ["Engine", "Rule", "histogram", "number"]


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One family is one signal: as it is exposed, where its labels have these values; ``keep``: labels that become attributes.

    ``scale``: to the signal's unit. ``says``: attributes that every such sample has.
    """

    family: str
    signal: Signal
    where: Mapping[str, str] = field(default_factory=dict)
    keep: Mapping[str, str] = field(default_factory=dict)
    scale: float = 1.0
    says: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """One kind of engine. ``mark``: how the names of its families begin. ``rank``: the label that tells the engines behind a page apart.
    ``only``: labels that must have this value where they are there at all, as each of several ranks tells the same. ``lowest``: a label of
    which the lowest value on the page counts, of each engine behind it, as which of its ranks tell the same is nowhere said beforehand.

    ``lacks``: signals that it does not have, and why. ``ports``: where it listens unless told otherwise. ``hint``: what the operator could
    set to see more.
    """

    kind: str
    title: str
    mark: str
    rules: tuple[Rule, ...]
    path: str = "/metrics"
    rank: str = ""
    only: Mapping[str, str] = field(default_factory=dict)
    lowest: str = ""
    ports: tuple[int, ...] = ()
    lacks: Mapping[str, str] = field(default_factory=dict)
    hint: str = ""


def number(family: str, name: str, *, keep: Mapping[str, str] | None = None, scale: float = 1.0, **where: str) -> Rule:
    """A gauge or a counter; keywords are labels that must have these values."""
    return Rule(family, signal(name), where, keep or {}, scale)


def histogram(family: str, name: str, *, scale: float = 1.0, per: str = "", **where: str) -> Rule:
    """A histogram; ``per``: what one observation is of, where engines differ (step, token, request)."""
    return Rule(family, signal(name), where, {}, scale, {"legato.engine.per": per} if per else {})
