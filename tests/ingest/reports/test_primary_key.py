"""Legato's own statements read the tables of one tenant by the primary key: their texts have forms that are found for it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import legato_ingest.reports
import legato_ingest.web
from helpers.servers.reading import by_key, tables_of
from legato_ingest.storage import Store

# These have no time: the streams with an id, and what goes on now.
WITHOUT = {
    ("find_stream", "stream_revs"),
    ("silences", "stalled_streams"),
    ("live", "stalled_streams"),
    ("live", "streams_in_flight"),
}


def statements() -> Iterator[tuple[str, str]]:
    """Yield the statements of the reports and pages, with the names of their modules."""
    for package in (legato_ingest.reports, legato_ingest.web):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            for value in vars(module).values():
                if isinstance(value, str) and re.match(r"\s*(SELECT|WITH)\b", value) and "FROM" in value and "{which}" not in value:
                    yield found.name.rpartition(".")[2], value


def test_own_statements_use_the_key(store: Store) -> None:
    """Each table in each FROM, except those that no time limits."""
    views = {name for (name,) in store.select("SELECT name FROM system.tables WHERE database = 'default_tenants'")}
    without, keyed = set(), 0
    for module, sql in statements():
        tables = tables_of(by_key(store, sql)[1], views)
        keyed += sum(name.endswith("_keyed") for name in tables)
        without |= {(module, name) for name in tables if not name.endswith("_keyed")}
    assert without == WITHOUT, without - WITHOUT
    assert keyed > 20
