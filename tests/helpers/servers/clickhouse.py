"""A ClickHouse server for tests: the server that CLICKHOUSE_URL names, otherwise a process with the twin (`helpers.servers.twin`)."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import clickhouse_connect
import httpx

from helpers.servers.ports import free_port
from helpers.servers.stores import copy_migrated
from legato_ingest.storage.tenant_views import database_of

__all__ = ["Server", "clickhouse"]

_PATIENCE_S = 120


@dataclass(frozen=True)
class Server:
    """A separate database: the value of LEGATO_STORE, the password, and the HTTP URL."""

    store: str
    password: str
    url: str

    @property
    def settings(self) -> dict[str, str]:
        """The settings with which `legato` uses the database."""
        return {"LEGATO_STORE": self.store, "LEGATO_STORE_PASSWORD": self.password}


@contextlib.contextmanager
def clickhouse(
    folder: pathlib.Path, port: int = 0, *, migrated: bool = False, profile: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """An empty database. CLICKHOUSE_URL (``http://USER:PASSWORD@HOST:8123``) names the server; without it the server is the twin.

    The database of CLICKHOUSE_URL is dropped at the end; the folder of the twin is left. With ``migrated`` the twin starts with the whole
    schema, which saves time; the database of a real server is empty nevertheless, so call `migrate.apply` in any case.
    ``profile``: the settings of the twin's user.
    """
    given = os.environ.get("CLICKHOUSE_URL")
    if given:
        with _database(given) as server:
            yield server
        return
    if migrated:
        copy_migrated(folder)
    port = port or free_port()
    command = [sys.executable, str(pathlib.Path(__file__).with_name("twin.py")), str(folder), str(port)]
    url = f"http://127.0.0.1:{port}"
    environ = {**os.environ, "TWIN_PROFILE": json.dumps(dict(profile or {}))}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=None, env=environ) as process:
        try:
            _await(f"{url}/?query=SELECT+1", process)
            yield Server(f"clickhouse://default@127.0.0.1:{port}/default", "", url)
        finally:
            process.terminate()
            process.wait(_PATIENCE_S)


@contextlib.contextmanager
def _database(given: str) -> Iterator[Server]:
    parts, name = urlsplit(given), f"legato_test_{uuid.uuid4().hex[:12]}"
    user, password, port = parts.username or "default", parts.password or "", parts.port or 8123
    with clickhouse_connect.get_client(host=str(parts.hostname), port=port, username=user, password=password) as client:
        client.command(f"CREATE DATABASE {name}")
        try:
            yield Server(f"clickhouse://{user}@{parts.hostname}:{port}/{name}", password, f"http://{parts.hostname}:{port}")
        finally:
            client.command(f"DROP DATABASE {name}")
            client.command(f"DROP DATABASE IF EXISTS {database_of(name)}")


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        assert process.poll() is None, f"the twin ended with status {process.returncode}"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url).status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"{url} did not answer in {_PATIENCE_S} s")
