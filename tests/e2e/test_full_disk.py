"""`legato serve` on a disk that is full for a while: it acknowledges nothing that it did not store, and accepts data again later."""

from __future__ import annotations

import contextlib
import pathlib
import resource
from collections.abc import Iterator

import httpx
import pytest

from helpers.platform.disks import can_mount, small_disk
from helpers.servers.serving import Served, post_streams, serve_process
from helpers.servers.waiting import eventually


@contextlib.contextmanager
def full_by_limit(served: Served) -> Iterator[None]:
    """Forbid the process to extend any file: every write fails with EFBIG instead of ENOSPC."""
    limits = resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
    yield
    resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def full_by_filler(served: Served) -> Iterator[None]:
    """Fill the disk of the process with another file. The disk is reached through /proc, as only this process has it mounted."""
    filler = pathlib.Path(f"/proc/{served.process.pid}/root{served.store.parent}/filler")
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4_096))
    yield
    filler.unlink()


def post(served: Served, count: int) -> int:
    """Send ``count`` streams and return the HTTP status."""
    return post_streams(served, count).status_code


def stored(served: Served) -> int:
    """The number of streams at the read endpoint."""
    return int(httpx.post(served.read, content="SELECT count() FROM streams").text)


@pytest.mark.parametrize("disk", ["limit", "tmpfs"] if can_mount() else ["limit"])
def test_a_full_disk_gives_503_until_there_is_room(tmp_path: pathlib.Path, disk: str) -> None:
    """On a full disk writes get 503 and reads still work. With room again the retry is stored, and all rows survive a restart."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with serve_process(folder / "store", prefix=small_disk(folder, "64m") if disk == "tmpfs" else []) as served:
        assert post(served, 10) == 200
        assert stored(served) == 10
        with full_by_filler(served) if disk == "tmpfs" else full_by_limit(served):
            assert [post(served, 300) for _ in range(3)] == [503] * 3
            assert stored(served) == 10
            assert eventually(lambda: httpx.get(f"{served.otlp}/readyz").status_code == 503)
            errors = httpx.get(f"{served.otlp}/metrics").text
            assert 'legato_errors_total{stage="log",type="StoreUnavailable"} 3.0' in errors, errors
        assert eventually(lambda: httpx.get(f"{served.otlp}/readyz").status_code == 200)
        assert post(served, 300) == 200
        assert stored(served) == 310
        if disk == "limit":
            served.process.kill()
            served.process.wait()
    if disk == "limit":
        with serve_process(folder / "store") as again:
            assert stored(again) == 310
