"""The token file: its format, the lookup of tokens, changes while the server runs, and the commands that write it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import stat
import subprocess
import sys
import time
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato_ingest.auth import tokens
from legato_ingest.auth.tokens import READ, WRITE, Tokens
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import LegatoError, SettingsError

GOOD = '[[token]]\nname = "a"\ntenant = "shop"\nmay = "write"\nsha256 = "' + "0" * 64 + '"\n'


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    """A path for a token file, without a file."""
    return tmp_path / "tokens.toml"


def check_soon(kept: Tokens) -> None:
    """Make the next lookup check the file for changes."""
    kept._checked = time.monotonic() - 10


def test_a_token_grants_its_permission_and_nothing_else(path: pathlib.Path) -> None:
    """A token that may write does not read, and the reverse; texts that are not tokens find no entry."""
    writes, reads, all_ = (tokens.add(path, *args) for args in (("w", "shop", WRITE), ("r", "shop", READ), ("op", ALL_TENANTS, READ)))
    kept = Tokens(path)
    found = kept.find(writes.encode(), WRITE)
    assert found is not None and (found.name, found.tenant) == ("w", "shop")
    assert kept.find(writes.encode(), READ) is None
    assert kept.find(reads.encode(), WRITE) is None
    operator = kept.find(all_.encode(), READ)
    assert operator is not None and operator.tenant == ALL_TENANTS
    for wrong in (b"", b"legato_", writes.encode()[:-1], hashlib.sha256(writes.encode()).hexdigest().encode()):
        assert kept.find(wrong, WRITE) is None


def test_the_file_holds_no_token_and_is_private(path: pathlib.Path) -> None:
    """It holds hashes only and has mode 0600; no temporary file remains."""
    secret = tokens.add(path, "w", "shop", WRITE)
    assert secret not in path.read_text() and hashlib.sha256(secret.encode()).hexdigest() in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_keeps_its_owner_and_mode(path: pathlib.Path) -> None:
    """An administrator who is root adds or removes a token; the service, which is another user, still reads the file."""
    tokens.add(path, "w", "shop", WRITE)
    os.chown(path, 1234, 2345)
    path.chmod(0o640)
    tokens.add(path, "r", "shop", READ)
    tokens.remove(path, "w")
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 2345, 0o640)


def test_another_users_file_is_left_alone(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file would become one that the service cannot read."""
    tokens.add(path, "w", "shop", WRITE)
    before = path.read_text()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(os, "fchown", Mock(side_effect=PermissionError(1, "Operation not permitted")))
    with pytest.raises(LegatoError, match="it belongs to the user .*: run the command as that user or as root"):
        tokens.add(path, "r", "shop", READ)
    assert path.read_text() == before and list(path.parent.iterdir()) == [path]


COMMANDS = """
import pathlib, sys
from legato_ingest.auth import tokens
path, name = pathlib.Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
tokens.remove(path, f"old{name}")
for number in range(5):
    tokens.add(path, f"{name}-{number}", "shop", "write")
"""


def test_commands_at_the_same_time_lose_no_change(path: pathlib.Path) -> None:
    """Of six processes each removes one token and adds five: the file has all that were added, and none that was removed."""
    names = [f"p{number}" for number in range(6)]
    for name in names:
        tokens.add(path, f"old{name}", "shop", WRITE)
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-c", COMMANDS, str(path)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started: list[Any] = [stack.enter_context(subprocess.Popen([*command, name], **pipes)) for name in names]
        assert all(each.stdout.readline() == "ready\n" for each in started)
        for each in started:
            each.stdin.write("go\n")
            each.stdin.flush()
        assert [each.wait(60) for each in started] == [0] * len(names)
    assert {token.name for token in tokens.load(path)} == {f"{name}-{number}" for name in names for number in range(5)}
    assert list(path.parent.iterdir()) == [path]


def test_a_change_waits_for_another_one(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that holds the lock for ever makes the others fail in one line, without a change; its end frees the lock."""
    tokens.add(path, "w", "shop", WRITE)
    before = path.read_text()
    monkeypatch.setattr(tokens, "_CHANGED_WITHIN_S", 0.05)
    with tokens._changing(path):
        for change in (partial(tokens.add, path, "r", "shop", READ), partial(tokens.remove, path, "w")):
            with pytest.raises(LegatoError, match="nothing was changed"):
                change()
    assert path.read_text() == before
    tokens.remove(path, "w")
    assert tokens.load(path) == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_root_and_the_service_change_the_same_file(path: pathlib.Path) -> None:
    """The user of the service adds a token, root another one, the user a third one: no file that root made stands in the way."""
    home = path.parent / "etc"
    home.mkdir(mode=0o700)
    os.chown(home, 1234, 2345)
    path = home / path.name

    def add_as_user(name: str) -> int:
        child = os.fork()
        if not child:
            try:
                # The user may not enter the folders above.
                os.chdir(home)
                os.setgroups([])
                os.setgid(2345)
                os.setuid(1234)
                tokens.add(pathlib.Path(path.name), name, "shop", WRITE)
                os._exit(0)
            finally:
                os._exit(1)
        return os.waitpid(child, 0)[1]

    assert add_as_user("first") == 0
    tokens.add(path, "of-root", "shop", READ)
    assert add_as_user("third") == 0
    assert [token.name for token in tokens.load(path)] == ["first", "of-root", "third"]
    assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (1234, 0o600)


def test_a_folder_that_cannot_be_used_is_reported_in_one_line(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the place of the folder, a folder that this user may not read, and a disk without locks."""
    (tmp_path / "file").write_text("")
    with pytest.raises(LegatoError, match=r"cannot write .*tokens.toml \(.*\)$"):
        tokens.add(tmp_path / "file" / "tokens.toml", "w", "shop", WRITE)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
        with pytest.raises(LegatoError, match=r"cannot write .*tokens.toml \(Permission denied\)"):
            tokens.add(tmp_path / "tokens.toml", "w", "shop", WRITE)
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(37, "No locks available")))
    with pytest.raises(LegatoError, match=r"cannot write .*tokens.toml \(No locks available\)"):
        tokens.add(tmp_path / "tokens.toml", "w", "shop", WRITE)
    assert not (tmp_path / "tokens.toml").exists()


