"""Attacks on the pipe by another user: the plugin writes into no pipe that this user could read, fill or replace.

Each test sends as the plugin does, and reads what the attacker could read.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from legato_gpu_agent.agent.pipe_reader import PipeReader
from legato_gpu_agent.plugin import pipe as module
from legato_gpu_agent.plugin.pipe_writer import PipeWriter

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
ENGINE, ATTACKER, AGENT = 65_531, 65_532, 65_533
STEP = b"a step"


class Clock:
    """A clock that moves only when the test sets it."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@contextlib.contextmanager
def user(uid: int) -> Iterator[None]:
    """Act as this user, with all checks of the system."""
    before = os.geteuid()
    _become(uid)
    try:
        yield
    finally:
        _become(before)


def _become(uid: int) -> None:
    os.seteuid(0)
    os.setegid(uid)
    os.seteuid(uid)


@pytest.fixture
def shared() -> Iterator[pathlib.Path]:
    """Return a folder in which every user may create files, such as /tmp."""
    folder = pathlib.Path(tempfile.mkdtemp()).resolve()
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@contextlib.contextmanager
def attacker_at(path: pathlib.Path, *, pipe_mode: int = 0o666) -> Iterator[Callable[[], bytes]]:
    """Create a pipe at this path and yield what reads it, as this user."""
    if not path.parent.exists():
        path.parent.mkdir()
        path.parent.chmod(0o755)
    os.mkfifo(path)
    path.chmod(pipe_mode)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def read() -> bytes:
        with contextlib.suppress(BlockingIOError):
            return os.read(pipe, 65_536)
        return b""

    yield read
    os.close(pipe)


def sends(path: pathlib.Path | str) -> bool:
    """Send a step as the plugin does; return whether it went into a pipe."""
    with contextlib.closing(PipeWriter(str(path))) as writer:
        return writer.send(STEP)


