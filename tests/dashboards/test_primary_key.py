"""Panels of a tenant's readers read their tables by the primary key where these grow with the streams: not all rows of the tenant."""

from __future__ import annotations

from helpers.dashboards.panels import statements
from helpers.servers.reading import guard_of, tables_of
from legato_ingest.dashboards.macros import Range, expand
from legato_ingest.storage import Store

BOARDS = ("streams", "now", "itl", "attribution", "compare", "nodes", "chunking", "cost", "stream", "self")
# Of the streams with an id, and of what is stored: no time limits them. The others are small, or read what was received in the last hour.
WITHOUT = {
    ("cost", "stream_hours_final"),
    ("cost", "stream_revs"),
    ("now", "stalled_streams"),
    ("now", "streams_in_flight"),
    ("stream", "stream_revs"),
    ("streams", "current_objectives"),
    ("streams", "stalled_streams"),
    ("streams", "streams_in_flight"),
}


def test_panels_use_the_key(store: Store) -> None:
    """Each table in each FROM, except those that no time limits."""
    guard = guard_of(store)
    span = Range(1_790_000_000_000, 1_790_003_600_000, 60_000)
    views = {name for (name,) in store.select("SELECT name FROM system.tables WHERE database = 'default_tenants'")}
    without, by_key = set(), 0
    for board in BOARDS:
        for sql in statements(board).values():
            text = guard.check(expand(sql, span, {}), {}, "shop").sql
            tables = tables_of(text, views)
            by_key += sum(name.endswith("_keyed") for name in tables)
            without |= {(board, name) for name in tables if not name.endswith("_keyed")}
    assert without == WITHOUT and by_key > 200
