"""Authentication: the tenant of a request by its token or password, with each of them configured or not."""

from __future__ import annotations

import pathlib

import pytest
from fastapi import Request

from legato_ingest.auth import tokens
from legato_ingest.auth.authenticate import Authenticator
from legato_ingest.auth.tokens import READ, WRITE
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import Denied, SettingsError
from legato_ingest.settings import load

PASSWORD = "twelve letters"


def request(token: str = "", user: str = "", key: str = "") -> Request:
    """Return a request with a bearer token, or with ClickHouse's headers."""
    headers = {"authorization": f"Bearer {token}" if token else "", "x-clickhouse-user": user, "x-clickhouse-key": key}
    return Request({"type": "http", "headers": [(k.encode(), v.encode()) for k, v in headers.items() if v], "query_string": b""})


def bearer(token: str) -> str:
    """Return the header Authorization with a token, empty without one."""
    return f"Bearer {token}" if token else ""


def test_without_tokens_and_password_every_request_is_allowed() -> None:
    """It writes as the empty tenant and reads all tenants."""
    authenticator = Authenticator(load())
    assert authenticator.writer("") == "" and authenticator.reader(request()) == ALL_TENANTS and not authenticator.guards_reading


def test_tokens_decide_tenant_and_permission(tmp_path: pathlib.Path) -> None:
    """Each token has one permission; without a token, or with another one, a request is denied."""
    path = tmp_path / "tokens.toml"
    write, read = tokens.add(path, "w", "shop", WRITE), tokens.add(path, "r", "shop", READ)
    authenticator = Authenticator(load(tokens_file=path))
    assert authenticator.guards_reading and authenticator.writer(bearer(write)) == authenticator.reader(request(read)) == "shop"
    for denied in ("", read, "legato_other"):
        with pytest.raises(Denied):
            authenticator.writer(bearer(denied))
    for denied in ("", write, "legato_other"):
        with pytest.raises(Denied):
            authenticator.reader(request(denied))


def test_the_password_reads_all_tenants_with_and_without_tokens(tmp_path: pathlib.Path) -> None:
    """The password grants all tenants, a token its own; the password does not permit writing."""
    path = tmp_path / "tokens.toml"
    read = tokens.add(path, "r", "shop", READ)
    settings = load(read_user="grafana", read_password=PASSWORD), load(read_user="grafana", read_password=PASSWORD, tokens_file=path)
    for authenticator in map(Authenticator, settings):
        assert authenticator.guards_reading and authenticator.reader(request(user="grafana", key=PASSWORD)) == ALL_TENANTS
        with pytest.raises(Denied):
            authenticator.reader(request(user="grafana", key="another"))
    assert authenticator.reader(request(read)) == authenticator.reader(request(user="any", key=read)) == "shop"
    with pytest.raises(Denied):
        authenticator.writer(bearer(PASSWORD))


def test_an_unusable_token_file_prevents_the_start(tmp_path: pathlib.Path) -> None:
    """The error names the file."""
    with pytest.raises(SettingsError, match="missing.toml"):
        Authenticator(load(tokens_file=tmp_path / "missing.toml"))
