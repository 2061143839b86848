"""The offsets of engines' clocks in memory: bounded for each tenant."""

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
