"""Panels of a tenant's readers read their tables by the primary key where these grow with the streams: not all rows of the tenant."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from helpers.dashboards.panels import Asked, statements
from helpers.servers.reading import by_key, tables_of
from legato_ingest.dashboards.macros import expand

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


Texts = Mapping[str, tuple[str, str]]


def text_of(asked: Asked, sql: str) -> str:
    """A statement for the last hours of the past, without chosen values."""
    return expand(sql, asked.past.view("hours", 3.3, 60).span, {})


@pytest.fixture(scope="module")
def texts(asked: Asked) -> Texts:
    """Each statement's text without and with the conditions for the key, by its text. Many boards have the same variables."""
    return {text: by_key(asked.store, text) for text in {text_of(asked, sql) for board in BOARDS for sql in statements(board).values()}}


def test_panels_use_the_key(asked: Asked, texts: Texts) -> None:
    """Each table in each FROM, except those that no time limits."""
    views = {name for (name,) in asked.store.select("SELECT name FROM system.tables WHERE database = 'default_tenants'")}
    without, keyed = set(), 0
    for board in BOARDS:
        for sql in statements(board).values():
            tables = tables_of(texts[text_of(asked, sql)][1], views)
            keyed += sum(name.endswith("_keyed") for name in tables)
            without |= {(board, name) for name in tables if not name.endswith("_keyed")}
    assert without == WITHOUT and keyed > 200


def test_panels_show_the_same_with_and_without_the_key(asked: Asked, texts: Texts) -> None:
    """A reader of one of two tenants gets the same rows if all rows of the tenant are read."""
    tenant, rows = asked.past.tenant, 0
    for text, (plain, keyed) in texts.items():
        # Two statements at different times may differ in what is computed from now.
        if plain != keyed and "now(" not in plain and "now64(" not in plain:
            found, expected = (asked.store.query_bytes(each, tenant=tenant) for each in (keyed, plain))
            assert found == expected, text
            rows += found.count(b"\n")
    assert rows > 1_000
