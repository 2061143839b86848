"""Panels of a tenant's readers read their tables by the primary key where these grow with the streams: not all rows of the tenant."""

from __future__ import annotations

from helpers.dashboards.panels import Asked, statements
from helpers.servers.reading import by_key, tables_of
from legato_ingest.dashboards.macros import Range, expand

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


def test_panels_use_the_key(asked: Asked) -> None:
    """Each table in each FROM, except those that no time limits."""
    span = Range(1_790_000_000_000, 1_790_003_600_000, 60_000)
    views = {name for (name,) in asked.store.select("SELECT name FROM system.tables WHERE database = 'default_tenants'")}
    without, keyed = set(), 0
    for board in BOARDS:
        for sql in statements(board).values():
            text = by_key(asked.store, expand(sql, span, {}))[1]
            tables = tables_of(text, views)
            keyed += sum(name.endswith("_keyed") for name in tables)
            without |= {(board, name) for name in tables if not name.endswith("_keyed")}
    assert without == WITHOUT and keyed > 200


def test_panels_show_the_same_with_and_without_the_key(asked: Asked) -> None:
    """A reader of one of two tenants gets the same rows if all rows of the tenant are read."""
    span, tenant, rows = asked.past.view("hours", 3.3, 60).span, asked.past.tenant, 0
    # Many boards have the same variables.
    for text in dict.fromkeys(expand(sql, span, {}) for board in BOARDS for sql in statements(board).values()):
        plain, keyed = by_key(asked.store, text)
        # Two statements at different times may differ in what is computed from now.
        if plain != keyed and "now(" not in plain and "now64(" not in plain:
            found, expected = (asked.store.query_bytes(each, tenant=tenant) for each in (keyed, plain))
            assert found == expected, text
            rows += found.count(b"\n")
    assert rows > 1_000
