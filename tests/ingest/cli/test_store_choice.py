"""Tests of which store a command works on."""

from __future__ import annotations

import pathlib

import pytest

from helpers.servers.ports import free_port
from helpers.servers.reading import open_store, reading
from helpers.servers.serving import legato, serve_process
from legato_ingest.cli.store_choice import store_settings
from legato_ingest.errors import LegatoError


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """No store is named, the default one is in an empty folder, and nothing answers on the read port."""
    monkeypatch.delenv("LEGATO_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("LEGATO_READ_URL", f"http://127.0.0.1:{free_port()}")


def test_commands_find_the_store_of_the_running_server(tmp_path: pathlib.Path) -> None:
    """The command runs inside the server, and one line on standard error names its store; the default store is not created."""
    with serve_process(tmp_path / "other" / "store") as served:
        environ = {"LEGATO_READ_URL": served.read}
        for words in (("schema", "status"), ("schema", "apply"), ("rollup", "--since", "1h"), ("objectives", "apply"), ("backup", "b")):
            done = legato(*words, environ=environ)
            assert done.returncode == 0, done.stderr
            assert f"the store of the running `legato serve`: {served.store}\n" in done.stderr
        assert (tmp_path / "other" / "store.backups" / "b.tzst").is_file()
        refused = legato("copy", "--to", "clickhouse://u@127.0.0.1:9/d", environ=environ)
        assert refused.returncode == 1 and f"{served.store} is in use by process {served.process.pid}: stop it" in refused.stderr
    assert not (tmp_path / "data").exists()


def test_a_named_store_takes_precedence(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked; a named store that does not exist is an error, and so is an empty folder."""
    store = tmp_path / "named"
    monkeypatch.setenv("LEGATO_STORE", f"chdb://{store}")
    for _ in range(2):
        with pytest.raises(LegatoError, match=f"no store at {store}, which LEGATO_STORE or --store names: set .*schema apply"):
            store_settings(None)
        store.mkdir(exist_ok=True)
    assert store_settings(None, creates=True).store_path == store
    (store / "any").touch()
    assert store_settings(None).store_path == store
    assert store_settings("clickhouse://u@host:8123/d").server is not None


def test_the_default_store_where_no_server_answers(tmp_path: pathlib.Path) -> None:
    """The error names the folder, the endpoint that did not answer, and the setting."""
    default = tmp_path / "data" / "legato" / "store"
    with pytest.raises(LegatoError, match=rf"{default} \(the default\), and no `legato serve` on 127.0.0.1:\d+: set LEGATO_READ_URL"):
        store_settings(None)
    assert store_settings(None, creates=True).store_path == default
    default.mkdir(parents=True)
    (default / "any").touch()
    assert store_settings(None).store_path == default


def test_a_store_that_is_not_on_this_host_is_not_used(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server at another address is not asked; a store without an admin socket here belongs to another host, or is a server."""
    monkeypatch.setenv("LEGATO_READ_URL", "http://10.0.0.1:8123")
    with pytest.raises(LegatoError, match="at http://10.0.0.1:8123 is not on this host"):
        store_settings(None)
    with open_store(tmp_path / "far") as store, reading(store) as url:
        monkeypatch.setenv("LEGATO_READ_URL", url)
        with pytest.raises(LegatoError, match=f"the store of `legato serve` at {url} is not on this host, or is a ClickHouse server"):
            store_settings(None)


def test_a_store_of_another_user(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says as which user to run the command."""

    def refuse(path: pathlib.Path) -> bool:
        raise PermissionError

    (tmp_path / "theirs").mkdir()
    monkeypatch.setattr(pathlib.Path, "iterdir", refuse)
    with pytest.raises(LegatoError, match="cannot be read by this user: run the command as the user of `legato serve`"):
        store_settings(f"chdb://{tmp_path}/theirs")
