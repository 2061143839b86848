"""The agent's end of the pipe: its owner, its lock, and that invalid bytes affect no datagram."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import shutil
import signal
import stat

import pytest

from legato_gpu_agent.agent.pipe_reader import PipeReader
from legato_gpu_agent.agent.settings import SettingsError
from legato_gpu_agent.plugin.model import Engine
from legato_gpu_agent.plugin.pipe_writer import PipeWriter
from legato_gpu_agent.plugin.protocol import SCHEDULER, pack_entries

MANY = 6_000
GOOD = next(pack_entries(SCHEDULER, Engine("e", 1), [bytes(90)]))


def test_the_pipe_is_accessible_to_its_user_only(tmp_path: pathlib.Path) -> None:
    """Folder and pipe. The pipe stays when its agent ends, and the next agent uses it."""
    path = tmp_path / "new" / "s"
    with contextlib.closing(PipeReader(path)):
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700 and stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.stat().st_ino
    with contextlib.closing(PipeReader(path)):
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_ino) == (0o600, before)


@pytest.mark.parametrize("held", ["read", "filled", "locked"])
def test_a_pipe_that_others_can_open_is_replaced(tmp_path: pathlib.Path, held: str) -> None:
    """One who has the old pipe open neither reads what engines send, nor fills the agent's pipe, nor holds its lock."""
    path = tmp_path / "s"
    os.mkfifo(path)
    path.chmod(0o666)
    other = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    if held == "locked":
        fcntl.flock(other, fcntl.LOCK_EX)
    with contextlib.closing(PipeReader(path)) as reader, open(path, "wb", buffering=0) as engine:
        if held == "filled":
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(other, b"noise" * 100)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and reader.read() == []
        engine.write(GOOD)
        with contextlib.suppress(BlockingIOError):
            assert GOOD not in os.read(other, 2**20)
        assert reader.read() == [GOOD]
    os.close(other)


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: pathlib.Path, mode: int) -> None:
    """Another user could replace the pipe."""
    path = tmp_path / "new" / "s"
    path.parent.mkdir()
    path.parent.chmod(mode)
    with pytest.raises(SettingsError, match=rf"new can be written by other users \(mode {mode:04o}, expected 0700\): run `chmod 700"):
        PipeReader(path)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(SettingsError, match="link is a symbolic link or not a folder: set LEGATO_ENGINE_PIPE"):
        PipeReader(tmp_path / "link" / "s")


def test_two_agents_do_not_share_a_pipe(tmp_path: pathlib.Path) -> None:
    """The second one fails; after the first has ended in any manner, the next one succeeds."""
    path = tmp_path / "s"
    with (
        contextlib.closing(PipeReader(path)),
        pytest.raises(SettingsError, match=f"another agent listens at {path}: stop it, or set LEGATO"),
    ):
        PipeReader(path)
    child = os.fork()
    if child == 0:
        PipeReader(path)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    PipeReader(path).close()


