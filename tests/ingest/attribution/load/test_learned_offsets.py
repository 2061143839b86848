"""The offsets of engines' clocks in memory: bounded for each tenant, and in all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from legato_ingest.attribution.load import learned_offsets
from legato_ingest.attribution.load.learned_offsets import LearnedOffsets
from legato_ingest.storage import Store

HOUR_NS = 3_600_000_000_000


class Answers:
    """A store that knows these engines: tenant, engine, requests, offset."""

    def __init__(self, rows: Sequence[Sequence[Any]]) -> None:
        self.rows = rows

    def select(self, sql: str) -> Sequence[Sequence[Any]]:
        """Return them, whatever was asked."""
        return self.rows


def learn(clocks: LearnedOffsets, tenant: str, engines: range) -> None:
    """Learn that the clocks of these engines are an hour ahead."""
    clocks.learn(cast(Store, Answers([(tenant, str(number), 1, HOUR_NS) for number in engines])), "1", 0, 1)


def test_a_tenant_has_a_bounded_number_of_engines() -> None:
    """A sender that names ever more engines displaces those that it used least recently, and none of another tenant."""
    most = learned_offsets._ENGINES_MAX
    clocks = LearnedOffsets()
    learn(clocks, "other", range(1))
    for first in range(0, 5 * most, most // 2):
        learn(clocks, "many", range(first, first + most // 2))
        assert clocks.stretch(("many", "0"), 0, 0)[1] < 0, "it is used, so it stays"
    assert len(clocks) == most + 1
    assert clocks.stretch(("other", "0"), 0, 0)[1] < 0
    assert clocks.stretch(("many", "1"), 0, 0) == (0, 0)


def test_all_tenants_together_have_a_bounded_number_of_engines() -> None:
    """Each day's containers have new names: those of the tenant that used its engines least recently are forgotten first."""
    most, clocks = learned_offsets._ENGINES_OF_ALL_MAX, LearnedOffsets()
    tenants = most // 100 + 50
    for tenant in range(tenants):
        learn(clocks, f"t-{tenant}", range(100))
        assert clocks.stretch(("t-0", "99"), 0, 0)[1] < 0, "it is used, so it stays"
    assert len(clocks) == most == sum(map(len, clocks._offset_ns.values()))
    assert clocks.stretch(("t-1", "99"), 0, 0) == (0, 0) and "t-1" not in clocks._offset_ns
    assert clocks.stretch((f"t-{tenants - 1}", "0"), 0, 0)[1] < 0
