"""Parts that a full disk cut short: found before anybody is told that they are stored, and undone before what they replaced is gone."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_ingest.errors import StoreUnavailable
from legato_ingest.parts import Parts, check_room, fault_of
from legato_ingest.store import Store

# What a store does on a disk that takes nothing: in a process of its own, as the limit holds for all of a process's files.
FULL_DISK = """
import pathlib, resource, signal, sys
import pyarrow as pa
from legato_ingest.errors import StoreUnavailable
from legato_ingest.store import Store

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
store = Store(pathlib.Path(sys.argv[1]))
store.command("CREATE TABLE t (a UInt64, b String) ENGINE = MergeTree ORDER BY a SETTINGS min_bytes_for_wide_part = " + sys.argv[2])
store.keep_sources()
store.command("SYSTEM STOP MERGES t")
rows = lambda first: pa.table({"a": list(range(first, first + 1000)), "b": ["x" * 50] * 1000})
for first in range(0, 5000, 1000):
    store.insert("t", rows(first))
store.command("SYSTEM START MERGES t")
check, store._before = store._before, lambda: None
said = []

def tried(what, *arguments):
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        what(*arguments)
        said.append("went well")
    except StoreUnavailable as error:
        said.append(str(error))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

tried(store.command, "OPTIMIZE TABLE t FINAL")
# As by a program that buffers no file of its own before: the engine writes, and nothing else does.
tried(store.command, "INSERT INTO t SELECT number + 1000000, '' FROM numbers(10)")
tried(check)
print(store.select("SELECT count(), sum(a) FROM t"))
store.insert("t", rows(5000))
store.command("OPTIMIZE TABLE t FINAL")
print(store.select("SELECT count(), sum(a) FROM t"))
print(*said, sep="\\n")
store.close()
"""


@pytest.mark.parametrize("wide", [True, False], ids=["wide", "compact"])
def test_what_a_full_disk_did_not_take_is_undone(tmp_path: pathlib.Path, wide: bool) -> None:
    """A merge and an insert whose writes fail unseen are told as failed; no row that was stored is lost, none that was not is there."""
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "store"), "0" if wide else "1000000000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    full, again, merge, insert, room = done.stdout.splitlines()
    assert full == str([(5000, sum(range(5000)))])
    assert again == str([(6000, sum(range(6000)))])
    assert merge.startswith("the disk did not take what was written: of t's part ")
    assert insert.startswith("the disk did not take what was written: of t's part ")
    assert room == f"the disk of {tmp_path / 'store'} takes nothing: File too large"


@pytest.fixture(scope="module")
def part(shared_store: Store, tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, int]:
    """A copy of a part that the engine wrote, and how many bytes it says that it wrote."""
    store = shared_store
    store.command("CREATE TABLE some_parts (a UInt64, b String) ENGINE = MergeTree ORDER BY a SETTINGS min_bytes_for_wide_part = 0")
    try:
        store.command("INSERT INTO some_parts SELECT number, toString(number) FROM numbers(20000)")
        ((size, path),) = store.select("SELECT bytes_on_disk, path FROM system.parts WHERE table = 'some_parts' AND active")
        copy = tmp_path_factory.mktemp("parts") / "part"
        shutil.copytree(str(path), copy)
    finally:
        store.command("DROP TABLE some_parts SYNC")
    return copy, int(size)


def test_a_whole_part_has_no_fault(part: tuple[pathlib.Path, int]) -> None:
    """The engine's word and the disk's agree to the byte."""
    folder, size = part
    assert fault_of(folder, size) is None
    assert sum(path.stat().st_size for path in folder.iterdir() if path.suffix != ".txt" or path.name in ("count.txt", "ttl.txt")) == size


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_file_that_is_cut_off_is_found(part: tuple[pathlib.Path, int], data: st.DataObject) -> None:
    """Whatever file is shorter than it was meant to be, by whatever length, is told."""
    folder, size = part
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(whole[:cut])
    try:
        found = fault_of(folder, size)
    finally:
        path.write_bytes(whole)
    # A text that is cut where one may end cannot be told from a whole one.
    ends = {"columns.txt": b"\n", "columns_substreams.txt": b"\n", "metadata_version.txt": b""}
    assert found is not None or (cut and path.name in ends and whole[:cut].endswith(ends[path.name]))


def test_a_part_is_looked_at_once_and_one_that_is_gone_is_no_fault(part: tuple[pathlib.Path, int], tmp_path: pathlib.Path) -> None:
    """What was whole stays so; a part that was merged away meanwhile is nobody's loss; what is cut short is told each time."""
    folder, size = part
    parts = Parts()
    assert parts.faults([("t", "p", size, str(folder))]) == []
    assert parts.faults([("t", "p", size + 1, str(folder)), ("t", "gone", 5, str(tmp_path / "gone"))]) == []
    parts.forget(())
    for _ in range(2):
        assert parts.faults([("t", "p", size + 1, str(folder))]) == [("t", "p", f"{size:,} bytes are there of {size + 1:,}")]


def test_a_disk_with_room_is_nothing_to_tell(tmp_path: pathlib.Path) -> None:
    """The look leaves nothing behind; a disk that is gone is told."""
    check_room(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "probe").mkdir()
    with pytest.raises(StoreUnavailable, match="takes nothing: Is a directory"):
        check_room(tmp_path)


def test_every_table_keeps_what_a_merge_replaced(store: Store) -> None:
    """Also those of older stores: the schema is brought up to it each time."""
    store.keep_sources()
    sql = "SELECT countIf(create_table_query LIKE '%old_parts_lifetime = 480%'), count() FROM system.tables"
    ((kept, tables),) = store.select(f"{sql} WHERE database = currentDatabase() AND engine LIKE '%MergeTree'")
    assert kept == tables > 15
