"""Where rows are kept, as a setting says it: an embedded store's folder, or a ClickHouse server.

One idea: one URL, whose scheme decides. No password stands in it, as URLs end up in logs and process lists. It connects to nothing.
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
    """Where a server is, and as whom Legato asks it. The password is elsewhere."""

    host: str
    port: int
    user: str
    database: str
    tls: bool

    def __str__(self) -> str:
        return f"clickhouse{'s' if self.tls else ''}://{self.user}@{self.host}:{self.port}/{self.database}"


def address_of(url: str) -> Address | pathlib.Path:
    """The server of ``clickhouse://USER@HOST:PORT/DATABASE`` (``clickhouses://`` with TLS), or the folder of ``chdb:///PATH``.

    Raises ``SettingsError``, which holds no password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise SettingsError(f"LEGATO_STORE is no URL: expected {_FORM}") from None
    if parts.password is not None:
        raise SettingsError(f"LEGATO_STORE holds a password, which others can see there: set LEGATO_STORE_PASSWORD; expected {_FORM}")
    if parts.scheme == "chdb" and parts.path.startswith("/") and not parts.netloc:
        return pathlib.Path(parts.path)
    if parts.scheme not in ("clickhouse", "clickhouses") or not parts.hostname or not _is_plain(parts):
        raise SettingsError(f"LEGATO_STORE is {parts.scheme}://…, expected {_FORM}")
    tls = parts.scheme == "clickhouses"
    user, database = unquote(parts.username or "default"), unquote(parts.path.strip("/")) or "default"
    return Address(parts.hostname, port or (_TLS_PORT if tls else _PORT), user, database, tls)


def _is_plain(parts: SplitResult) -> bool:
    return not parts.query and not parts.fragment and "/" not in parts.path.strip("/")
