"""The types of an engine's table: what its metric families mean.

An engine is data without code: the prefix of its families, the signal of each, and its peculiarities. Values that coincide once labels are
dropped (models, ranks) are added up; of ratios the largest counts. The module parses no exposition text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from legato_gpu_agent.engines.signals import Signal, signal

__all__ = ["EngineKind", "Rule", "histogram", "number"]


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """Maps one family, as exposed, to one signal, for samples with the label values ``where``.

    ``keep``: labels that become attributes, and their attribute names. ``scale``: factor to the signal's unit. ``attributes``: constant
    attributes of every sample.
    """

    family: str
    signal: Signal
    where: Mapping[str, str] = field(default_factory=dict)
    keep: Mapping[str, str] = field(default_factory=dict)
    scale: float = 1.0
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class EngineKind:
    """One kind of engine. ``prefix``: the common prefix of its family names. ``path``: where it serves them.

    ``rank_label``: the label that distinguishes the engines behind one endpoint. ``required_labels``: values that these labels must have
    where they are present, because several ranks expose the same value. ``lowest_label``: of each engine, only the samples with the lowest
    value of this label count, because which ranks expose the same value is not known beforehand.

    ``lacks``: signals that the engine does not expose, with the reason. ``ports``: default ports. ``hint``: a setting of the engine that
    makes more visible.
    """

    kind: str
    title: str
    prefix: str
    rules: tuple[Rule, ...]
    path: str = "/metrics"
    rank_label: str = ""
    required_labels: Mapping[str, str] = field(default_factory=dict)
    lowest_label: str = ""
    ports: tuple[int, ...] = ()
    lacks: Mapping[str, str] = field(default_factory=dict)
    hint: str = ""


def number(family: str, name: str, *, keep: Mapping[str, str] | None = None, scale: float = 1.0, **where: str) -> Rule:
    """Return the rule of a gauge or a counter; keyword arguments are required label values."""
    return Rule(family, signal(name), where, keep or {}, scale)


def histogram(family: str, name: str, *, scale: float = 1.0, per: str = "", **where: str) -> Rule:
    """Return the rule of a histogram; ``per``: what one observation covers where engines differ (step, token, request)."""
    return Rule(family, signal(name), where, {}, scale, {"legato.engine.per": per} if per else {})
