"""The only room that talks to ClickHouse: queries, inserts, migrations, retention, backup, copies and part integrity.

It offers ``Store``, the interface of an embedded store (chDB) or of a ClickHouse server, and ``open_store``; `legato serve` has an embedded
store in a process apart (``StoreProcess``). The other modules are functions on a ``Store``. It may import root modules (``definitions``,
``errors``, ``quoting``, ``settings``, ``varint``) and no other room.
"""

from __future__ import annotations

from legato_ingest.settings import Settings
from legato_ingest.storage.chdb import EmbeddedStore
from legato_ingest.storage.process_store import ProcessStore
from legato_ingest.storage.server import ServerStore
from legato_ingest.storage.store import ReadLimits, Store
from legato_ingest.storage.store_process import StoreProcess

__all__ = ["EmbeddedStore", "ProcessStore", "ReadLimits", "ServerStore", "Store", "StoreProcess", "open_store"]


def open_store(settings: Settings, read_limits: ReadLimits | None = None) -> Store:
    """Open the store that the settings name. Raises ``StoreUnavailable``."""
    if settings.server is not None:
        return ServerStore(settings.server, settings.store_password.get_secret_value(), read_limits)
    return EmbeddedStore(settings.store_path, read_limits)
