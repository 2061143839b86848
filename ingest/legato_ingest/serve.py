"""`legato serve`: one process that receives, stores and answers.

One idea: three doors (OTLP, read-only ClickHouse, admin) on one event loop over one store that this process owns by its lock. All that
can fail at the start fails before a door opens, in one line. At the end nothing new is taken, what waits is committed, then the store
is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import os
import signal
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from legato_ingest.auth import tls
from legato_ingest.auth.tokens import READ, WRITE
from legato_ingest.auth.tokens import load as load_tokens
from legato_ingest.errors import LegatoError, SettingsError
from legato_ingest.jobs import admin_app
from legato_ingest.jobs.supervisor import Workers
from legato_ingest.metrics import Metrics
from legato_ingest.query import app as read_endpoint
from legato_ingest.rollups.worker import followed_until_ms
from legato_ingest.settings import Settings
from legato_ingest.storage import Store, migrate, open_store
from legato_ingest.storage.lock import StoreLock, admin_socket_path
from legato_ingest.storage.retention import set_retention
from legato_ingest.write import app as otlp_endpoint
from legato_ingest.write.committer import Committer

__all__ = ["serve"]

_LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))
_PASSWORD_CHARACTERS_MIN = 12
_GRACE_S = 10


class _Server(uvicorn.Server):
    """A server that leaves signals to its owner: three of them share a process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises ``LegatoError`` when it cannot start."""
    _check_doors(settings)
    with contextlib.ExitStack() as stack:
        if settings.server is None:
            stack.enter_context(StoreLock(settings.store_path))
        otlp_door = stack.enter_context(_listen(settings.host, settings.otlp_port, "LEGATO_OTLP_PORT"))
        read_door = stack.enter_context(_listen(settings.read_host, settings.read_port, "LEGATO_READ_PORT"))
        admin_door = stack.enter_context(admin_app.listen(settings.store_path)) if settings.server is None else None
        _serve_store(settings, otlp_door, read_door, admin_door)
        if admin_door is not None:
            admin_socket_path(settings.store_path).unlink(missing_ok=True)


def _check_doors(settings: Settings) -> None:
    """Whoever can reach a door from elsewhere must say who it is. Raises ``SettingsError``."""
    tokens = load_tokens(settings.tokens_file) if settings.tokens_file else ()
    if settings.host not in _LOOPBACK and not any(token.may == WRITE for token in tokens):
        raise SettingsError(
            f"LEGATO_HOST is {settings.host}, which others can reach, and no token may write: make one (`legato token add NAME --tenant "
            "TENANT --write`), set LEGATO_TOKENS_FILE, or leave it on loopback (127.0.0.1, ::1)"
        )
    password = settings.read_password.get_secret_value()
    if any(token.sha256 == hashlib.sha256(password.encode()).hexdigest() for token in tokens):
        raise SettingsError("LEGATO_READ_PASSWORD is one of the tokens, and would read all tenants' rows here: unset it for `legato serve`")
    is_weak = len(password) < _PASSWORD_CHARACTERS_MIN
    if settings.read_host not in _LOOPBACK and is_weak and (password or not any(token.may == READ for token in tokens)):
        raise SettingsError(
            f"LEGATO_READ_HOST is {settings.read_host}, which others can reach: make a token that may read (`legato token add`), or set "
            f"LEGATO_READ_PASSWORD to {_PASSWORD_CHARACTERS_MIN} characters or more (readers give it with the user {settings.read_user}), "
            "or leave it on loopback"
        )
    tls.check(settings.tls_cert_file, settings.tls_key_file)


def _serve_store(settings: Settings, otlp_door: socket.socket, read_door: socket.socket, admin_door: socket.socket | None) -> None:
    store = open_store(settings, _read_limits(settings))
    migrations = migrate.load(settings.schema_dir)
    migrate.apply(store, migrations)
    set_retention(store, settings.retention_days, settings.retention_timelines_days, settings.retention_rollups_days)
    metrics = Metrics()
    committer = Committer(
        store,
        metrics,
        queue_bytes_max=settings.queue_bytes_max,
        chunks_max=settings.commit_chunks_max,
        after_ms=followed_until_ms(store),
        slo_gap_ms=settings.slo_gap_ms,
        slo_first_output_ms=settings.slo_first_output_ms,
    )
    workers = Workers(settings, store, committer, metrics)
    workers.start()
    apps = [
        (otlp_endpoint.create_app(settings, committer, metrics, lambda: migrate.is_current(store, migrations)), otlp_door),
        (read_endpoint.create_app(settings, store, metrics), read_door),
    ]
    if admin_door is not None:
        apps.append((admin_app.create_app(settings, store, workers.attribution, workers.rollups), admin_door))
    # What stands now stays, and a request makes tens of thousands of objects that die together: let the collector look less often.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    _announce(settings, otlp_door, read_door)
    try:
        with workers.closing(committer):
            asyncio.run(_run(apps, store, settings))
    finally:
        store.close()


def _read_limits(settings: Settings) -> dict[str, int | str]:
    """What every query of a reader is held to."""
    return {
        "max_execution_time": settings.query_seconds_max,
        "max_memory_usage": settings.query_memory_bytes_max,
        "max_result_rows": settings.query_rows_max,
        "max_result_bytes": settings.query_memory_bytes_max // 8,
        "result_overflow_mode": "throw",
        # Half of the cores: an acknowledgement must not wait for somebody's report.
        "max_threads": max(1, len(os.sched_getaffinity(0)) // 2 if hasattr(os, "sched_getaffinity") else 1),
    }


def _announce(settings: Settings, otlp_door: socket.socket, read_door: socket.socket) -> None:
    scheme = "https" if settings.tls_cert_file else "http"
    otlp, reading = (f"{scheme}://{door.getsockname()[0]}:{door.getsockname()[1]}" for door in (otlp_door, read_door))
    print(f"legato: store {settings.server or settings.store_path}")
    print(f"  OTLP  {otlp}/v1/traces, /v1/metrics  (health {otlp}/readyz, metrics {otlp}/metrics)")
    print(f"  read  {reading}  (ClickHouse HTTP, read-only; try: legato report)", flush=True)


async def _run(apps: list[tuple[FastAPI, socket.socket]], store: Store, settings: Settings) -> None:
    servers = []
    for each, door in apps:
        config = uvicorn.Config(each, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=_GRACE_S)
        if door.family != socket.AF_UNIX and settings.tls_cert_file and settings.tls_key_file:
            config.ssl_certfile, config.ssl_keyfile = settings.tls_cert_file, settings.tls_key_file
        servers.append((_Server(config), door))

    def stop() -> None:
        for server, _ in servers:
            server.should_exit = True
        # A report may run for another half a minute: nobody waits for it any more.
        loop.run_in_executor(None, store.end_reads)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    await asyncio.gather(*(server.serve(sockets=[door]) for server, door in servers))


def _listen(host: str, port: int, setting: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    door = socket.socket(family, socket.SOCK_STREAM)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        door.bind((host, port))
    except OSError as error:
        door.close()
        raise LegatoError(f"cannot listen on {host}:{port} ({error.strerror}): stop what does, or set {setting}") from None
    door.listen(1024)
    return door
