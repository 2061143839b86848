"""Damaged parts of a full disk: found before their rows are acknowledged, and repaired before the parts that they replaced are deleted."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import cast

import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from legato_ingest.errors import StoreUnavailable
from legato_ingest.storage import EmbeddedStore, Store
from legato_ingest.storage.chdb_integrity import PartIntegrity, check_room

# A store on a disk that rejects writes, in a separate process because the limit applies to all files of a process.
FULL_DISK = """
import pathlib, resource, signal, sys
import pyarrow as pa
from legato_ingest.errors import StoreUnavailable
from legato_ingest.storage import EmbeddedStore, chdb

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
store = EmbeddedStore(pathlib.Path(sys.argv[1]))
store.command("CREATE TABLE t (a UInt64, b String) ENGINE = MergeTree ORDER BY a SETTINGS min_bytes_for_wide_part = " + sys.argv[2])
store.keep_merged_parts()
store.command("SYSTEM STOP MERGES t")
rows = lambda first: pa.table({"a": list(range(first, first + 1000)), "b": ["x" * 50] * 1000})
for first in range(0, 5000, 1000):
    store.insert("t", rows(first))
store.command("SYSTEM START MERGES t")
check, chdb.check_room = chdb.check_room, lambda _: None
reported = []

def attempt(work, *arguments):
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        work(*arguments)
        reported.append("no error")
    except StoreUnavailable as error:
        reported.append(str(error))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

attempt(store.command, "OPTIMIZE TABLE t FINAL")
# Only the engine writes a file here.
attempt(store.command, "INSERT INTO t SELECT number + 1000000, '' FROM numbers(10)")
attempt(check, pathlib.Path(sys.argv[1]))
print(store.select("SELECT count(), sum(a) FROM t"))
store.insert("t", rows(5000))
store.command("OPTIMIZE TABLE t FINAL")
print(store.select("SELECT count(), sum(a) FROM t"))
print(*reported, sep="\\n")
store.close()
"""


@pytest.mark.parametrize("wide", [True, False], ids=["wide", "compact"])
def test_what_a_full_disk_rejected_is_undone(tmp_path: pathlib.Path, wide: bool) -> None:
    """A merge and an insert with failed writes are reported; no stored row is lost, and no other row appears."""
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "store"), "0" if wide else "1000000000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    full, again, merge, insert, room = done.stdout.splitlines()
    assert full == str([(5000, sum(range(5000)))])
    assert again == str([(6000, sum(range(6000)))])
    assert merge.startswith("a write to the disk failed: part ") and " of table t is damaged (" in merge
    assert insert.startswith("a write to the disk failed: part ") and " of table t is damaged (" in insert
    assert room == f"the disk of {tmp_path / 'store'} rejects writes: File too large"


# An insert with a write that the disk has lost, and another change that finds the damaged part before the insert does.
RACE = """
import os, pathlib, sys
import pyarrow as pa
from legato_ingest.errors import StoreUnavailable
from legato_ingest.storage import EmbeddedStore
from legato_ingest.storage.chdb_integrity import folders_of

store = EmbeddedStore(pathlib.Path(sys.argv[1]))
for table in ("t", "other"):
    store.command(f"CREATE TABLE {table} (a UInt64) ENGINE = MergeTree ORDER BY a")
store.insert("t", pa.table({"a": pa.array([1], pa.uint64())}))
clone, check = store.clone(), EmbeddedStore._check

def check_later(self, writer, table=""):
    if self is store and table == "t":
        (folder,) = folders_of(writer)["t"]
        for each in (pathlib.Path(folder) / "all_2_2_0").glob("*.bin"):
            os.truncate(each, 0)
        try:
            if sys.argv[2] == "scrub":
                clone._scrub.suspect("all_2_2_0")
                clone.scrub(1)
            elif sys.argv[2] == "purge":
                clone.give_back_memory()
            else:
                clone.insert("other", pa.table({"a": pa.array([1], pa.uint64())})) if sys.argv[2] == "insert" else clone.verify()
        except StoreUnavailable as error:
            print("other:", error)
    return check(self, writer, table)

EmbeddedStore._check = check_later
try:
    if sys.argv[3] == "rows":
        store.insert("t", pa.table({"a": pa.array([2], pa.uint64())}))
    else:
        store.command("INSERT INTO t SELECT 2")
    print("stored")
except StoreUnavailable:
    print("not stored")
print(store.select("SELECT a FROM t"))
"""


@pytest.mark.parametrize(
    "change, of", [("verify", "rows"), ("scrub", "rows"), ("insert", "rows"), ("purge", "rows"), ("verify", "a query")]
)
def test_an_insert_fails_if_another_change_has_set_its_part_aside(tmp_path: pathlib.Path, change: str, of: str) -> None:
    """It would be acknowledged, or a rollup recorded, because its own check finds nothing damaged any more."""
    command = [sys.executable, "-c", RACE, str(tmp_path / "store"), change, of]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-2:] == ["not stored", "[(1,)]"], done.stdout + done.stderr


# Parts with a fault that the engine tolerates when it loads them.
TOLERATED = """
import pathlib, sys
import pyarrow as pa
from legato_ingest.errors import StoreUnavailable
from legato_ingest.storage import EmbeddedStore
from legato_ingest.storage.chdb_integrity import folders_of

