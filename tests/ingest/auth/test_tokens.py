"""Tokens: what a file may hold, who a token's bearer is, how the file changes under a running server, and the commands that write it."""

from __future__ import annotations

import hashlib
import os
import pathlib
import stat
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.servers.serving import legato
from legato_ingest.auth import tokens
from legato_ingest.auth.credentials import token_in
from legato_ingest.auth.tokens import READ, WRITE, Tokens
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import LegatoError, SettingsError

GOOD = '[[token]]\nname = "a"\ntenant = "shop"\nmay = "write"\nsha256 = "' + "0" * 64 + '"\n'


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "tokens.toml"


def soon(kept: Tokens) -> None:
    """Let the next question look at the file."""
    kept._looked = time.monotonic() - 10


def test_a_token_is_its_bearers_and_only_for_what_it_may(path: pathlib.Path) -> None:
    """A writer's token writes as its tenant and does not read; a reader's the other way round; others are nobody's."""
    writes, reads, all_ = (tokens.add(path, *args) for args in (("w", "shop", WRITE), ("r", "shop", READ), ("op", ALL_TENANTS, READ)))
    kept = Tokens(path)
    found = kept.holder(writes.encode(), WRITE)
    assert found is not None and (found.name, found.tenant) == ("w", "shop")
    assert kept.holder(writes.encode(), READ) is None
    assert kept.holder(reads.encode(), WRITE) is None
    operator = kept.holder(all_.encode(), READ)
    assert operator is not None and operator.tenant == ALL_TENANTS
    for wrong in (b"", b"legato_", writes.encode()[:-1], hashlib.sha256(writes.encode()).hexdigest().encode()):
        assert kept.holder(wrong, WRITE) is None


def test_the_file_holds_no_token_and_nobody_else_may_read_it(path: pathlib.Path) -> None:
    """Hashes alone, mode 0600, and nothing is left beside it."""
    secret = tokens.add(path, "w", "shop", WRITE)
    assert secret not in path.read_text() and hashlib.sha256(secret.encode()).hexdigest() in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_tokens_have_256_random_bits() -> None:
    """As long as it must be, and never the same."""
    made = {tokens.new_token() for _ in range(1000)}
    assert len(made) == 1000 and all(len(each) == len("legato_") + 43 for each in made)


def test_a_rotation_has_both_valid_in_between(path: pathlib.Path) -> None:
    """Old, then old and new, then new: the running server notices each."""
    old = tokens.add(path, "old", "shop", WRITE).encode()
    kept = Tokens(path)
    new = tokens.add(path, "new", "shop", WRITE).encode()
    soon(kept)
    assert kept.holder(old, WRITE) and kept.holder(new, WRITE)
    tokens.remove(path, "old")
    soon(kept)
    assert kept.holder(old, WRITE) is None and kept.holder(new, WRITE)


def test_a_file_that_breaks_leaves_what_was_read_in_force(path: pathlib.Path) -> None:
    """Broken, then gone, then good again: the tokens hold, the fault is said, and it ends."""
    secret = tokens.add(path, "w", "shop", WRITE).encode()
    good, kept = path.read_text(), Tokens(path)
    for text in ("[[token", GOOD.replace("write", "rule"), None):
        path.unlink() if text is None else path.write_text(text)
        soon(kept)
        assert kept.holder(secret, WRITE) and kept.fault
    path.write_text(good)
    soon(kept)
    assert kept.holder(secret, WRITE) and not kept.fault


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[token", "no TOML"),
        ("\x00", "no TOML"),
        ("x = 1", "more than"),
        ("token = 1", "more than"),
        ("token = [1]", "token 1"),
        (GOOD.replace("name", "nome"), "token 1"),
        (GOOD + 'extra = "1"', "token 1"),
        (GOOD.replace('"a"', "1"), "token 1"),
        (GOOD.replace('"a"', '"a b"'), "name"),
        (GOOD.replace("shop", "*"), "tenant"),
        (GOOD.replace("shop", ""), "tenant"),
        (GOOD.replace("write", "rule"), "may"),
        (GOOD.replace("0000", "000g"), "sha256"),
        (GOOD + GOOD, "name twice"),
        (GOOD + GOOD.replace('"a"', '"b"'), "sha256 twice"),
    ],
)
def test_a_file_that_cannot_be_used_says_why_and_shows_nothing(path: pathlib.Path, text: str, said: str) -> None:
    """The message names the file and the place, never what stands there."""
    path.write_text(text)
    with pytest.raises(SettingsError, match=said) as error:
        tokens.load(path)
    assert str(path) in str(error.value) and "0" * 64 not in str(error.value)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_file_or_an_error_of_ours(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """No other exception comes out of a file."""
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    try:
        assert tokens.load(path) == ()
    except SettingsError:
        pass


@pytest.mark.parametrize(
    ("authorization", "key", "token"),
    [
        ("Bearer abc", "", b"abc"),
        ("bearer  abc ", "", b"abc"),
        ("Basic bGVnYXRvOmFiYw==", "", b"abc"),
        ("Basic OmFiYzpk", "", b"abc:d"),
        ("", "abc", b"abc"),
        ("", "", None),
        ("Bearer", "", None),
        ("Bearer ", "", None),
        ("Basic !!", "", None),
        ("Basic bGVnYXRv", "", None),
        ("Digest abc", "", None),
        ("Digest abc", "abc", None),
    ],
)
def test_where_a_token_stands(authorization: str, key: str, token: bytes | None) -> None:
    """Bearer, Basic with any user, or ClickHouse's header; nothing else."""
    assert token_in(authorization, key) == token


@given(st.text(max_size=60), st.text(max_size=20))
def test_any_header_is_read_without_an_error(authorization: str, key: str) -> None:
    """What comes from outside never raises."""
    assert token_in(authorization, key) is None or isinstance(token_in(authorization, key), bytes)


@pytest.mark.parametrize(("name", "tenant", "may"), [("a b", "shop", WRITE), ("a", "*", WRITE), ("a", "s h", READ), ("a", "", READ)])
def test_a_name_that_cannot_be_is_not_written(path: pathlib.Path, name: str, tenant: str, may: str) -> None:
    """Nothing is written for it."""
    with pytest.raises(LegatoError):
        tokens.add(path, name, tenant, may)
    assert not path.exists()


def test_the_commands(path: pathlib.Path) -> None:
    """Added, shown without a secret, removed; each mistake is one line and status 1."""
    environ = {"LEGATO_TOKENS_FILE": str(path)}
    added = legato("token", "add", "app", "--tenant", "shop", "--write", environ=environ)
    secret = added.stdout.strip()
    assert added.returncode == 0 and secret.startswith("legato_") and secret not in added.stderr
    listed = legato("token", "list", environ=environ)
    assert "app" in listed.stdout and "shop" in listed.stdout and secret not in listed.stdout
    for arguments, said in (
        (("add", "app", "--tenant", "shop", "--read"), "has a token app already"),
        (("add", "other", "--tenant", "shop"), "--write or --read"),
        (("add", "other", "--tenant", "a'b", "--read"), "tenant"),
        (("remove", "nobody"), "no token nobody"),
    ):
        failed = legato("token", *arguments, environ=environ)
        assert failed.returncode == 1 and said in failed.stderr and failed.stderr.count("\n") == 1, failed.stderr
    assert legato("token", "remove", "app", environ=environ).returncode == 0
    assert tokens.load(path) == ()
    nowhere = legato("token", "list", environ={"LEGATO_TOKENS_FILE": os.devnull + "/x"})
    assert nowhere.returncode == 1 and "legato token add" in nowhere.stderr
