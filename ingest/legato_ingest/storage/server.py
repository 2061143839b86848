"""A ClickHouse server as the store, over HTTP, with the same SQL as the embedded store.

Requests share no session, so each reading client sends its limits, its row filters and ``readonly`` with every request; the SQL guard keeps
statements from changing settings. Several instances may write to one server and compare each other's times, so the server's clock
stamps all rows.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping

import clickhouse_connect
from clickhouse_connect.driver.client import Client

from legato_ingest.address import Address
from legato_ingest.storage.client_errors import translated
from legato_ingest.storage.clients import ClientStore
from legato_ingest.storage.store import PartFault, ReadLimits
from legato_ingest.storage.watermark import now_ms

__all__ = ["ServerStore"]

# How long a measured difference between this host's clock and the server's is used.
_CLOCK_S = 60.0
_TIMEOUT_S = 60
# The defaults, because the profile of the user may have others: they change what a statement means, or what readers of JSON get.
_MEANING: Mapping[str, int] = dict.fromkeys(
    (
        "aggregate_functions_null_for_empty",
        "cast_keep_nullable",
        "data_type_default_nullable",
        "group_by_use_nulls",
        "join_use_nulls",
        "output_format_json_quote_64bit_integers",
        "prefer_column_name_to_alias",
        "transform_null_in",
    ),
    0,
)


class ServerStore(ClientStore):
    """The database at ``address``. Raises ``StoreUnavailable`` if the server cannot be reached."""

    def __init__(self, address: Address, password: str = "", read_limits: ReadLimits | None = None) -> None:
        self._address, self._password = address, password
        self._clock_lock = threading.Lock()
        self._clock: tuple[float, int] | None = None
        super().__init__(read_limits, address.database)

    def clone(self) -> ServerStore:
        """Return another store on the same database, without read limits."""
        return ServerStore(self._address, self._password)

    def clock_ms(self) -> int:
        """Return the server's time in ms since the epoch."""
        with self._clock_lock:
            if self._clock is None or time.monotonic() - self._clock[0] > _CLOCK_S:
                self._clock = time.monotonic(), self._ahead_ms()
            return now_ms() + self._clock[1]

    def _ahead_ms(self) -> int:
        """Return how far the server's clock is ahead of this host's.

        The writing client may be busy for seconds. To wait for it would delay heartbeats, and count as time on the way to the server.
        """
        self._expect_open()
        with translated(), contextlib.closing(self._client({})) as client:
            before = now_ms()
            ((server_ms,),) = client.query("SELECT toUnixTimestamp64Milli(now64(3))").result_rows
            return int(server_ms) - (before + now_ms()) // 2

    def verify(self) -> None:
        """Nothing to do: a server reports failed writes itself."""

    def scrub(self, seconds: float) -> None:
        """Nothing to do: a server's administrator has CHECK TABLE, and replicas repair each other."""

    def lost_parts(self) -> list[PartFault]:
        """Nothing to return: the server has its own log and `system.detached_parts`."""
        return []

    def keep_merged_parts(self) -> None:
        """Nothing to do: a server keeps them for 480 s by default."""

    def _connect(self) -> Client:
        return self._client({})

    def _connect_reader(self, settings: Mapping[str, int | str], filters: str) -> Client:
        # readonly = 2, not 1: HTTP sends settings with each request, which 1 forbids. A statement still cannot change data.
        own = {**settings, "readonly": 2}
        return self._client({**own, "additional_table_filters": filters}, self._tenant_database) if filters else self._client(own)

    def _client(self, settings: dict[str, int | str], database: str = "") -> Client:
        return clickhouse_connect.get_client(
            host=self._address.host,
            port=self._address.port,
            username=self._address.user,
            password=self._password,
            database=database or self._address.database,
            secure=self._address.tls,
            settings={**_MEANING, **settings},
            # In a session only one statement can run at a time, and settings would carry over to later statements.
            autogenerate_session_id=False,
            send_receive_timeout=_TIMEOUT_S,
            client_name="legato",
        )
