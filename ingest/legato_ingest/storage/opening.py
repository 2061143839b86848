"""Opens the store that the settings name: embedded, or on a server.

One idea: whoever needs a store asks here, so nobody else knows that there are two kinds.
"""

from __future__ import annotations

from legato_ingest.settings import Settings
from legato_ingest.storage.chdb import ReadLimits, Store
from legato_ingest.storage.server import ServerStore

__all__ = ["open_store"]


def open_store(settings: Settings, read_limits: ReadLimits | None = None) -> Store:
    """A store of its own handles. Raises ``StoreUnavailable``."""
    if settings.server is not None:
        return ServerStore(settings.server, settings.store_password.get_secret_value(), read_limits)
    return Store(settings.store_path, read_limits)