store = EmbeddedStore(pathlib.Path(sys.argv[1]))
store.command("CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a")
store.command("SYSTEM STOP MERGES t")
for number in range(3):
    store.insert("t", pa.table({"a": pa.array([number], pa.uint64())}))
with store._write() as writer:
    (folder,) = folders_of(writer)["t"]
for each in pathlib.Path(folder).glob("all_*/default_compression_codec.txt"):
    each.write_bytes(b"")
store._integrity.forget([folder])
outcomes = []
for number in range(3, 7):
    try:
        store.insert("t", pa.table({"a": pa.array([number], pa.uint64())}))
        outcomes.append("stored")
    except StoreUnavailable:
        outcomes.append("refused")
print(*outcomes)
"""


def test_parts_with_a_fault_that_the_engine_tolerates_are_accepted_once(tmp_path: pathlib.Path) -> None:
    """Several of one table: the first insert is refused, and no later one."""
    command = [sys.executable, "-c", TOLERATED, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["refused", "stored", "stored", "stored"], done.stdout + done.stderr


def test_a_part_is_read_once_and_a_deleted_one_is_no_fault(part: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A complete part is read once. Folders that are written, deleted or set aside are not read. A damaged part is reported each time."""
    table, parts = tmp_path / "table", PartIntegrity()
    others = [f"{word}_all_1_2_1" for word in ("tmp_merge", "delete_tmp", "clone", "broken-on-start", "covered-by-broken")]
    for name in ("all_1_1_0", "all_2_2_0", *others, "detached"):
        shutil.copytree(part, table / name)
    for name in others:
        (table / name / "checksums.txt").unlink()
    (table / "all_2_2_0" / "checksums.txt").write_bytes(b"")
    (table / "format_version.txt").write_text("1")
    for _ in range(2):
        assert parts.faults({"t": [str(table)]}) == [("t", "all_2_2_0", "checksums.txt is cut off")]
    shutil.rmtree(table / "all_2_2_0")
    (table / "all_1_1_0" / "checksums.txt").write_bytes(b"")
    assert parts.faults({"t": [str(table)]}) == []
    parts.forget([str(table)])
    assert [name for _, name, _ in parts.faults({"t": [str(table)]})] == ["all_1_1_0"]


def test_a_disk_with_room_raises_nothing(tmp_path: pathlib.Path) -> None:
    """The check leaves no file behind; a disk that rejects a write is reported."""
    check_room(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / f"probe-{threading.get_ident()}").mkdir()
    with pytest.raises(StoreUnavailable, match="rejects writes: Is a directory"):
        check_room(tmp_path)


def test_threads_may_check_for_room_at_the_same_time(tmp_path: pathlib.Path) -> None:
    """No thread takes the probe of another for a full disk."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: check_room(tmp_path), range(400)))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def table(shared_store: Store) -> Iterator[tuple[EmbeddedStore, pathlib.Path]]:
    """A table of three parts, and its folder."""
    shared_store.command("CREATE TABLE cut_short (a UInt64) ENGINE = MergeTree ORDER BY a SETTINGS min_bytes_for_wide_part = 0")
    shared_store.command("SYSTEM STOP MERGES cut_short")
    for first in (0, 100, 200):
        shared_store.insert("cut_short", pa.table({"a": list(range(first, first + 100))}))
    ((paths,),) = shared_store.select("SELECT data_paths FROM system.tables WHERE name = 'cut_short'")
    assert isinstance(shared_store, EmbeddedStore)
    yield shared_store, pathlib.Path(paths[0])
    shared_store.command("DROP TABLE cut_short SYNC")


def test_a_table_in_use_is_repaired(table: tuple[EmbeddedStore, pathlib.Path]) -> None:
    """A running query delays the repair; then the table is available to all clones, without the damaged part."""
    store, folder = table
    other = store.clone()
    sql = "SELECT count() FROM cut_short WHERE NOT ignore(sleepEachRow(0.02)) SETTINGS max_block_size = 1, max_threads = 1"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(other.select, sql)
        time.sleep(0.5)
        data = folder / "all_2_2_0" / "a.bin"
        data.write_bytes(data.read_bytes()[:-1])
        store._integrity.forget([f"{folder}/"])
        with pytest.raises(StoreUnavailable, match="part all_2_2_0 of table cut_short is damaged"):
            store.verify()
        reading.exception(30)
    store.verify()
    assert other.select("SELECT count(), sum(a) FROM cut_short") == [(200, sum(range(100)) + sum(range(200, 300)))]
    other.insert("cut_short", pa.table({"a": [7]}))
    other.close()


def test_a_table_that_was_created_again_is_checked_in_its_new_folder(table: tuple[EmbeddedStore, pathlib.Path]) -> None:
    """The folder that the store remembers was deleted; inserted rows are checked in the new folder."""
    store, folder = table
    store.command("RENAME TABLE cut_short TO cut_short_before")
    store.command("CREATE TABLE cut_short (a UInt64) ENGINE = MergeTree ORDER BY a")
    store.command("DROP TABLE cut_short_before SYNC")
    store._folders["cut_short"] = [f"{folder}/"]
    store.insert("cut_short", pa.table({"a": [7]}))
    ((paths,),) = store.select("SELECT data_paths FROM system.tables WHERE name = 'cut_short'")
    assert store._folders["cut_short"] == paths and not folder.exists()
    assert "all_1_1_0" in store._integrity._complete[paths[0]]


def _tolerated(folder: pathlib.Path) -> None:
    """Give a part of the table a fault that the engine does not mind: it needs no file with a part's codec."""
    (folder / "all_2_2_0" / "default_compression_codec.txt").write_bytes(b"COD")


