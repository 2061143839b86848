"""The process of the store: what ends it, what its callers get then, and that it ends with its parent."""

from __future__ import annotations

import errno
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from threading import Event

import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client

from helpers.servers.waiting import until
from legato_ingest.errors import QueryEnded, StoreError, StoreRefused, StoreRestarting, StoreUnavailable
from legato_ingest.storage import EmbeddedStore, ProcessStore, StoreProcess
from legato_ingest.storage.lock import StoreLock
from legato_ingest.storage.process_memory import anonymous_bytes

LIMITS = {"max_execution_time": 5, "max_memory_usage": 2**30, "max_threads": 1}
# The engine does not interrupt the first, and does not count the memory of the second.
ENDLESS = "SELECT arrayLevenshteinDistance(range(1000000), range(1000000))"
HUGE = "SELECT length(printf('%2000000000d', 1))"
PARENT = """
import pathlib, sys, time
from legato_ingest.storage import StoreProcess
process = StoreProcess(pathlib.Path(sys.argv[1]), {}, read_seconds_max=9, read_bytes_max=2**30)
print(process.pid, flush=True)
time.sleep(60)
"""


def opened(path: pathlib.Path, ended: list[str], seconds: float = 30, size: int = 2**28, **limits: int) -> ProcessStore:
    """Return a store in a new process. Readers of one tenant can use it."""
    store = ProcessStore(StoreProcess(path, {**LIMITS, **limits}, read_seconds_max=seconds, read_bytes_max=size, ended=ended.append))
    store.command("CREATE DATABASE IF NOT EXISTS default_tenants")
    return store


@pytest.fixture
def ended() -> list[str]:
    """Why the process ended, each time."""
    return []


@pytest.fixture
def store(tmp_path: pathlib.Path, ended: list[str]) -> Iterator[ProcessStore]:
    """A store with the table ``numbers_kept``, which has the numbers 0 to 9."""
    store = opened(tmp_path / "store", ended)
    store.command("CREATE TABLE numbers_kept (n UInt64) ENGINE = MergeTree ORDER BY n")
    store.insert("numbers_kept", pa.table({"n": pa.array(range(100), pa.uint64())}).slice(0, 10))
    yield store
    store.close()


def kept(store: ProcessStore) -> list[int]:
    """Return the numbers in the table."""
    return [int(n) for (n,) in store.select("SELECT n FROM numbers_kept ORDER BY n")]


