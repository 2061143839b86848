"""`legato copy` copies an embedded store to a server, continues an interrupted copy, and reports differences."""

from __future__ import annotations

import pathlib
import shutil
import time
from collections.abc import Iterator

import httpx
import pytest

from helpers.servers.clickhouse import Server, clickhouse
from helpers.servers.filled import row_counts, send_stalls
from helpers.servers.serving import legato, serve_process
from legato_ingest.cli.main import main
from legato_ingest.settings import Settings, load
from legato_ingest.storage import EmbeddedStore, open_store
from legato_ingest.storage.copy import CopiedPartition, copy_rows
from legato_ingest.storage.wal import WriteAheadLog, folder_of


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[Server]:
    """An empty ClickHouse server."""
    with clickhouse(tmp_path / "server") as running:
        yield running


def copied(store: pathlib.Path, settings: Settings) -> list[CopiedPartition]:
    """The partitions of a store after a copy to a server; all are the same on both sides."""
    source, target = EmbeddedStore(store), open_store(settings)
    try:
        partitions = list(copy_rows(source, target))
    finally:
        source.close()
        target.close()
    assert all(each.same for each in partitions)
    return partitions


def others(server: Server) -> list[int]:
    """The number of the server's own rows in two tables without merges of duplicates."""
    counts = ("count() FROM emitter_spans WHERE tenant = 'there'", "count() FROM objectives")
    return [int(httpx.post(server.url, content=f"SELECT {count}").raise_for_status().text) for count in counts]


def test_a_store_is_copied_and_a_copy_continues(full: pathlib.Path, server: Server, tmp_path: pathlib.Path) -> None:
    """All partitions are copied and compared; a second run copies none; after one was lost, only that one is copied again."""
    environ = {"LEGATO_STORE": f"chdb://{full}", "LEGATO_STORE_PASSWORD": server.password}
    first = legato("copy", "--to", server.store, environ=environ, timeout_s=180)
    assert first.returncode == 0 and "equal on both sides" in first.stdout, first.stderr
    settings = load(store=server.store, store_password=server.password)
    log = WriteAheadLog(folder_of(full))
    log.set_aside(log.append([b"never stored"]), b"never stored")
    log.close()
    aside = legato("copy", "--to", server.store, environ=environ, timeout_s=180)
    assert aside.returncode == 1 and "(0 partitions were copied now)" in aside.stdout and "not included (at most 1)" in aside.stderr
    saved = legato("backup", "aside", environ=environ, timeout_s=120)
    assert saved.returncode == 0 and "not included (at most 1)" in saved.stderr
    (folder_of(full) / "aside.wal").unlink()
    again = copied(full, settings)
    assert len(again) > 5 and not any(each.copied for each in again)
    httpx.post(server.url, content="ALTER TABLE verdicts DELETE WHERE 1 SETTINGS mutations_sync = 1").raise_for_status()
    assert [each.table for each in copied(full, settings) if each.copied] == ["verdicts"]
    with serve_process(full) as here:
        wanted = row_counts(here)
        busy = legato("copy", "--to", server.store, environ=environ)
        assert busy.returncode == 1 and "is in use" in busy.stderr
    with serve_process(tmp_path / "unused", **server.settings) as there:
        assert row_counts(there) == wanted


def test_other_rows_on_the_server_are_reported(full: pathlib.Path, server: Server, tmp_path: pathlib.Path) -> None:
    """The rows of both sides are kept, also in tables without merges, and the command ends with an error that names the tables."""
    with serve_process(tmp_path / "unused", **server.settings) as there:
        send_stalls(there, 3)
    here = tmp_path / "here"
    shutil.copytree(full, here, symlinks=True)
    emitter = f"INSERT INTO emitter_spans (received_at, tenant) SELECT toDateTime({int(time.time())}), "
    embedded = EmbeddedStore(here)
    embedded.command(f"{emitter} 'here'")
    embedded.close()
    httpx.post(server.url, content=f"{emitter} 'there'").raise_for_status()
    before = others(server)
    assert all(before)
    environ = {"LEGATO_STORE": f"chdb://{here}", "LEGATO_STORE_PASSWORD": server.password}
    moved = legato("copy", "--to", server.store, environ=environ, timeout_s=180)
    assert moved.returncode == 1 and "the server has other rows" in moved.stderr and "stream_revs" in moved.stderr
    assert "emitter_spans" in moved.stderr and "objectives" in moved.stderr and others(server) == before


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
