"""One store for all tests of a module, because the embedded engine can open only one path per process.

With LEGATO_TEST_STORE=server the store is on a ClickHouse server (`helpers.servers.clickhouse`); `make test-server` sets it.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from helpers.servers.clickhouse import clickhouse
from helpers.servers.stores import SCHEMA, copy_migrated, empty
from legato_ingest.settings import load
from legato_ingest.storage import EmbeddedStore, Store, migrate, open_store

READ_LIMITS: dict[str, int | str] = {"max_execution_time": 20, "max_memory_usage": 2**30, "max_result_rows": 100_000}


@pytest.fixture(scope="module")
def store_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder that holds the shared store, and nothing else."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def shared_store(store_folder: pathlib.Path) -> Iterator[Store]:
    """A store with the schema for one module. It is closed at the end, because other modules open stores at other paths."""
    limits = {**READ_LIMITS, "result_overflow_mode": "throw"}
    with ExitStack() as stack:
        if os.environ.get("LEGATO_TEST_STORE") == "server":
            server = stack.enter_context(clickhouse(store_folder / "server", migrated=True))
            store = open_store(load(store=server.store, store_password=server.password), limits)
            migrate.apply(store, migrate.load(SCHEMA))
        else:
            copy_migrated(store_folder / "store")
            store = EmbeddedStore(store_folder / "store", limits)
        yield store
        store.close()


@pytest.fixture
def store(shared_store: Store) -> Store:
    """The shared store with no rows but those of `schema_migrations`."""
    empty(shared_store)
    return shared_store
