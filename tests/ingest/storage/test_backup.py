"""Backups, restores and moves, by the commands: what comes out is what went in, proven; what is wrong is told and nothing is lost by it."""

from __future__ import annotations

import json
import pathlib
import threading
from collections.abc import Iterator

import httpx
import pytest

from helpers.builders.spans import native_span, request
from helpers.servers.clickhouse import Server, clickhouse
from helpers.servers.reading import stream
from helpers.servers.serving import Served, legato, serve_process

HEADERS = {"content-type": "application/x-protobuf"}


def send(served: Served, count: int) -> None:
    """So many streams with a stall each."""
    body = request()
    for _ in range(count):
        made = stream((20.0,) * 10 + (700.0,) + (20.0,) * 8, holds_ms=(0.0,) * 10 + (690.0,) + (0.0,) * 9)
        native_span(body, made["attributes"], duration_ns=made["duration_ns"])
    assert httpx.post(f"{served.otlp}/v1/traces", content=body.SerializeToString(), headers=HEADERS, timeout=60).status_code == 200


def counts(served: Served) -> list[str]:
    """What a reader counts."""
    sql = "SELECT (SELECT count() FROM streams), (SELECT sum(cityHash64(toString(tuple(*)))) FROM stream_revs FINAL)"
    return httpx.post(served.read, content=sql).text.split()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """A store with streams, verdicts and minutes, a backup of it made while it was written to, and nobody at it."""
    store = tmp_path_factory.mktemp("full") / "store"
    fast = {"LEGATO_ATTRIBUTE_EVERY_S": "0.2", "LEGATO_ATTRIBUTE_GRACE_S": "0", "LEGATO_ROLLUP_EVERY_S": "0.2"}
    with serve_process(store, **fast) as served:
        send(served, 200)
        done = threading.Event()

        def go_on() -> None:
            while not done.is_set():
                send(served, 20)

        sender = threading.Thread(target=go_on)
        sender.start()
        made = legato("backup", "one", environ=served.environ, timeout_s=120)
        done.set()
        sender.join()
        assert made.returncode == 0 and "restored once, and the same" in made.stdout, made.stderr
        again = legato("backup", "one", environ=served.environ)
        assert again.returncode == 1 and "exists already" in again.stderr
        assert legato("backup", "../one", environ=served.environ).returncode == 1
    return (yield store)


def backup_of(store: pathlib.Path) -> pathlib.Path:
    return store.with_name("store.backups") / "one.tzst"


def test_a_backup_that_was_made_under_load_is_restored_whole(full: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Into a new store, which serves it: all that was acknowledged before it began, and each stream once."""
    target = tmp_path / "new"
    restored = legato("restore", str(backup_of(full)), "--store", f"chdb://{target}", timeout_s=120)
    assert restored.returncode == 0 and "the same as were backed up" in restored.stdout, restored.stderr
    wanted = json.loads(backup_of(full).with_suffix(".json").read_text())["tables"]["stream_revs"]
    with serve_process(target) as served:
        assert counts(served) == [str(each) for each in wanted]
        send(served, 5)
        assert counts(served)[0] == str(wanted[0] + 5) and wanted[0] >= 200


def test_a_restore_touches_nothing_that_is_in_use_or_holds_rows(full: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A store with tables, one that is served, no backup at all: one line each, and nothing is changed."""
    there = legato("restore", str(backup_of(full)), "--store", f"chdb://{full}")
    assert there.returncode == 1 and "holds tables already" in there.stderr
    with serve_process(tmp_path / "served") as served:
        held = legato("restore", str(backup_of(full)), "--store", f"chdb://{served.store}")
        assert held.returncode == 1 and "is in use" in held.stderr
    none = legato("restore", str(tmp_path / "none.tzst"), "--store", f"chdb://{tmp_path}/x")
    assert none.returncode == 1 and "no backup" in none.stderr


def test_a_backup_that_is_not_what_was_backed_up_is_told(full: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A manifest of something else, and a file that was cut off."""
    copy = tmp_path / "copy.tzst"
    copy.write_bytes(backup_of(full).read_bytes())
    manifest = json.loads(backup_of(full).with_suffix(".json").read_text())
    manifest["tables"]["stream_revs"][0] += 1
    copy.with_suffix(".json").write_text(json.dumps(manifest))
    wrong = legato("restore", str(copy), "--store", f"chdb://{tmp_path}/wrong", timeout_s=120)
    assert wrong.returncode == 1 and "stream_revs differ" in wrong.stderr
    copy.write_bytes(backup_of(full).read_bytes()[:-1000])
    cut = legato("restore", str(copy), "--store", f"chdb://{tmp_path}/cut", timeout_s=120)
    assert cut.returncode == 1 and "Traceback" not in cut.stderr


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[Server]:
    with clickhouse(tmp_path / "server") as running:
        yield running


def test_a_store_moves_to_a_server_and_may_be_cut_off(full: pathlib.Path, server: Server, tmp_path: pathlib.Path) -> None:
    """Copied, compared, run again without copying anything; after some of it was lost there, only that is copied again."""
    environ = {"LEGATO_STORE": f"chdb://{full}", "LEGATO_STORE_PASSWORD": server.password}
    first = legato("copy", "--to", server.store, environ=environ, timeout_s=180)
    assert first.returncode == 0 and "the same on both sides" in first.stdout, first.stderr
    again = legato("copy", "--to", server.store, environ=environ, timeout_s=180)
    assert again.returncode == 0 and "(0 were copied now)" in again.stdout
    httpx.post(server.url, content="ALTER TABLE verdicts DELETE WHERE 1 SETTINGS mutations_sync = 1").raise_for_status()
    after = legato("copy", "--to", server.store, environ=environ, timeout_s=180)
    assert after.returncode == 0 and "(1 were copied now)" in after.stdout, after.stdout + after.stderr
    with serve_process(full) as here:
        wanted = counts(here)
        busy = legato("copy", "--to", server.store, environ=environ)
        assert busy.returncode == 1 and "is in use" in busy.stderr
    with serve_process(tmp_path / "unused", **server.settings) as there:
        assert counts(there) == wanted


def test_a_server_with_rows_of_its_own_is_told(full: pathlib.Path, server: Server, tmp_path: pathlib.Path) -> None:
    """Nothing is lost: both sides' rows are there, and the command says that they differ."""
    with serve_process(tmp_path / "unused", **server.settings) as there:
        send(there, 3)
    environ = {"LEGATO_STORE": f"chdb://{full}", "LEGATO_STORE_PASSWORD": server.password}
    moved = legato("copy", "--to", server.store, environ=environ, timeout_s=180)
    assert moved.returncode == 1 and "rows of its own" in moved.stderr and "stream_revs" in moved.stderr


@pytest.mark.parametrize("arguments", [("copy", "--to", "chdb:///x"), ("move", "--to", "x")])
def test_only_a_server_is_moved_to(arguments: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    """One line."""
    failed = legato(*arguments, environ={"LEGATO_STORE": f"chdb://{tmp_path}/x"})
    assert failed.returncode == 1 and failed.stderr.count("\n") == 1


def test_a_server_is_not_backed_up_here() -> None:
    """A ClickHouse server has its own BACKUP statement, and the message names it."""
    failed = legato("backup", environ={"LEGATO_STORE": "clickhouse://h/d"})
    assert failed.returncode == 1 and "BACKUP statement" in failed.stderr