def test_tokens_have_256_random_bits() -> None:
    """1000 tokens of the full length are all different."""
    made = {tokens.new_token() for _ in range(1000)}
    assert len(made) == 1000 and all(len(each) == len("legato_") + 43 for each in made)


@pytest.mark.parametrize("origin", ["https://shop.example", "http://localhost:3000", "http://[::1]:8080", ""])
def test_an_origin_is_kept(path: pathlib.Path, origin: str) -> None:
    """With the other fields; a token without one has no such line, so that earlier versions can read the file."""
    tokens.add(path, "page", "shop", WRITE, origin)
    assert [token.origin for token in tokens.load(path)] == [origin] and ("origin" in path.read_text()) == bool(origin)


def test_old_and_new_token_are_both_valid_during_a_rotation(path: pathlib.Path) -> None:
    """Old, then old and new, then new: a running server detects each change."""
    old = tokens.add(path, "old", "shop", WRITE).encode()
    kept = Tokens(path)
    new = tokens.add(path, "new", "shop", WRITE).encode()
    check_soon(kept)
    assert kept.find(old, WRITE) and kept.find(new, WRITE)
    tokens.remove(path, "old")
    check_soon(kept)
    assert kept.find(old, WRITE) is None and kept.find(new, WRITE)


def test_tokens_stay_valid_while_the_file_is_unusable(path: pathlib.Path) -> None:
    """Broken, then missing, then good again: the tokens stay valid and the fault is reported until the end."""
    secret = tokens.add(path, "w", "shop", WRITE).encode()
    good, kept = path.read_text(), Tokens(path)
    for text in ("[[token", GOOD.replace("write", "rule"), None):
        path.unlink() if text is None else path.write_text(text)
        check_soon(kept)
        assert kept.find(secret, WRITE) and kept.fault
    path.write_text(good)
    check_soon(kept)
    assert kept.find(secret, WRITE) and not kept.fault


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[token", "not valid TOML"),
        ("\x00", "not valid TOML"),
        ("x = 1", "nothing else"),
        ("token = 1", "nothing else"),
        ("token = [1]", "token 1"),
        (GOOD.replace("name", "nome"), "token 1"),
        (GOOD + 'extra = "1"', "token 1"),
        (GOOD.replace('"a"', "1"), "token 1"),
        (GOOD.replace('"a"', '"a b"'), "name"),
        (GOOD.replace("shop", "*"), "tenant"),
        (GOOD.replace("shop", ""), "tenant"),
        (GOOD.replace("write", "rule"), "may"),
        (GOOD.replace("0000", "000g"), "sha256"),
        (GOOD + 'origin = "https://a/"', "origin"),
        (GOOD + 'origin = "HTTPS://a"', "origin"),
        (GOOD.replace("write", "read") + 'origin = "https://a"', "origin"),
        (GOOD + GOOD, "same name twice"),
        (GOOD + GOOD.replace('"a"', '"b"'), "same sha256 twice"),
    ],
)
def test_the_error_of_an_unusable_file_names_the_place_and_quotes_nothing(path: pathlib.Path, text: str, message: str) -> None:
    """The message names the file and the entry, and no text of the file."""
    path.write_text(text)
    with pytest.raises(SettingsError, match=message) as error:
        tokens.load(path)
    assert str(path) in str(error.value) and "0" * 64 not in str(error.value)


@given(st.binary(max_size=200))
def test_any_bytes_are_tokens_or_a_settings_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """No content of a file raises another exception."""
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    try:
        assert tokens.load(path) == ()
    except SettingsError:
        pass


@pytest.mark.parametrize(("name", "tenant", "may"), [("a b", "shop", WRITE), ("a", "*", WRITE), ("a", "s h", READ), ("a", "", READ)])
def test_an_invalid_name_or_tenant_is_not_written(path: pathlib.Path, name: str, tenant: str, may: str) -> None:
    """An error is raised and no file is created."""
    with pytest.raises(LegatoError):
        tokens.add(path, name, tenant, may)
    assert not path.exists()
