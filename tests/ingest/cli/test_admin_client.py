"""Tests of where administration commands run: here, or in the process that holds the store's lock."""

from __future__ import annotations

import pathlib

import pytest

from legato_ingest.cli import admin_client
from legato_ingest.errors import LegatoError, Locked
from legato_ingest.settings import load
from legato_ingest.storage import EmbeddedStore
from legato_ingest.storage.lock import StoreLock


# httpcore leaves the socket of a failed connection to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_held_store_without_an_admin_socket_is_an_error(tmp_path: pathlib.Path) -> None:
    """The message names the lock's holder and the socket."""
    settings = load(store=f"chdb://{tmp_path}/store")
    (settings.store_path / "data").mkdir(parents=True)
    with StoreLock(settings.store_path), pytest.raises(Locked, match="admin socket .* does not answer"):
        admin_client.schema_status(settings)


def test_backup_needs_an_embedded_store() -> None:
    """A ClickHouse server has its own BACKUP statement."""
    with pytest.raises(LegatoError, match="use its BACKUP statement"):
        admin_client.backup(load(store="clickhouse://legato@127.0.0.1:9/default"), "x")


def test_a_store_without_tables_is_not_backed_up(tmp_path: pathlib.Path) -> None:
    """An empty backup would look like a good one; no file is left."""
    settings = load(store=f"chdb://{tmp_path}/store")
    EmbeddedStore(settings.store_path).close()
    with pytest.raises(LegatoError, match="no tables, so there is nothing to back up"):
        admin_client.backup(settings, "x")
    assert not (tmp_path / "store.backups").exists()


def test_a_free_store_is_opened_here(tmp_path: pathlib.Path) -> None:
    """The lock is free again afterwards."""
    settings = load(store=f"chdb://{tmp_path}/store")
    assert len(admin_client.schema_apply(settings)) > 5 and admin_client.schema_apply(settings) == []
    assert all(file["applied"] for file in admin_client.schema_status(settings)["files"])
    with StoreLock(settings.store_path):
        pass
