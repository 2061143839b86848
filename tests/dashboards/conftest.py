"""One past for all tests of the dashboards, filled once; each module opens its store anew, as the engine takes one path at a time."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import httpx
import pytest

from helpers.dashboards.panel_past import fill
from helpers.dashboards.panels import Asked, Past
from helpers.servers.reading import reading
from legato_ingest.storage import EmbeddedStore, migrate

SCHEMA = pathlib.Path(__file__).resolve().parents[2] / "schema"
READ_LIMITS: dict[str, int | str] = {
    "max_execution_time": 20,
    "max_memory_usage": 2**31,
    "max_result_rows": 1_000_000,
    "result_overflow_mode": "throw",
}
PATIENCE_S = 60


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, Past]:
    """The folder of the store, which is closed, and what is in it."""
    folder = tmp_path_factory.mktemp("dashboards") / "store"
    store = EmbeddedStore(folder)
    try:
        migrate.apply(store, migrate.load(SCHEMA))
        return folder, fill(store)
    finally:
        store.close()


@pytest.fixture(scope="module")
def past(filled: tuple[pathlib.Path, Past]) -> Past:
    """What the store holds."""
    return filled[1]


@pytest.fixture(scope="module")
def asked(filled: tuple[pathlib.Path, Past]) -> Iterator[Asked]:
    """The read endpoint over the filled store. Nothing is merged while it is open, so its size stays."""
    store = EmbeddedStore(filled[0], READ_LIMITS)
    store.command("SYSTEM STOP MERGES")
    try:
        with reading(store) as url, httpx.Client(timeout=PATIENCE_S) as client:
            yield Asked(filled[1], store, url, client)
    finally:
        store.close()
