"""A ClickHouse server as the store: the same interface and the same SQL as the embedded one, over HTTP.

One idea: what a handle of the embedded store is told once, a client of a server says with every request. Readers' clients say that they
only read, their limits and their tenant; `sql_guard` keeps statements from saying otherwise. The server's clock is everybody's: several
instances write to one server, and whoever follows them compares their times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import clickhouse_connect
from clickhouse_connect.driver.client import Client

from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.settings import Address
from legato_ingest.storage.chdb import ReadLimits, Store, filters_of, translated
from legato_ingest.storage.watermark import now_ms

__all__ = ["ServerStore"]

# How long the difference between the clocks is believed.
_CLOCK_S = 60.0
_TIMEOUT_S = 60


class ServerStore(Store):
    """The database at ``address``. Use from any thread. Raises ``StoreUnavailable`` and ``StoreRefused``."""

    def __init__(self, address: Address, password: str = "", read_limits: ReadLimits | None = None) -> None:
        self._address, self._password = address, password
        self._clock_lock = threading.Lock()
        self._clock: tuple[float, int] | None = None
        self._set_up(read_limits)

    def clock_ms(self) -> int:
        """The server's clock, in ms since the epoch."""
        with self._clock_lock:
            if self._clock is None or time.monotonic() - self._clock[0] > _CLOCK_S:
                before = now_ms()
                ((theirs,),) = self.select("SELECT toUnixTimestamp64Milli(now64(3))")
                self._clock = time.monotonic(), int(theirs) - (before + now_ms()) // 2
            return now_ms() + self._clock[1]

    def end_reads(self) -> None:
        """Refuse new queries of readers: the server is stopping. Those that run end by their limit; others' are not ours to cancel."""
        self._reading = False

    def keep_sources(self) -> None:
        """A server keeps them as it was told."""

    def verify(self) -> None:
        """A server's disk is its own."""

    def _before(self, sql: str = "") -> None:
        """A server says itself that its disk is full."""

    def _ready(self, writer: Client) -> None:
        """A server has its tables."""

    @contextmanager
    def _translated(self) -> Iterator[None]:
        with translated():
            yield

    def _after(self, writer: Client, table: str = "") -> None:
        """A server's word that rows are stored is taken."""

    def _open(self) -> Client:
        return self._client({})

    def _open_reader(self, tenant: str) -> Client:
        # 2: whoever has this client may still say a setting a request, as HTTP has no session to keep it; a statement cannot.
        settings: dict[str, int | str] = {**self._read_limits, "readonly": 2}
        if tenant != ALL_TENANTS:
            settings["additional_table_filters"] = filters_of(self, tenant)
        return self._client(settings)

    def _client(self, settings: dict[str, int | str]) -> Client:
        with translated():
            client = clickhouse_connect.get_client(
                host=self._address.host,
                port=self._address.port,
                username=self._address.user,
                password=self._password,
                database=self._address.database,
                secure=self._address.tls,
                settings=settings,
                # A session would let one statement at a time run, and what it is told last for others.
                autogenerate_session_id=False,
                send_receive_timeout=_TIMEOUT_S,
                client_name="legato",
            )
        self._clients.append(client)
        return client
