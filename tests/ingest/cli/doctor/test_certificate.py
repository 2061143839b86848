"""The certificate in `legato doctor`: what the endpoints present, and the file."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import time
from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from helpers.servers.certificates import issued
from helpers.servers.ports import free_port
from helpers.servers.serving import served
from legato_ingest.cli.doctor import certificate as checked
from legato_ingest.cli.doctor.certificate import certificate
from legato_ingest.cli.doctor.findings import Finding, Setup
from legato_ingest.settings import load

CLOSED = f"http://127.0.0.1:{free_port()}"


def found(folder: pathlib.Path | None, otlp: str = CLOSED, read: str = CLOSED) -> Finding:
    """The finding for the files in a folder and these URLs."""
    files = {} if folder is None else {"tls_cert_file": folder / "tls.crt", "tls_key_file": folder / "tls.key"}
    finding = certificate(Setup(load(**files), otlp, read))
    assert "\n" not in finding.found + finding.todo and bool(finding.todo) == (finding.state in ("warning", "fault"))
    return finding


@contextlib.contextmanager
def presenting(folder: pathlib.Path) -> Iterator[str]:
    """A server that started with the present files of a folder."""
    with served(FastAPI(), ssl_certfile=folder / "tls.crt", ssl_keyfile=folder / "tls.key") as url:
        yield url.replace("http:", "https:")


@pytest.mark.parametrize(("days", "state", "said"), [(-1, "fault", "expired on"), (5, "warning", "4 days"), (80, "well", "79 days")])
def test_an_endpoint_that_presents_the_file(tmp_path: pathlib.Path, days: int, state: str, said: str) -> None:
    """Expired is a fault, expiring soon a warning; also where the endpoint does not answer, and where this command has no file."""
    issued(tmp_path, days)
    silent = found(tmp_path)
    with presenting(tmp_path) as url:
        for finding in (silent, found(tmp_path, otlp=url), found(tmp_path, read=url), found(None, otlp=url)):
            assert finding.state == state and said in finding.found
        assert state == "fault" or f"{url} presents {tmp_path / 'tls.crt'}" in found(tmp_path, url, url).found


@pytest.mark.parametrize(("days", "state", "said"), [(-1, "fault", "expired on"), (5, "warning", "valid for 4 days")])
def test_a_renewed_file_that_the_server_did_not_take(tmp_path: pathlib.Path, days: int, state: str, said: str) -> None:
    """The file is fine, and senders see the certificate from before: at either endpoint."""
    issued(tmp_path, days)
    with presenting(tmp_path) as url:
        issued(tmp_path, 90)
        for finding in (found(tmp_path, otlp=url), found(tmp_path, read=url)):
            assert finding.state == state and said in finding.found and "was renewed and is valid for 89 days" in finding.found
            assert "restart" in finding.todo


def test_a_proxy_with_its_own_certificate(tmp_path: pathlib.Path) -> None:
    """A later one than the file is no fault; of both, the one that expires first counts."""
    (tmp_path / "proxy").mkdir()
    issued(tmp_path, 30)
    issued(tmp_path / "proxy", 60)
    with presenting(tmp_path / "proxy") as url:
        finding = found(tmp_path, otlp=url)
        assert finding.state == "well" and finding.found == f"{tmp_path / 'tls.crt'} is valid for 29 days"
        issued(tmp_path, 10)
        assert found(tmp_path, otlp=url).state == "warning"


def test_no_tls_and_a_server_that_says_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file and TLS there is nothing to check. A port that accepts and is silent delays the check by its time limit."""
    assert found(None).state == "skipped"
    issued(tmp_path)
    monkeypatch.setattr(checked, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        began = time.monotonic()
        assert found(tmp_path, otlp=f"https://127.0.0.1:{listener.getsockname()[1]}").state == "well"
        assert time.monotonic() - began < 30
