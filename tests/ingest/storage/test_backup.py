"""`legato backup` and `legato restore`: the restored rows are the rows of the store, and errors lose nothing."""

from __future__ import annotations

import json
import pathlib

import pytest

from helpers.servers.filled import row_counts, send_stalls
from helpers.servers.reading import open_store
from helpers.servers.serving import legato, serve_process
from legato_ingest.cli.main import main
from legato_ingest.errors import LegatoError
from legato_ingest.storage import EmbeddedStore
from legato_ingest.storage.backup import drop_unfinished, restore
from legato_ingest.storage.lock import StoreLock


def backup_of(store: pathlib.Path) -> pathlib.Path:
    """The file of the backup that the fixture made."""
    return store.with_name("store.backups") / "one.tzst"


def test_a_backup_made_under_load_is_restored(full: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Into a new store: everything acknowledged before the backup began, and each stream once."""
    target = tmp_path / "new"
    restored = legato("restore", str(backup_of(full)), "--store", f"chdb://{target}", timeout_s=120)
    assert restored.returncode == 0 and "identical to the backup" in restored.stdout, restored.stderr
    wanted = json.loads(backup_of(full).with_suffix(".json").read_text())["tables"]["stream_revs"]
    with serve_process(target) as served:
        assert row_counts(served) == [str(each) for each in wanted]
        send_stalls(served, 5)
        assert row_counts(served)[0] == str(wanted[0] + 5) and wanted[0] >= 200


def test_a_restore_needs_an_unused_empty_store(full: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A store with tables, a store in use, a missing backup: each is refused, and nothing is changed."""
    with pytest.raises(LegatoError, match="holds tables already"):
        restore(backup_of(full), full)
    with StoreLock(tmp_path / "held"):
        held = legato("restore", str(backup_of(full)), "--store", f"chdb://{tmp_path}/held")
        assert held.returncode == 1 and "is in use" in held.stderr and held.stderr.count("\n") == 1
    with pytest.raises(LegatoError, match="is no backup"):
        restore(tmp_path / "none.tzst", tmp_path / "x")


def test_a_damaged_backup_is_an_error(full: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A manifest that does not match, and a file that was cut off."""
    copy = tmp_path / "copy.tzst"
    copy.write_bytes(backup_of(full).read_bytes())
    manifest = json.loads(backup_of(full).with_suffix(".json").read_text())
    manifest["tables"]["stream_revs"][0] += 1
    copy.with_suffix(".json").write_text(json.dumps(manifest))
    with pytest.raises(LegatoError, match="but stream_revs differ from what was backed up"):
        restore(copy, tmp_path / "wrong")
    copy.write_bytes(backup_of(full).read_bytes()[:-1000])
    cut = legato("restore", str(copy), "--store", f"chdb://{tmp_path}/cut", timeout_s=120)
    assert cut.returncode == 1 and "Traceback" not in cut.stderr
    with pytest.raises(LegatoError, match=f"the store {tmp_path}/wrong lacks rows"):
        EmbeddedStore(tmp_path / "wrong")


def test_a_restore_that_was_cut_off_is_repeated(full: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the store has tables and lacks rows: nothing opens it. The next restore empties it first."""
    target = tmp_path / "new"
    with monkeypatch.context() as ended:
        ended.setattr("legato_ingest.storage.backup.checksum_of", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            restore(backup_of(full), target)
    for command in (("serve",), ("rollup", "--since", "all")):
        refused = legato(*command, environ={"LEGATO_STORE": f"chdb://{target}"})
        assert refused.returncode == 1 and "a `legato restore` into it did not end" in refused.stderr, refused.stderr
    assert restore(backup_of(full), target)["rows"] > 200
    EmbeddedStore(target).close()


def test_serve_drops_what_a_killed_backup_left(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """The tables into which it was restored are as large as the store."""
    with open_store(tmp_path / "store") as store:
        drop_unfinished(store)
        assert not caplog.records
        store.command("CREATE DATABASE legato_backup_check")
        drop_unfinished(store)
        assert "a backup did not end" in caplog.text
        assert store.select("SELECT count() FROM system.databases WHERE name = 'legato_backup_check'") == [(0,)]


def test_a_server_is_not_backed_up_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A ClickHouse server has its own BACKUP statement, and the message names it."""
    monkeypatch.setenv("LEGATO_STORE", "clickhouse://h/d")
    monkeypatch.setattr("sys.argv", ["legato", "backup"])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert "BACKUP statement" in capsys.readouterr().err
