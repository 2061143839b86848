"""The lock of a store: one holder, named in the error, released when its process ends."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import stat
import subprocess
import sys
import time

import pytest

from legato_ingest.errors import Locked
from legato_ingest.storage.lock import StoreLock

HOLD = """
import pathlib, sys, time
from legato_ingest.storage.lock import StoreLock
lock = StoreLock(pathlib.Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_holder_is_refused(tmp_path: pathlib.Path) -> None:
    """The error has the process id of the holder, and what to do."""
    store = tmp_path / "deep" / "store"
    with StoreLock(store):
        with pytest.raises(Locked, match=rf"{store}.* process {os.getpid()}: stop it"):
            StoreLock(store).acquire()
    with StoreLock(store):
        pass


def test_the_lock_of_another_process_ends_with_it(tmp_path: pathlib.Path) -> None:
    """After SIGKILL the lock is free at once, and the remaining file does not block the next holder."""
    store = tmp_path / "store"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(store)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "held\n"
        with pytest.raises(Locked, match=f"process {process.pid}:"):
            StoreLock(store).acquire()
        process.send_signal(signal.SIGKILL)
        process.wait()
    with StoreLock(store):
        assert (tmp_path / "store.lock").read_text(encoding="ascii") == f"{os.getpid()}\n"


def test_only_its_owner_can_read_the_lock(tmp_path: pathlib.Path) -> None:
    """The file has mode 0600."""
    with StoreLock(tmp_path / "store") as lock:
        assert stat.S_IMODE(lock.path.stat().st_mode) == 0o600


def test_a_second_release_closes_no_file_of_others(tmp_path: pathlib.Path) -> None:
    """A file that was opened in between has the descriptor that the lock had; it stays open."""
    before = os.open(tmp_path / "before", os.O_RDWR | os.O_CREAT)
    os.close(before)
    lock = StoreLock(tmp_path / "store").acquire()
    lock.release()
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    try:
        assert other == before, "the descriptor of the lock was not used again, so this test shows nothing"
        lock.release()
        assert os.write(other, b"x") == 1
    finally:
        with contextlib.suppress(OSError):
            os.close(other)


def test_the_message_names_a_store_with_a_dot(tmp_path: pathlib.Path) -> None:
    """The path in the error is complete, also with a suffix as in `store.v2`."""
    with StoreLock(tmp_path / "store.v2"):
        with pytest.raises(Locked) as caught:
            StoreLock(tmp_path / "store.v2").acquire()
    assert f"{tmp_path / 'store.v2'} is in use" in str(caught.value)


def test_the_lock_of_a_holder_that_is_gone_is_waited_for(tmp_path: pathlib.Path) -> None:
    """A child of the holder, which ends a moment after it, has the lock for as long; the next holder waits."""
    store = tmp_path / "store"
    holder = "import os, subprocess, sys\n" + HOLD.replace(
        'print("held"', 'os.set_inheritable(lock.descriptors[0], True)\nprint("held"'
    ).replace("time.sleep(60)", "subprocess.Popen(['sleep', '3'], close_fds=False)")
    with subprocess.Popen([sys.executable, "-c", holder, str(store)], stdout=subprocess.DEVNULL) as process:
        process.wait()
    started = time.monotonic()
    with StoreLock(store):
        assert 0.2 < time.monotonic() - started < 20
