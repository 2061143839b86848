"""The agent's end of the pipe: whose it is, who has it, and that what is no datagram costs no other."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import signal
import stat

import pytest

from legato_gpu_agent.agent.pipe_reader import Inlet
from legato_gpu_agent.agent.settings import SettingsError
from legato_gpu_agent.plugin.model import Engine
from legato_gpu_agent.plugin.protocol import SCHEDULER, join

MANY = 6_000
GOOD = next(join(SCHEDULER, Engine("e", 1), [bytes(90)]))


def test_the_pipe_is_its_users_alone(tmp_path: pathlib.Path) -> None:
    """Folder and pipe, also one that was left open to others; it stays when its agent goes, and the next one has it."""
    path = tmp_path / "new" / "s"
    with contextlib.closing(Inlet(path)):
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700 and stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o666)
    before = path.stat().st_ino
    with contextlib.closing(Inlet(path)):
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_ino) == (0o600, before)


def test_two_agents_do_not_share_a_pipe(tmp_path: pathlib.Path) -> None:
    """The second is told; when the first has gone, however it went, there is none."""
    path = tmp_path / "s"
    with contextlib.closing(Inlet(path)), pytest.raises(SettingsError, match=f"another agent listens at {path}: stop it, or set LEGATO"):
        Inlet(path)
    child = os.fork()
    if child == 0:
        Inlet(path)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    Inlet(path).close()


def test_a_system_that_locks_no_pipes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has an agent all the same; any other failure is told."""

    def flock(pipe: int, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.delattr(fcntl, "F_SETPIPE_SZ")
    code = errno.EOPNOTSUPP
    with contextlib.closing(Inlet(tmp_path / "s")) as inlet, open(tmp_path / "s", "wb", buffering=0) as engine:
        engine.write(GOOD)
        assert inlet.read() == [GOOD]
    code = errno.ENOLCK
    with pytest.raises(SettingsError, match="cannot listen at .*/s: No locks available"):
        Inlet(tmp_path / "s")


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_no_pipe_is_left_alone(tmp_path: pathlib.Path, kind: str) -> None:
    """And said."""
    path, other = tmp_path / "s", tmp_path / "other"
    other.write_text("precious", encoding="utf-8")
    if kind == "folder":
        path.mkdir()
    elif kind == "file":
        path.hardlink_to(other)
    else:
        path.symlink_to(other)
    with pytest.raises(SettingsError, match="is there and is no pipe: set LEGATO_ENGINE_PIPE to another path"):
        Inlet(path)
    assert other.read_text(encoding="utf-8") == "precious"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a file away")
def test_what_is_another_users_is_not_used(tmp_path: pathlib.Path) -> None:
    """Neither their pipe nor their folder."""
    path = tmp_path / "theirs" / "s"
    path.parent.mkdir()
    os.mkfifo(path)
    os.chown(path, 65_534, 65_534)
    with pytest.raises(SettingsError, match="s belongs to another user"):
        Inlet(path)
    os.chown(path.parent, 65_534, 65_534)
    with pytest.raises(SettingsError, match="theirs belongs to another user"):
        Inlet(path)


def test_a_folder_that_cannot_be_had_is_said(tmp_path: pathlib.Path) -> None:
    """With the system's own words."""
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="cannot listen at .*: Not a directory|cannot listen at .*: File exists"):
        Inlet(tmp_path / "file" / "s")


def test_what_is_no_datagram_comes_by_itself(tmp_path: pathlib.Path) -> None:
    """Noise before, between and after; a datagram cut off is over with its look; a look reads all, however much there is."""
    path = tmp_path / "s"
    with contextlib.closing(Inlet(path)) as inlet, open(path, "wb", buffering=0) as engine:
        for piece in (b"noise", GOOD, GOOD[:50], GOOD, b"more noise"):
            engine.write(piece)
        assert inlet.read() == [b"noise", GOOD, GOOD[:50], GOOD, b"more noise"]
        engine.write(GOOD[:60])
        assert inlet.read() == [GOOD[:60]]
        engine.write(GOOD)
        assert inlet.read() == [GOOD] and inlet.read() == []
        for _ in range(MANY):
            engine.write(GOOD)
        assert inlet.read() == [GOOD] * MANY
