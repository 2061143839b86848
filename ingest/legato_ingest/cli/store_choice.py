"""Which store a command works on: the named one, else that of the `legato serve` on this host, else the default one.

A store is named by ``--store`` or LEGATO_STORE. Otherwise the read endpoint says where the running server keeps its store. A store that
does not exist is an error here, so that no command creates one. This module opens no store.
"""

from __future__ import annotations

import os
import pathlib
from typing import Annotated
from urllib.parse import urlsplit

import typer

from legato_ingest.cli.client import Reader, ReadError
from legato_ingest.cli.layout import print_line
from legato_ingest.errors import LegatoError
from legato_ingest.settings import Settings, load

__all__ = ["StoreOption", "expect_store", "store_settings"]

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="chdb:///absolute/path of the store (env: LEGATO_STORE; default: that of the running `legato serve`)",
        show_default=False,
    ),
]

_LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))
# The embedded store's path is the path of its disk.
_PATH = "SELECT path FROM system.disks WHERE name = 'default'"
_SET = "LEGATO_STORE or --store to chdb:///absolute/path of the store"


def store_settings(given: str | None, *, creates: bool = False) -> Settings:
    """Return the settings with the chosen store. ``given``: the value of ``--store``; ``creates``: the store need not exist.

    If the store is that of a running server, one line on standard error names it. Raises ``LegatoError`` if there is no store.
    """
    settings = load(store=given)
    if "store" in settings.model_fields_set:
        if not creates:
            expect_store(settings)
        return settings
    path, why_not = _running_store(settings)
    if path is not None:
        print_line(f"the store of the running `legato serve`: {path}", error=True)
        return load(store=f"chdb://{path}")
    if not creates and not _is_store(settings.store_path):
        raise LegatoError(
            f"no store at {settings.store_path} (the default), and {why_not}: set LEGATO_READ_URL to the read endpoint of a server on this "
            f"host, or {_SET}"
        )
    return settings


def expect_store(settings: Settings) -> None:
    """Raise ``LegatoError`` if the embedded store of ``settings`` does not exist. A ClickHouse server is not asked."""
    if settings.server is None and not _is_store(settings.store_path):
        raise LegatoError(
            f"no store at {settings.store_path}, which LEGATO_STORE or --store names: set {_SET}; `legato schema apply` creates one"
        )


def _is_store(path: pathlib.Path) -> bool:
    """An empty folder is no store: opening it would create one."""
    try:
        return path.is_dir() and any(path.iterdir())
    except PermissionError:
        raise LegatoError(f"the store {path} cannot be read by this user: run the command as the user of `legato serve`") from None


def _running_store(settings: Settings) -> tuple[pathlib.Path | None, str]:
    """The embedded store of the server on this host, or None and the reason."""
    from legato_ingest.storage.lock import admin_socket_path

    scheme = "https" if settings.tls_cert_file else "http"
    url = os.environ.get("LEGATO_READ_URL") or f"{scheme}://127.0.0.1:{settings.read_port}"
    if urlsplit(url).hostname not in _LOOPBACK:
        return None, f"`legato serve` at {url} is not on this host"
    try:
        rows = Reader(url, settings.read_user, settings.read_password.get_secret_value()).rows(_PATH)
    except ReadError as error:
        return None, str(error).partition(": ")[0]
    path = pathlib.Path(rows[0]["path"]) if rows else None
    if path is None:
        return None, f"the reader of `legato serve` at {url} may not see its store: use a token of all tenants in LEGATO_READ_PASSWORD"
    try:
        is_here = admin_socket_path(path).is_socket()
    except PermissionError:
        raise LegatoError(f"the store {path} cannot be read by this user: run the command as the user of `legato serve`") from None
    return (path, "") if is_here else (None, f"the store of `legato serve` at {url} is not on this host, or is a ClickHouse server")
