"""Panels of a tenant's readers use the primary key: without it a panel reads all rows of all tenants."""

from __future__ import annotations

from helpers.dashboards.panels import statements
from helpers.servers.reading import guard_of
from legato_ingest.dashboards.macros import Range, expand
from legato_ingest.storage import Store

BOARDS = ("streams", "now", "itl", "attribution", "compare", "nodes", "chunking", "cost", "stream", "self")


def test_panels_use_the_key(store: Store) -> None:
    """All but some of a comparison of two sides, and of those that read tables of the system."""
    guard = guard_of(store)
    span = Range(1_790_000_000_000, 1_790_003_600_000, 60_000)
    without = {
        (board, name)
        for board in BOARDS
        for name, sql in statements(board).items()
        if not guard.check(expand(sql, span, {}), {}, "shop").by_key
    }
    assert without == {
        ("compare", "Side by side"),
        ("compare", "Per-stream p99 gap over time, A and B"),
        ("compare", "What else differs"),
        ("compare", "What else differs in requests"),
        ("cost", "At rest"),
        ("cost", "Cost"),
        ("cost", "By service and emitter"),
        ("cost", "What would save bytes"),
        ("cost", "Where the bytes are"),
        ("self", "Rejected"),
        ("self", "Tables"),
    }
