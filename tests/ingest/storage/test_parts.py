"""Parts that a full disk cut short: found before anybody is told that they are stored, and undone before what they replaced is gone."""

from __future__ import annotations

import concurrent.futures
import pathlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from legato_ingest.errors import StoreUnavailable
from legato_ingest.storage.chdb import Store
from legato_ingest.storage.parts import Parts, _listed, check_room, fault_of, parts_of

# What a store does on a disk that takes nothing: in a process of its own, as the limit holds for all of a process's files.
FULL_DISK = """
import pathlib, resource, signal, sys
import pyarrow as pa
from legato_ingest.errors import StoreUnavailable
from legato_ingest.storage.chdb import Store

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
check, store._before = store._before, lambda *_: None
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


@pytest.fixture(scope="module", params=["wide", "compact", "lz4"])
def part(request: pytest.FixtureRequest, shared_store: Store, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of a part that the engine wrote."""
    store, rule = shared_store, {"wide": "0", "compact": "1000000000", "lz4": "0"}[request.param]
    codec = "CODEC(LZ4)" if request.param == "lz4" else "CODEC(ZSTD(1))"
    store.command(
        f"CREATE TABLE some_parts (a UInt64 {codec}, b LowCardinality(String), c Nullable(UInt8), INDEX i c TYPE minmax)"
        f" ENGINE = MergeTree ORDER BY a TTL toDateTime(a) + INTERVAL 1 DAY SETTINGS min_bytes_for_wide_part = {rule}"
    )
    try:
        store.command("SYSTEM STOP MERGES some_parts")
        store.command("INSERT INTO some_parts SELECT 4000000000 + number, toString(number % 9), NULL FROM numbers(20000)")
        ((size, path),) = store.select("SELECT bytes_on_disk, path FROM system.parts WHERE table = 'some_parts' AND active")
        copy = tmp_path_factory.mktemp("parts") / "all_1_1_0"
        shutil.copytree(str(path), copy)
    finally:
        store.command("DROP TABLE some_parts SYNC")
    listed = _listed((copy / "checksums.txt").read_bytes())
    # The list is read as the engine wrote it: what it adds up to is what the engine says that it wrote.
    assert listed and sum(listed.values()) == size and set(listed) < {each.name for each in copy.iterdir()}
    return copy


def test_a_whole_part_has_no_fault(part: pathlib.Path) -> None:
    """What the engine wrote is what is there; more files than the list has are none of its concern."""
    assert fault_of(part) is None
    (part / "invalidated_system_columns.txt").write_text("as of a restored part")
    assert fault_of(part) is None
    (part / "invalidated_system_columns.txt").unlink()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_file_that_is_cut_off_is_found(part: pathlib.Path, data: st.DataObject) -> None:
    """Whatever file is shorter than it was meant to be, by whatever length, is told."""
    path = data.draw(st.sampled_from(sorted(part.iterdir())))
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, max(len(whole) - 1, 0)))
    path.write_bytes(whole[:cut])
    try:
        found = fault_of(part)
    finally:
        path.write_bytes(whole)
    # A text that is cut where one may end cannot be told from a whole one; an empty file cannot be cut.
    ends = {"columns.txt": b"\n", "columns_substreams.txt": b"\n", "metadata_version.txt": b""}
    assert found is not None or not whole or (cut and path.name in ends and whole[:cut].endswith(ends[path.name]))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10_000), junk=st.binary(max_size=40))
def test_any_list_is_read_or_cut_off(part: pathlib.Path, at: int, junk: bytes) -> None:
    """Whatever bytes it has, it raises nothing."""
    path = part / "checksums.txt"
    whole = path.read_bytes()
    path.write_bytes(whole[: at % len(whole)] + junk)
    try:
        fault_of(part)
    finally:
        path.write_bytes(whole)