def _aged(folder: pathlib.Path) -> None:
    """Let the part have been written ten minutes ago."""
    os.utime(folder / "all_2_2_0", (time.time() - 600,) * 2)


def test_an_old_part_with_a_fault_that_the_engine_tolerates_is_accepted(table: tuple[EmbeddedStore, pathlib.Path]) -> None:
    """For good, so that inserts go on. A new part is not: it may be a merge that is written again and again on a full disk."""
    store, folder = table
    _tolerated(folder)
    store._integrity.forget([f"{folder}/"])
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="part all_2_2_0 of table cut_short is damaged"):
            store.insert("cut_short", pa.table({"a": [7]}))
    _aged(folder)
    with pytest.raises(StoreUnavailable, match="part all_2_2_0 of table cut_short is damaged"):
        store.insert("cut_short", pa.table({"a": [7]}))
    for _ in range(2):
        store.insert("cut_short", pa.table({"a": [8]}))
        store._integrity.forget([f"{folder}/"])
    assert store.select("SELECT count() FROM cut_short WHERE a >= 100") == [(200,)]


def test_another_part_of_the_same_name_is_not_accepted(table: tuple[EmbeddedStore, pathlib.Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has written it since the table was loaded, with the same fault."""
    store, folder = table
    part, attach = folder / "all_2_2_0", store._integrity.attach
    _tolerated(folder)
    _aged(folder)
    store._integrity.forget([f"{folder}/"])

    def attach_and_write_again(writer: Client) -> set[str]:
        loaded = attach(writer)
        shutil.copytree(part, folder / "copy")
        part.rename(folder / "before")
        (folder / "copy").rename(part)
        return loaded

    with monkeypatch.context() as patched:
        patched.setattr(store._integrity, "attach", attach_and_write_again)
        with pytest.raises(StoreUnavailable, match="part all_2_2_0 of table cut_short is damaged"):
            store.verify()
    assert "all_2_2_0" not in store._integrity.complete().get(f"{folder}/", set())


class Refusing:
    """A client of an engine that detaches no table."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def command(self, sql: str) -> object:
        """Run the statement, or refuse it."""
        if sql.startswith("DETACH"):
            raise ClickHouseError("Code: 241. DB::Exception: memory limit exceeded")
        return self.client.command(sql)

    def __getattr__(self, name: str) -> object:
        return getattr(self.client, name)


def test_a_part_of_a_table_that_was_not_loaded_again_is_not_accepted(
    table: tuple[EmbeddedStore, pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine detaches no table for the moment: the insert is refused, and the part is set aside later."""
    store, folder = table
    data = folder / "all_2_2_0" / "a.bin"
    data.write_bytes(data.read_bytes()[:-1])
    store._integrity.forget([f"{folder}/"])
    repair = store._integrity.repair
    with monkeypatch.context() as patched:
        patched.setattr(store._integrity, "repair", lambda writer, *more: repair(cast(Client, Refusing(writer)), *more))
        with pytest.raises(StoreUnavailable, match="part all_2_2_0 of table cut_short is damaged"):
            store.insert("cut_short", pa.table({"a": [7]}))
    assert "all_2_2_0" not in store._integrity.complete().get(f"{folder}/", set())
    with contextlib.suppress(StoreUnavailable):
        store.verify()
    store.insert("cut_short", pa.table({"a": [7]}))
    assert not data.exists() and store.select("SELECT count() FROM cut_short WHERE a >= 100") == [(100,)]


def test_every_table_keeps_what_a_merge_replaced(store: Store) -> None:
    """Also those of older stores: the schema is brought up to it each time."""
    store.keep_merged_parts()
    sql = "SELECT countIf(create_table_query LIKE '%old_parts_lifetime = 120%'), count() FROM system.tables"
    ((kept, tables),) = store.select(f"{sql} WHERE database = currentDatabase() AND engine LIKE '%MergeTree'")
    assert kept == tables > 15