@as_root
def test_a_folder_that_another_user_created_first(shared: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """As with a default in /tmp: nothing is written there, and the log says what was found, what was expected and what to do."""
    path = shared / f"legato-{ENGINE}" / "engine.pipe"
    with contextlib.ExitStack() as stack:
        with user(ATTACKER):
            read = stack.enter_context(attacker_at(path))
        with user(ENGINE):
            assert not sends(path) and read() == b""
    (line,) = caplog.messages
    assert f"{path.parent} belongs to another user (uid {ATTACKER}, expected {ENGINE}): set LEGATO_ENGINE_PIPE" in line


def test_a_folder_of_another_user(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The same for any user of the tests: the plugin has another user's number."""
    path = tmp_path / "legato" / "engine.pipe"
    with attacker_at(path) as read:
        if os.geteuid() == 0:
            os.chown(tmp_path, ATTACKER, ATTACKER)
            os.chown(path.parent, ATTACKER, ATTACKER)
        owner = path.parent.stat().st_uid
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
        assert not sends(path) and read() == b""
        assert f"{path.parent} belongs to another user (uid {owner}, expected {owner + 1})" in caplog.text


@as_root
@pytest.mark.parametrize("engine", [0, ENGINE])
def test_a_pipe_that_another_user_created_first(shared: pathlib.Path, engine: int, caplog: pytest.LogCaptureFixture) -> None:
    """As with a setting /tmp/engine.pipe. This holds for root, too, who may open every pipe."""
    path = shared / "engine.pipe"
    with contextlib.ExitStack() as stack:
        with user(ATTACKER):
            read = stack.enter_context(attacker_at(path))
        with user(engine):
            assert not sends(path) and read() == b""
    assert f"{path} belongs to another user (uid {ATTACKER}, expected {engine})" in caplog.text


@as_root
def test_a_link_to_the_folder_of_another_user(shared: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """A link in place of the folder is not followed."""
    theirs, path = shared / "theirs" / "engine.pipe", shared / "legato" / "engine.pipe"
    with contextlib.ExitStack() as stack:
        with user(ATTACKER):
            read = stack.enter_context(attacker_at(theirs))
            path.parent.symlink_to(theirs.parent)
        with user(ENGINE):
            assert not sends(path) and read() == b""
    assert f"{path.parent} is a symbolic link or not a folder: set LEGATO_ENGINE_PIPE" in caplog.text


def test_a_link_to_a_folder_of_this_user(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is not followed either: the creator of the link decides where it leads."""
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with attacker_at(tmp_path / "mine" / "engine.pipe", pipe_mode=0o600) as read:
        assert not sends(tmp_path / "link" / "engine.pipe") and read() == b"" and "symbolic link" in caplog.text


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_to(tmp_path: pathlib.Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    """Another user could replace the pipe there after any check."""
    path = tmp_path / "legato" / "engine.pipe"
    with attacker_at(path, pipe_mode=0o600) as read:
        path.parent.chmod(mode)
        assert not sends(path) and read() == b""
    assert f"(mode {mode:04o}, expected 0700): run `chmod 700 {path.parent}`" in caplog.text


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622, 0o666])
def test_a_pipe_that_others_can_open(tmp_path: pathlib.Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    """It is not used until the agent has replaced it; the other user has the old one open and reads nothing."""
    path, clock = tmp_path / "engine.pipe", Clock()
    with attacker_at(path, pipe_mode=mode) as read, contextlib.closing(PipeWriter(str(path), clock)) as writer:
        assert not writer.send(STEP) and f"(mode {mode:04o}, expected 0600): start the agent" in caplog.text
        with contextlib.closing(PipeReader(path)) as agent:
            clock.now_s += 2
            assert writer.send(STEP) and b"".join(agent.read()) == 2 * STEP and read() == b""


def test_a_pipe_that_is_opened_to_others_later(tmp_path: pathlib.Path) -> None:
    """Within a second nothing more is written into it."""
    path, clock = tmp_path / "engine.pipe", Clock()
    with attacker_at(path, pipe_mode=0o600) as read, contextlib.closing(PipeWriter(str(path), clock)) as writer:
        assert writer.send(STEP) and read() == STEP
        path.chmod(0o644)
        clock.now_s += 2
        assert not writer.send(STEP) and read() == b""


@as_root
def test_a_pipe_that_is_replaced_while_it_is_opened(shared: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the path and its opening: the opened file is what counts."""
    path, real = shared / "engine.pipe", os.open
    with attacker_at(path, pipe_mode=0o600), contextlib.ExitStack() as stack:
        reads: list[Callable[[], bytes]] = []

        def swap(name: Any, flags: int, *more: Any, **named: Any) -> int:
            if pathlib.Path(name).name == path.name and not reads and flags & os.O_NOFOLLOW:
                path.unlink()
                reads.append(stack.enter_context(_as(ATTACKER, path)))
            return real(name, flags, *more, **named)

        monkeypatch.setattr(os, "open", swap)
        assert not sends(path) and reads[0]() == b""


@contextlib.contextmanager
def _as(uid: int, path: pathlib.Path) -> Iterator[Callable[[], bytes]]:
    with attacker_at(path) as read:
        os.chown(path, uid, uid)
        yield read


@as_root
def test_a_folder_that_is_replaced_while_it_is_opened(shared: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the check of the folder: the pipe is opened in the folder that was checked."""
    path, real = shared / "legato" / "engine.pipe", os.stat
    with attacker_at(path, pipe_mode=0o600) as mine, contextlib.ExitStack() as stack:
        reads: list[Callable[[], bytes]] = []

        def swap(name: Any, *more: Any, **named: Any) -> os.stat_result:
            if pathlib.Path(name).name == path.name and not reads:
                path.parent.rename(shared / "away")
                reads.append(stack.enter_context(_as(ATTACKER, path)))
            return real(name, *more, **named)

        monkeypatch.setattr(os, "stat", swap)
        monkeypatch.setattr(os, "lstat", swap)
        pipe = module.open_pipe(path)
        os.write(pipe, STEP)
        os.close(pipe)
        assert mine() == STEP and reads[0]() == b""


@pytest.mark.parametrize("given", ["engine.pipe", "legato/engine.pipe", "{}/legato/../engine.pipe"])
def test_a_path_that_depends_on_more_than_itself(
    tmp_path: pathlib.Path, given: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A relative path depends on the working folder, and `..` on links. The agent expects an absolute path, too."""
    monkeypatch.chdir(tmp_path)
    with attacker_at(tmp_path / "engine.pipe", pipe_mode=0o600), attacker_at(tmp_path / "legato" / "engine.pipe", pipe_mode=0o600):
        assert not sends(given.format(tmp_path)) and "expected an absolute path" in caplog.text


@as_root
def test_the_agent_runs_as_another_user_on_purpose(shared: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """An engine of root uses the folder that root gave to the agent's user, as /run/legato-engine. It does not if others could have."""
    service = shared / "run" / "legato-engine" / "engine.pipe"
    service.parent.parent.mkdir(mode=0o755)
    service.parent.mkdir(mode=0o700)
    os.chown(service.parent, AGENT, AGENT)
    with contextlib.ExitStack() as stack:
        with user(AGENT):
            agent = stack.enter_context(contextlib.closing(PipeReader(service)))
        assert sends(service) and agent.read() == [STEP]
        with user(ENGINE):
            assert not sends(service) and "run the agent and the engine as the same user" in caplog.text
        service.parent.parent.chmod(0o777)
        assert not sends(service) and f"{service.parent} belongs to another user" in caplog.text


@as_root
@pytest.mark.parametrize(("folder", "mode"), [("", 0o1777), ("legato", 0o700), ("legato", 0o755), ("legato", 0o1777)])
def test_a_folder_of_this_user_in_a_folder_for_all(shared: pathlib.Path, folder: str, mode: int) -> None:
    """Root may use /tmp itself, where no other user can remove a file, and every user a folder of their own there."""
    path = shared / folder / "engine.pipe"
    with user(ENGINE) if folder else contextlib.nullcontext():
        path.parent.mkdir(exist_ok=True)
        path.parent.chmod(mode)
        with contextlib.closing(PipeReader(path)) as agent:
            assert sends(path) and agent.read() == [STEP]


@as_root
def test_recording_begins_when_the_pipe_is_safe(shared: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """A refusal is logged once and looked at again each second. The newest steps are kept meanwhile."""
    path, clock = shared / "legato" / "engine.pipe", Clock()
    with contextlib.ExitStack() as stack:
        with user(ATTACKER):
            read = stack.enter_context(attacker_at(path))
        writer = stack.enter_context(contextlib.closing(PipeWriter(str(path), clock)))
        for _ in range(5):
            clock.now_s += 2
            assert not writer.send(STEP)
        assert len(caplog.messages) == 1 and "the engine is not affected" in caplog.text
        path.parent.rename(shared / "away")
        agent = stack.enter_context(contextlib.closing(PipeReader(path)))
        clock.now_s += 2
        assert writer.flush() and b"".join(agent.read()) == 5 * STEP and read() == b"" and writer.dropped == 0


def test_an_attacker_cannot_fill_the_log(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is found may change each second; the number of lines is limited."""
    path, clock = tmp_path / "legato" / "engine.pipe", Clock()
    with attacker_at(path, pipe_mode=0o600), contextlib.closing(PipeWriter(str(path), clock)) as writer:
        for mode in range(0o720, 0o777):
            path.parent.chmod(mode | 0o20)
            clock.now_s += 2
            assert not writer.send(STEP)
    assert 1 < len(caplog.messages) <= 10


def test_no_descriptor_is_left_open(tmp_path: pathlib.Path) -> None:
    """Neither after a success nor after any refusal: the check runs each second for the life of an engine."""
    path = tmp_path / "legato" / "engine.pipe"
    with attacker_at(path, pipe_mode=0o600):
        before = len(os.listdir("/proc/self/fd"))
        for folder_mode, pipe_mode in ((0o700, 0o600), (0o777, 0o600), (0o700, 0o666)):
            path.parent.chmod(folder_mode)
            path.chmod(pipe_mode)
            sends(path)
            sends(path.parent)
        assert len(os.listdir("/proc/self/fd")) == before
