"""`legato serve` on a disk with errors: nothing that it acknowledged is lost or doubled, and nothing damaged is shown as right.

The errors are the kernel's, by strace's fault injection: EIO of a broken disk, EROFS of a file system that the kernel has made read-only.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence

import httpx
import pytest

from bench.crash_pipelines.serve import store_pid
from helpers.platform.disks import can_mount, read_only_disk
from helpers.platform.syscalls import SYNCING, WRITING, failing, tracing
from helpers.servers.ports import free_port
from helpers.servers.serving import Served, post_streams, serve_process, serving
from helpers.servers.waiting import until

FAULTS = [pytest.param(SYNCING, "EIO", id="EIO"), pytest.param(WRITING, "EROFS", id="EROFS", marks=pytest.mark.long)]


def post(served: Served, streams: int) -> int:
    """Send so many streams and return the HTTP status."""
    return post_streams(served, streams).status_code


def shown(served: Served) -> str:
    """Return the numbers of streams and of chunks at the read endpoint, or the status of its error."""
    reply = httpx.post(served.read, content="SELECT count(), sum(length(dt_us)) FROM streams", timeout=60)
    return reply.text.strip() if reply.status_code == 200 else str(reply.status_code)


def metric(served: Served, name: str) -> float:
    """Return a metric of the server; 0 if it has none."""
    lines = httpx.get(f"{served.otlp}/metrics").text.splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), 0.0)


def readiness(served: Served) -> int:
    """Return the status of the readiness endpoint."""
    return httpx.get(f"{served.otlp}/readyz").status_code


def chunks(streams: int) -> str:
    """Return what ``shown`` shows of so many streams."""
    return f"{streams}\t{streams * 20}"


@pytest.mark.parametrize(("calls", "error"), FAULTS)
def test_requests_are_refused_while_the_log_cannot_be_written(tmp_path: pathlib.Path, calls: Sequence[str], error: str) -> None:
    """503, and not ready; queries are answered. Later requests are stored, and a kill at the end loses nothing."""
    with serve_process(tmp_path / "store") as served:
        assert (post(served, 10), shown(served), readiness(served)) == (200, chunks(10), 200)
        with failing(served.process.pid, calls, error):
            assert [post(served, 3) for _ in range(3)] == [503] * 3
            until(lambda: readiness(served) == 503)
            assert shown(served) == chunks(10)
            assert metric(served, 'legato_errors_total{stage="log",type="StoreUnavailable"}') == 3
        until(lambda: readiness(served) == 200)
        assert (post(served, 3), shown(served)) == (200, chunks(13))
        assert post(served, 4) == 200
        served.process.kill()
        served.process.wait()
    with serve_process(tmp_path / "store") as served:
        assert shown(served) == chunks(17)


@pytest.mark.parametrize(("calls", "error"), FAULTS)
def test_requests_are_acknowledged_while_the_store_cannot_be_written(tmp_path: pathlib.Path, calls: Sequence[str], error: str) -> None:
    """Their rows are inserted once the disk works again, and once."""
    with serve_process(tmp_path / "store") as served:
        assert (post(served, 10), shown(served)) == (200, chunks(10))
        with failing(store_pid(served.process.pid), calls, error):
            assert post(served, 3) == 200
            until(lambda: metric(served, 'legato_errors_total{stage="commit",type="StoreUnavailable"}') >= 1)
            assert shown(served) == chunks(10)
        until(lambda: post(served, 1) == 200)
        until(lambda: shown(served) == chunks(14))
        assert metric(served, "legato_store_parts_lost") == metric(served, "legato_duplicate_spans_total") == 0


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A store after a kill: two parts, of 10 and of 20 streams, and a log with three requests, of 1, 2 and 4 streams. Tests use copies."""
    store = tmp_path_factory.mktemp("killed") / "store"
    with serve_process(store) as served:
        assert (post(served, 10), shown(served)) == (200, chunks(10))
        assert (post(served, 20), shown(served)) == (200, chunks(30))
        assert [post(served, streams) for streams in (1, 2, 4)] == [200] * 3
        served.process.kill()
        served.process.wait()
    return store


