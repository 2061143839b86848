"""`legato copy` copies an embedded store to a server, and row checksums compare stores."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import httpx
import pytest

from helpers.servers.clickhouse import Server, clickhouse
from helpers.servers.filled import row_counts, send_stalls
from helpers.servers.reading import stream, streams_in
from helpers.servers.serving import legato, serve_process
from legato_ingest.cli.main import main
from legato_ingest.settings import load
from legato_ingest.storage import EmbeddedStore, Store, open_store
from legato_ingest.storage.copy import RowChecksum, checksum_of, copy_rows, partitions_of, tables_of


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[Server]:
    """An empty ClickHouse server."""
    with clickhouse(tmp_path / "server") as running:
        yield running


def test_a_store_is_copied_and_a_copy_continues(full: pathlib.Path, server: Server, tmp_path: pathlib.Path) -> None:
    """All partitions are copied and compared; a second run copies none; after one was lost, only that one is copied again."""
    environ = {"LEGATO_STORE": f"chdb://{full}", "LEGATO_STORE_PASSWORD": server.password}
    first = legato("copy", "--to", server.store, environ=environ, timeout_s=180)
    assert first.returncode == 0 and "equal on both sides" in first.stdout, first.stderr
    source, target = EmbeddedStore(full), open_store(load(store=server.store, store_password=server.password))
    again = list(copy_rows(source, target))
    source.close()
    target.close()
    assert len(again) > 5 and all(each.same and not each.copied for each in again)
    httpx.post(server.url, content="ALTER TABLE verdicts DELETE WHERE 1 SETTINGS mutations_sync = 1").raise_for_status()
    after = legato("copy", "--to", server.store, environ=environ, timeout_s=180)
    assert after.returncode == 0 and "(1 partitions were copied now)" in after.stdout, after.stdout + after.stderr
    with serve_process(full) as here:
        wanted = row_counts(here)
        busy = legato("copy", "--to", server.store, environ=environ)
        assert busy.returncode == 1 and "is in use" in busy.stderr
    with serve_process(tmp_path / "unused", **server.settings) as there:
        assert row_counts(there) == wanted


def test_other_rows_on_the_server_are_reported(full: pathlib.Path, server: Server, tmp_path: pathlib.Path) -> None:
    """The rows of both sides are kept, and the command ends with an error that names the table."""
    with serve_process(tmp_path / "unused", **server.settings) as there:
        send_stalls(there, 3)
    environ = {"LEGATO_STORE": f"chdb://{full}", "LEGATO_STORE_PASSWORD": server.password}
    moved = legato("copy", "--to", server.store, environ=environ, timeout_s=180)
    assert moved.returncode == 1 and "the server has other rows" in moved.stderr and "stream_revs" in moved.stderr


@pytest.mark.parametrize("arguments", [("copy", "--to", "chdb:///x"), ("move", "--to", "x")])
def test_the_target_must_be_a_server(
    arguments: tuple[str, ...], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any other target is an error of one line."""
    monkeypatch.setenv("LEGATO_STORE", f"chdb://{tmp_path}/x")
    monkeypatch.setattr("sys.argv", ["legato", *arguments])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr().err.count("\n") == 1


def test_checksums_depend_on_the_rows_alone(store: Store) -> None:
    """Not on their order, nor on the inserts and merges that stored them; each partition is a part of the sum."""
    streams_in(store, [stream(), stream((20.0, 700.0)), stream(age_s=86_400.0)])
    before = checksum_of(store, "stream_revs", merged=True)
    assert before.rows == 3
    store.command("OPTIMIZE TABLE stream_revs FINAL")
    assert checksum_of(store, "stream_revs", merged=True) == before
    parts = [checksum_of(store, "stream_revs", True, partition) for partition in partitions_of(store, "stream_revs")]
    assert len(parts) == 2
    assert RowChecksum(sum(part.rows for part in parts), sum(part.checksum for part in parts) % 2**64) == before
    assert checksum_of(store, "rejected", merged=True) == (0, 0)


def test_tables_of_data_are_compared(store: Store) -> None:
    """Not those that describe the store itself; tables that replace rows are read merged."""
    tables = tables_of(store)
    assert tables["stream_revs"] and not tables["rollup_runs"]
    assert {"schema_migrations", "writers", "leases", "streams"}.isdisjoint(tables)