def test_times_without_a_zone_are_utc(tmp_path: pathlib.Path, ended: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the host is: readers take such times as UTC."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    store = opened(tmp_path / "store", ended)
    try:
        assert store.select("SELECT timezone(), toString(toDateTime(3600))") == [("UTC", "1970-01-01 01:00:00")]
    finally:
        store.close()


def test_statements_leave_nothing_in_the_engines_caches(store: ProcessStore) -> None:
    """Neither conditions nor compiled expressions: each statement has other times, so no entry would be found again."""
    for number in range(9):
        store.command(f"INSERT INTO numbers_kept SELECT n + {number} FROM numbers_kept WHERE n * 3 > 20 AND n < 1000 ORDER BY n, -n")
        store.select(f"SELECT sum(n * 2 + {number}), max(n + 1) FROM numbers_kept WHERE n * 7 > {number} GROUP BY n % 3")
        store.query_bytes(f"SELECT sum(n * 2 + {number}) FROM numbers_kept WHERE n * 7 > {number} GROUP BY n % 3", {}, "TSV")
    kept = "SELECT metric, value FROM system.metrics WHERE metric IN ('QueryConditionCacheEntries', 'CompiledExpressionCacheCount')"
    assert {str(name): value for name, value in store.select(kept)} == {"CompiledExpressionCacheCount": 0, "QueryConditionCacheEntries": 0}


def test_methods_are_those_of_an_embedded_store(store: ProcessStore) -> None:
    """Results, parameters, formats, native blocks, clones and errors pass between the processes; of a slice, its rows alone."""
    assert kept(store) == list(range(10))
    assert store.select("SELECT {n:UInt8} + 1", {"n": 2}) == [(3,)]
    assert store.clone().select_arrow("SELECT toString(n) AS s FROM numbers_kept LIMIT 1").to_pylist() == [{"s": b"0"}]
    block = store.query_bytes("SELECT n + {more:UInt8} AS n FROM numbers_kept", {"more": "10"}, "Native")
    store.insert_native("numbers_kept", block)
    assert kept(store) == list(range(20))
    with pytest.raises(StoreRefused, match="no_such_table") as refused:
        store.query_bytes("SELECT * FROM no_such_table")
    assert refused.value.code == 60
    with pytest.raises(pa.ArrowInvalid):
        store._process.call(0, "insert", "numbers_kept", b"no Arrow stream")
    store.verify()
    store.keep_merged_parts()


def test_a_query_that_the_engine_cannot_interrupt_is_ended(tmp_path: pathlib.Path) -> None:
    """With an error that says so; the process is another one, and has every row."""
    ended = list[str]()
    store = opened(tmp_path / "store", ended, seconds=2)
    try:
        store.command("CREATE TABLE numbers_kept (n UInt64) ENGINE = MergeTree ORDER BY n")
        store.insert("numbers_kept", pa.table({"n": pa.array(range(10), pa.uint64())}))
        before = store._process.pid
        with pytest.raises(StoreUnavailable, match="took more than 2 s") as late:
            store.query_bytes(ENDLESS)
        assert (late.value.code, type(late.value), ended) == (159, QueryEnded, ["time"])
        assert kept(store) == list(range(10)) and store._process.pid not in (0, before)
    finally:
        store.close()


def test_a_query_that_takes_memory_without_limit_is_ended(store: ProcessStore, ended: list[str]) -> None:
    """The process never grows by 2 GB, and the next query is answered."""
    with pytest.raises(StoreUnavailable, match="took more than 402653184 bytes") as large:
        store.query_bytes(HUGE)
    assert (large.value.code, ended) == (241, ["memory"])
    assert isinstance(large.value, QueryEnded) and large.value.is_alone
    assert store.query_bytes("SELECT max(n) FROM numbers_kept") == b"9\n"


def test_the_cause_of_an_end_is_known_unless_several_queries_ran(store: ProcessStore, ended: list[str]) -> None:
    """Neither is it if a call of Legato ran, which learns that a reader may be the cause."""
    clone, errors = store.clone(), list[BaseException]()

    def kept_in(run: object, sql: str) -> None:
        try:
            run(sql)  # type: ignore[operator]
        except BaseException as error:
            errors.append(error)

    def beside(run: object) -> list[BaseException]:
        """Return the errors of a call that sleeps, and of the query that takes all memory."""
        errors.clear()
        caller = threading.Thread(target=kept_in, args=(run, " UNION ALL ".join(["SELECT sleep(3)"] * 4)))
        caller.start()
        until(lambda: int(store.query_bytes("SELECT count() FROM system.processes WHERE query LIKE 'SELECT sleep%'")) == 1)
        kept_in(store.query_bytes, HUGE)
        caller.join()
        return errors

    call, query = sorted(beside(clone.select), key=lambda error: isinstance(error, QueryEnded))
    assert isinstance(call, StoreRestarting) and call.tenants == {"*"}
    assert isinstance(query, QueryEnded) and query.tenants == {"*"} and not query.is_alone
    assert [isinstance(error, QueryEnded) and not error.is_alone for error in beside(store.query_bytes)] == [True, True]
    assert ended == ["memory", "memory"] and kept(store) == list(range(10))


def test_a_call_during_a_crash_fails_and_the_next_one_waits(store: ProcessStore, ended: list[str]) -> None:
    """A call that is under way raises ``StoreRestarting``, of a reader and of Legato; later calls, also of clones, get their result."""
    clone, errors = store.clone(), list[BaseException]()
    assert clone.select("SELECT 1") == [(1,)]

    def sleeping(run: object) -> None:
        try:
            run("SELECT sleep(3)")  # type: ignore[operator]
        except BaseException as error:
            errors.append(error)

    callers = [threading.Thread(target=sleeping, args=(run,)) for run in (store.query_bytes, clone.select)]
    for caller in callers:
        caller.start()
    until(lambda: int(store.query_bytes("SELECT count() FROM system.processes WHERE query LIKE 'SELECT sleep%'")) == 2)
    os.kill(store._process.pid, signal.SIGKILL)
    for caller in callers:
        caller.join()
    assert [isinstance(error, StoreRestarting) and error.tenants == {"*"} and not error.is_fault for error in errors] == [True, True]
    assert clone.select("SELECT 2") == [(2,)] and kept(store) == list(range(10))
    # It ends between two calls.
    kill(store, signal.SIGKILL)
    assert clone.select("SELECT 3") == [(3,)]
    assert ended == ["crash", "crash"]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_a_fault_of_the_engine_ends_the_process(store: ProcessStore, ended: list[str], number: signal.Signals) -> None:
    """The engine would keep the process and refuse every statement; the next call gets its result from another process."""
    pid = store._process.pid
    kill(store, number)
    assert kept(store) == list(range(10)) and store._process.pid != pid
    assert ended == ["crash"]


def test_a_reader_does_not_wait_for_statements_of_legato(tmp_path: pathlib.Path) -> None:
    """Nor does the time for which a statement of Legato runs count as that of a tenant's first reader."""
    ended = list[str]()
    store = opened(tmp_path / "store", ended, seconds=2)
    try:
        own = threading.Thread(target=store.select, args=("SELECT sleep(3), sleep(1)",))
        own.start()
        until(lambda: int(store.query_bytes("SELECT count() FROM system.processes WHERE query LIKE 'SELECT sleep%'")))
        assert store.query_bytes("SELECT 1", tenant="a") == b"1\n"
        own.join()
        assert not ended
    finally:
        store.close()


def test_memory_of_statements_that_run_together_is_theirs(store: ProcessStore, ended: list[str]) -> None:
    """Two statements within the engine's limit, which together take more than one may, get their results."""
    sql, results = "SELECT length(range(materialize(28000000))), sleep(1)", list[bytes]()
    both = [threading.Thread(target=lambda: results.append(store.query_bytes(sql))) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert results == [b"28000000\t0\n"] * 2 and not ended


def test_memory_that_a_query_left_is_not_that_of_the_next(tmp_path: pathlib.Path, ended: list[str]) -> None:
    """Of queries that fail by the engine's limit. The engine would keep their memory for ten seconds, and the next query pay for it."""
    store = opened(tmp_path / "store", ended, max_memory_usage=2**28)
    at_rest = anonymous_bytes(store._process.pid) or 0
    sql, errors = "SELECT length(groupArray(number)) FROM numbers(60000000)", list[StoreError]()

    def take() -> None:
        try:
            store.query_bytes(sql, tenant="a")
        except StoreError as error:
            errors.append(error)

    for _ in range(2):
        both = [threading.Thread(target=take) for _ in range(2)]
        for each in both:
            each.start()
        for each in both:
            each.join()
        assert (anonymous_bytes(store._process.pid) or 0) - at_rest < 192 * 2**20
        assert store.query_bytes("SELECT sleep(0.05)", tenant="b") == b"0\n"
    store.close()
    assert {error.code for error in errors} == {241} and not ended


def test_a_query_beside_another_is_not_alone_when_it_takes_too_long(tmp_path: pathlib.Path) -> None:
    """A disk or a process that stands still makes every query late."""
    store, errors = opened(tmp_path / "store", [], seconds=5), list[QueryEnded]()

    def take(tenant: str) -> None:
        try:
            store.query_bytes(ENDLESS, tenant=tenant)
        except QueryEnded as error:
            errors.append(error)
        except StoreRestarting:
            # The other one was late a moment before.
            return

    both = [threading.Thread(target=take, args=(tenant,)) for tenant in "ab"]
    for each in both:
        each.start()
    until(lambda: len(store._process._reads) == 2)
    for each in both:
        each.join()
    store.close()
    assert errors and all(each.tenants == {"a", "b"} and not each.is_alone for each in errors)


def test_a_kill_for_want_of_memory_is_a_fault(store: ProcessStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel kills the process of the store first. It is the fault of a query with which the process has grown, and of no other."""
    monkeypatch.setattr(store._process, "_read_bytes_max", 2**29)
    errors = list[StoreRestarting]()

    def take(sql: str) -> None:
        try:
            store.query_bytes(sql)
        except StoreRestarting as error:
            errors.append(error)

    def has_grown(by_bytes: int) -> bool:
        return bool(store._process._reads) and (anonymous_bytes(store._process.pid) or 0) >= by_bytes

    for sql, growth_bytes in (("SELECT sleep(3)", 0), ("SELECT length(groupArray(number)) FROM numbers(1000000000)", 7 * 2**26)):
        assert store.query_bytes("SELECT 1") == b"1\n"
        at_rest, reader = anonymous_bytes(store._process.pid) or 0, threading.Thread(target=take, args=(sql,))
        reader.start()
        until(partial(has_grown, at_rest + growth_bytes))
        time.sleep(0.05)
        os.kill(store._process.pid, signal.SIGKILL)
        reader.join()
    assert [error.is_fault for error in errors] == [False, True]


def test_a_start_that_fails_is_the_stores_fault(store: ProcessStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers get ``StoreUnavailable``, not the error of the system, and results when it can be started again."""

    def fail(*arguments: object, **more: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("legato_ingest.storage.store_process.subprocess.Popen", fail)
        patch.setattr("legato_ingest.storage.store_process._STARTS_MAX", 0)
        kill(store, signal.SIGKILL)
        with pytest.raises(StoreUnavailable, match="cannot be started: .*too many open files"):
            kept(store)
    until(lambda: _can(store))
    assert kept(store) == list(range(10))


def test_crashes_one_after_another_are_followed_by_a_pause(store: ProcessStore) -> None:
    """The first four starts follow at once; then each waits longer, and at most half a minute."""
    process = store._process
    assert process._pause_s() <= 0
    pauses = []
    for _ in range(12):
        process._crashes.append(time.monotonic())
        pauses.append(round(process._pause_s()))
    assert pauses == [0, 0, 0, 2, 4, 8, 16, 30, 30, 30, 30, 30]


def test_modules_of_the_working_folder_are_not_imported(tmp_path: pathlib.Path) -> None:
    """A file `queue.py` in the folder in which `legato serve` starts does not run in its processes."""
    (tmp_path / "queue.py").write_text("raise SystemExit('imported')", encoding="ascii")
    code = PARENT.replace("time.sleep(60)", "process.close()")
    safe = [sys.executable, "-P", "-c", code, str(tmp_path / "store")]
    done = subprocess.run(safe, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and int(done.stdout), done.stderr


def _can(store: ProcessStore) -> bool:
    try:
        return bool(kept(store))
    except StoreUnavailable:
        return False


def test_a_store_that_cannot_be_opened(tmp_path: pathlib.Path) -> None:
    """The error says why, and no process remains."""
    (tmp_path / "file").write_text("no folder", encoding="ascii")
    with pytest.raises((StoreUnavailable, OSError)):
        opened(tmp_path / "file" / "store", [])


def test_a_query_during_the_close_leaves_no_client_open(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails. The engine opens one path in a process, so the next store opens only if the engine of the first one has ended."""
    first, connect, begun, closed, failures = EmbeddedStore(tmp_path / "1"), EmbeddedStore._connect, Event(), Event(), list[Exception]()

    def connect_late(store: EmbeddedStore) -> Client:
        begun.set()
        assert closed.wait(30)
        return connect(store)

    def read() -> None:
        try:
            first.query_bytes("SELECT 1")
        except StoreUnavailable as error:
            failures.append(error)

    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedStore, "_connect", connect_late)
        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(30)
        first.close()
        closed.set()
        reader.join(30)
    assert len(failures) == 1 and "closed" in str(failures[0])
    second = EmbeddedStore(tmp_path / "2")
    assert second.select("SELECT 1") == [(1,)]
    second.close()


def test_closing_ends_the_process(tmp_path: pathlib.Path, ended: list[str]) -> None:
    """The process is gone when ``close`` returns, so that another one can open the store; later calls fail."""
    store = opened(tmp_path / "store", ended)
    pid = store._process.pid
    store.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(StoreUnavailable, match="closed"):
        store.select("SELECT 1")
    assert not ended


def test_the_process_ends_with_its_parent(tmp_path: pathlib.Path) -> None:
    """Also when the parent is killed, and the signals to a process group leave it to its parent."""
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path / "store")], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(pid, number)
        assert pathlib.Path(f"/proc/{pid}/status").exists()
        parent.kill()
        parent.wait()
        until(lambda: not is_running(pid))


def test_temporary_files_of_a_killed_process_are_removed(store: ProcessStore, tmp_path: pathlib.Path) -> None:
    """The driver writes each insert into a file, which a killed process leaves: in the store's folder, and not in that of the system."""
    left = tmp_path / "store" / "legato_tmp" / "left.raw"
    left.write_text("rows", encoding="ascii")
    store.insert("numbers_kept", pa.table({"n": pa.array([10], pa.uint64())}))
    assert [each.name for each in left.parent.iterdir()] == [left.name]
    kill(store, signal.SIGKILL)
    assert kept(store) == list(range(11)) and not list(left.parent.iterdir())


def test_the_lock_lasts_as_long_as_the_process(tmp_path: pathlib.Path, ended: list[str]) -> None:
    """A process that has the store open holds its lock, although its parent has released it."""
    path = tmp_path / "store"
    with StoreLock(path) as lock:
        process = StoreProcess(path, LIMITS, read_seconds_max=9, read_bytes_max=2**30, inherited=lock.descriptors)
    try:
        assert subprocess.run(["flock", "--nonblock", str(lock.path), "true"], check=False).returncode == 1
    finally:
        process.close()
    with StoreLock(path):
        pass


def kill(store: ProcessStore, number: signal.Signals) -> None:
    """End the process by a signal, and wait until all of its threads are gone."""
    running = store._process._running
    assert running is not None
    os.kill(running.process.pid, number)
    until(lambda: running.process.poll() is not None)


def is_running(pid: int) -> bool:
    """Whether the process runs; one that has ended and was not waited for does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False