@pytest.fixture
def store(killed: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the killed store."""
    shutil.copytree(killed, tmp_path / "store", symlinks=True)
    return tmp_path / "store"


def log_of(store: pathlib.Path) -> pathlib.Path:
    """Return the file of the write-ahead log that has requests."""
    (path,) = (each for each in (store / "legato_wal").glob("?.wal") if each.stat().st_size)
    return path


def test_a_query_that_cannot_read_fails_and_no_part_is_set_aside(tmp_path: pathlib.Path) -> None:
    """With an error, not with the rows that could be read; when the disk works again, all rows are shown.

    The kernel gives the engine what it has in memory by `preadv2`, and what it must read by `pread64`.
    """
    with serve_process(tmp_path / "store") as served:
        assert (post(served, 10), shown(served)) == (200, chunks(10))
    with serve_process(tmp_path / "store") as served:
        with failing(store_pid(served.process.pid), ("pread64", "preadv2"), "EIO"):
            assert shown(served) == "500"
        until(lambda: shown(served) == chunks(10))
        assert metric(served, "legato_store_parts_lost") == 0


def test_a_part_that_cannot_be_read_at_the_start_is_named(tmp_path: pathlib.Path) -> None:
    """All others are shown, the metric counts it, and it is kept."""
    store = tmp_path / "store"
    with serve_process(store) as served:
        assert (post(served, 10), shown(served)) == (200, chunks(10))
        assert (post(served, 20), shown(served)) == (200, chunks(30))
    (part,) = (found.parent for found in (store / "store").rglob("count.txt") if found.read_text(encoding="ascii") == "20")
    environ = {**served.environ}
    with serving(environ, prefix=tracing(("read", "pread64"), "EIO", part / "checksums.txt")) as tracer:
        assert shown(served) == chunks(10)
        until(lambda: metric(served, "legato_store_parts_lost") == 1)
        # strace does not pass signals on.
        (pid,) = pathlib.Path(f"/proc/{tracer.pid}/task/{tracer.pid}/children").read_text(encoding="ascii").split()
        os.kill(int(pid), signal.SIGTERM)
        assert tracer.stdout is not None and f"{part.name} of table stream_revs is lost" in tracer.stdout.read()
    assert [each.name for each in (part.parent / "detached").iterdir()] == [f"broken-on-start_{part.name}"]


def test_a_log_that_cannot_be_read_is_named_at_the_start(store: pathlib.Path) -> None:
    """The start ends with a sentence and drops nothing: once the disk can be read, the requests are inserted."""
    path = log_of(store)
    command = [*tracing(("read", "pread64"), "EIO", path), sys.executable, "-m", "legato_ingest", "serve"]
    environ = {**os.environ, "LEGATO_STORE": f"chdb://{store}", "LEGATO_OTLP_PORT": str(free_port()), "LEGATO_READ_PORT": str(free_port())}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert f"the write-ahead log {path}, which holds acknowledged requests, cannot be read: Input/output error" in ended.stderr
    with serve_process(store) as served:
        assert shown(served) == chunks(37)


def test_a_damaged_place_of_the_log_costs_its_request_alone(store: pathlib.Path) -> None:
    """After a kill: those before and behind it are inserted, the log names the place, and the metric counts it."""
    path = log_of(store)
    content = bytearray(path.read_bytes())
    _, place, _ = (found.start() for found in re.finditer(b"LGW2", content))
    content[place : place + 20] = bytes(20)
    path.write_bytes(content)
    with serve_process(store) as served:
        assert shown(served) == chunks(30 + 1 + 4)
        assert metric(served, 'legato_errors_total{stage="recovery",type="Damaged"}') == 1


@pytest.mark.parametrize("why", ["File exists", *(["Read-only file system"] if can_mount() else [])])
def test_a_store_that_cannot_be_written_is_not_opened(tmp_path: pathlib.Path, why: str) -> None:
    """The error says why."""
    folder, prefix = tmp_path / "disk", list[str]()
    if why == "File exists":
        folder.write_text("a file", encoding="ascii")
    else:
        folder.mkdir()
        prefix = read_only_disk(folder)
    command = [*prefix, sys.executable, "-m", "legato_ingest", "serve"]
    environ = {**os.environ, "LEGATO_STORE": f"chdb://{folder}/store"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and f"cannot be used: {why}: {folder}" in done.stderr and "Traceback" not in done.stderr
