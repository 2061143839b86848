"""Fixtures of the tests of background work."""

from __future__ import annotations

import pytest

from legato_ingest.storage import Store


@pytest.fixture
def shared(store: Store) -> Store:
    """The store without claims and heartbeats."""
    for table in ("leases", "writers"):
        store.command(f"TRUNCATE TABLE {table}")
    return store