class Clock:
    """A clock that moves only when the test sets it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_pipe_that_is_gone_is_made_again(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """As when a user logs out and the folder of XDG_RUNTIME_DIR is removed; engines that have the old pipe open lose nothing."""
    path, clock = tmp_path / "run" / "legato" / "s", Clock()
    with contextlib.closing(PipeReader(path, clock)) as reader, contextlib.closing(PipeWriter(str(path), clock)) as before:
        before.send(GOOD)
        shutil.rmtree(tmp_path / "run")
        assert before.send(GOOD) and reader.read() == [GOOD, GOOD] and not path.exists()
        clock.now_s += 1
        assert before.send(GOOD) and reader.read() == [GOOD] and path.exists() and reader.file_id[1] == path.stat().st_ino
        with contextlib.closing(PipeWriter(str(path), clock)) as after, pytest.raises(SettingsError, match="another agent listens"):
            assert after.send(GOOD) and reader.read() == [GOOD]
            PipeReader(path)
        before.send(GOOD)
        clock.now_s += 1
        assert before.send(GOOD) and reader.read() == [GOOD, GOOD]
    assert [record.getMessage() for record in caplog.records] == [f"the pipe at {path} was gone or replaced: the agent opened a new one"]


def test_a_pipe_that_cannot_be_made_again_is_logged_once(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """The agent goes on with the old one, and makes it when it can."""
    path, clock = tmp_path / "run" / "legato" / "s", Clock()
    with contextlib.closing(PipeReader(path, clock)) as reader:
        shutil.rmtree(tmp_path / "run")
        (tmp_path / "run").write_text("", encoding="utf-8")
        for _ in range(3):
            clock.now_s += 1
            assert reader.read() == []
        (tmp_path / "run").unlink()
        clock.now_s += 1
        assert reader.read() == [] and path.is_fifo()
    failed, made = (record.getMessage() for record in caplog.records)
    assert f"the pipe at {path} is gone" in failed and "cannot listen at" in failed and "a new one" in made


def test_a_system_that_cannot_lock_pipes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent runs all the same; any other error is reported."""

    def flock(pipe: int, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.delattr(fcntl, "F_SETPIPE_SZ")
    code = errno.EOPNOTSUPP
    with contextlib.closing(PipeReader(tmp_path / "s")) as reader, open(tmp_path / "s", "wb", buffering=0) as engine:
        engine.write(GOOD)
        assert reader.read() == [GOOD]
    code = errno.ENOLCK
    with pytest.raises(SettingsError, match="cannot listen at .*/s: No locks available"):
        PipeReader(tmp_path / "s")


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_path_that_is_not_a_pipe_is_left_alone(tmp_path: pathlib.Path, kind: str) -> None:
    """The error names the setting."""
    path, other = tmp_path / "s", tmp_path / "other"
    other.write_text("precious", encoding="utf-8")
    if kind == "folder":
        path.mkdir()
    elif kind == "file":
        path.hardlink_to(other)
    else:
        path.symlink_to(other)
    with pytest.raises(SettingsError, match="exists and is not a pipe: set LEGATO_ENGINE_PIPE to another path"):
        PipeReader(path)
    assert other.read_text(encoding="utf-8") == "precious"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a file away")
def test_files_of_another_user_are_not_used(tmp_path: pathlib.Path) -> None:
    """Neither the pipe nor the folder."""
    path = tmp_path / "theirs" / "s"
    path.parent.mkdir()
    os.mkfifo(path)
    os.chown(path, 65_534, 65_534)
    with pytest.raises(SettingsError, match="s belongs to another user"):
        PipeReader(path)
    os.chown(path.parent, 65_534, 65_534)
    with pytest.raises(SettingsError, match="theirs belongs to another user"):
        PipeReader(path)


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: pathlib.Path) -> None:
    """With the system's error text."""
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="cannot listen at .*: Not a directory|cannot listen at .*: File exists"):
        PipeReader(tmp_path / "file" / "s")


def test_invalid_bytes_form_separate_pieces(tmp_path: pathlib.Path) -> None:
    """Noise before, between and after datagrams; a truncated datagram ends with its read; a read returns everything, of any length."""
    path = tmp_path / "s"
    with contextlib.closing(PipeReader(path)) as reader, open(path, "wb", buffering=0) as engine:
        for piece in (b"noise", GOOD, GOOD[:50], GOOD, b"more noise"):
            engine.write(piece)
        assert reader.read() == [b"noise", GOOD, GOOD[:50], GOOD, b"more noise"]
        engine.write(GOOD[:60])
        assert reader.read() == [GOOD[:60]]
        engine.write(GOOD)
        assert reader.read() == [GOOD] and reader.read() == []
        for _ in range(MANY):
            engine.write(GOOD)
        assert reader.read() == [GOOD] * MANY
