"""The address of the store: a folder, or a ClickHouse server.

The module parses an address and connects to nothing.
"""

from __future__ import annotations

import pathlib
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from legato_ingest.errors import SettingsError

__all__ = ["Address", "address_of"]

_PORT, _TLS_PORT = 8123, 8443
_FORM = "chdb:///absolute/path (embedded), clickhouse://USER@HOST:8123/DATABASE, or clickhouses:// with TLS"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a ClickHouse server, with user and database. The password is a separate setting."""

    host: str
    port: int
    user: str
    database: str
    tls: bool

    def __str__(self) -> str:
        return f"clickhouse{'s' if self.tls else ''}://{self.user}@{self.host}:{self.port}/{self.database}"


def address_of(url: str) -> Address | pathlib.Path:
    """Return the server of ``clickhouse://USER@HOST:PORT/DATABASE`` (``clickhouses://`` with TLS), or the folder of ``chdb:///PATH``.

    Raises ``SettingsError``; its message contains no password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise SettingsError(f"LEGATO_STORE is not a URL: expected {_FORM}") from None
    if parts.password is not None:
        raise SettingsError(
            f"LEGATO_STORE contains a password, which other users can see: set LEGATO_STORE_PASSWORD instead; expected {_FORM}"
        )
    if parts.scheme == "chdb" and ("?" in url or "#" in url):
        raise SettingsError(f"LEGATO_STORE is a path with `?` or `#`, where a URL's path ends: name a folder without; expected {_FORM}")
    if parts.scheme == "chdb" and parts.path.startswith("/") and not parts.netloc:
        return pathlib.Path(parts.path)
    if parts.scheme not in ("clickhouse", "clickhouses") or not parts.hostname or not _is_plain(parts):
        raise SettingsError(f"LEGATO_STORE is {parts.scheme}://…, expected {_FORM}")
    tls = parts.scheme == "clickhouses"
    user, database = unquote(parts.username or "default"), unquote(parts.path.strip("/")) or "default"
    return Address(parts.hostname, port or (_TLS_PORT if tls else _PORT), user, database, tls)


def _is_plain(parts: SplitResult) -> bool:
    return not parts.query and not parts.fragment and "/" not in parts.path.strip("/")
