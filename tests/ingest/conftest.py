"""One embedded store for all tests of this folder: the engine takes one path a process.

LEGATO_TEST_STORE=server runs the tests that share it on a ClickHouse server instead (`helpers.servers.clickhouse`).
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from helpers.servers.clickhouse import clickhouse
from legato_ingest.settings import load
from legato_ingest.storage import EmbeddedStore, Store, migrate, open_store

SCHEMA = pathlib.Path(__file__).resolve().parents[2] / "schema"
READ_LIMITS: dict[str, int | str] = {"max_execution_time": 20, "max_memory_usage": 2**30, "max_result_rows": 100_000}


@pytest.fixture(scope="module")
def store_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder that holds the shared store, and nothing else."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def shared_store(store_folder: pathlib.Path) -> Iterator[Store]:
    """A store with the schema, for one module: others open stores of their own, and the engine takes one path at a time."""
    limits = {**READ_LIMITS, "result_overflow_mode": "throw"}
    with ExitStack() as stack:
        if os.environ.get("LEGATO_TEST_STORE") == "server":
            server = stack.enter_context(clickhouse(store_folder / "server"))
            store = open_store(load(store=server.store, store_password=server.password), limits)
        else:
            store = EmbeddedStore(store_folder / "store", limits)
        migrate.apply(store, migrate.load(SCHEMA))
        yield store
        store.close()


@pytest.fixture
def store(shared_store: Store) -> Store:
    """The shared store, emptied."""
    for table in (
        "stream_revs",
        "stream_sockets",
        "engine_steps",
        "engine_requests",
        "node_samples",
        "verdicts",
        "replays",
        "attribution_runs",
        "stream_minutes",
        "stall_minutes",
        "but_for_minutes",
        "engine_minutes",
        "stream_hours",
        "stall_hours",
        "but_for_hours",
        "rollup_runs",
        "chunking_changes",
        "rejected",
    ):
        shared_store.command(f"TRUNCATE TABLE {table}")
    return shared_store