def test_a_part_is_looked_at_once_and_one_that_is_gone_is_no_fault(part: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """What was whole stays so; what is being written, set aside or no part is not looked at; what is cut short is told each time."""
    table, parts = tmp_path / "table", Parts()
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


def test_a_disk_with_room_is_nothing_to_tell(tmp_path: pathlib.Path) -> None:
    """The look leaves nothing behind; a disk that is gone is told."""
    check_room(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / f"probe-{threading.get_ident()}").mkdir()
    with pytest.raises(StoreUnavailable, match="takes nothing: Is a directory"):
        check_room(tmp_path)


def test_many_may_ask_for_room_at_once(tmp_path: pathlib.Path) -> None:
    """None of them takes another's probe for a full disk."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: check_room(tmp_path), range(400)))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def table(shared_store: Store) -> Iterator[tuple[Store, pathlib.Path]]:
    """A table of three parts, and its folder."""
    shared_store.command("CREATE TABLE cut_short (a UInt64) ENGINE = MergeTree ORDER BY a SETTINGS min_bytes_for_wide_part = 0")
    shared_store.command("SYSTEM STOP MERGES cut_short")
    for first in (0, 100, 200):
        shared_store.insert("cut_short", pa.table({"a": list(range(first, first + 100))}))
    ((paths,),) = shared_store.select("SELECT data_paths FROM system.tables WHERE name = 'cut_short'")
    yield shared_store, pathlib.Path(paths[0])
    shared_store.command("DROP TABLE cut_short SYNC")


def test_a_table_that_is_read_comes_back(table: tuple[Store, pathlib.Path], store_folder: pathlib.Path) -> None:
    """A query that goes on reading it keeps it away for a while; then all handles have it again, without what was cut short."""
    store, folder = table
    other = Store(store_folder / "store")
    sql = "SELECT count() FROM cut_short WHERE NOT ignore(sleepEachRow(0.02)) SETTINGS max_block_size = 1, max_threads = 1"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(other.select, sql)
        time.sleep(0.5)
        data = folder / "all_2_2_0" / "a.bin"
        data.write_bytes(data.read_bytes()[:-1])
        parts_of((store_folder / "store").resolve()).forget([f"{folder}/"])
        with pytest.raises(StoreUnavailable, match="of cut_short's part all_2_2_0"):
            store.verify()
        reading.exception(30)
    store.verify()
    assert other.select("SELECT count(), sum(a) FROM cut_short") == [(200, sum(range(100)) + sum(range(200, 300)))]
    other.insert("cut_short", pa.table({"a": [7]}))
    other.close()


def test_a_table_that_came_again_is_looked_at_where_it_is_now(table: tuple[Store, pathlib.Path]) -> None:
    """By another handle: the folder that this one remembers has gone, and what it inserts is looked at in the new one."""
    store, folder = table
    store.command("RENAME TABLE cut_short TO cut_short_before")
    store.command("CREATE TABLE cut_short (a UInt64) ENGINE = MergeTree ORDER BY a")
    store.command("DROP TABLE cut_short_before SYNC")
    store._folders["cut_short"] = [f"{folder}/"]
    store.insert("cut_short", pa.table({"a": [7]}))
    ((paths,),) = store.select("SELECT data_paths FROM system.tables WHERE name = 'cut_short'")
    assert store._folders["cut_short"] == paths and not folder.exists()
    assert "all_1_1_0" in store._parts._whole[paths[0]]


def test_what_the_engine_takes_up_again_is_taken_as_it_is(table: tuple[Store, pathlib.Path], store_folder: pathlib.Path) -> None:
    """It does without a part's codec: that is told once, and nobody is refused for it again."""
    store, folder = table
    (folder / "all_2_2_0" / "default_compression_codec.txt").write_bytes(b"COD")
    parts_of((store_folder / "store").resolve()).forget([f"{folder}/"])
    with pytest.raises(StoreUnavailable, match="default_compression_codec.txt is cut off"):
        store.insert("cut_short", pa.table({"a": [7]}))
    store.insert("cut_short", pa.table({"a": [8]}))
    store.verify()
    assert store.select("SELECT count() FROM cut_short WHERE a >= 100") == [(200,)]


def test_every_table_keeps_what_a_merge_replaced(store: Store) -> None:
    """Also those of older stores: the schema is brought up to it each time."""
    store.keep_sources()
    sql = "SELECT countIf(create_table_query LIKE '%old_parts_lifetime = 480%'), count() FROM system.tables"
    ((kept, tables),) = store.select(f"{sql} WHERE database = currentDatabase() AND engine LIKE '%MergeTree'")
    assert kept == tables > 15
