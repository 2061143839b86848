"""`legato serve`: one process that receives OTLP, stores rows and answers queries.

Five listeners (OTLP over HTTP and over gRPC, read endpoint, web page, admin socket) share one event loop and one store; the process holds
the lock of an embedded store. Every check of the settings fails before a listener opens, with a one-line error. At the end the process
accepts no new requests, commits waiting rows, then closes the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import uvicorn
import uvloop
from starlette.types import ASGIApp

from legato_ingest.auth import tls
from legato_ingest.auth.tokens import READ, WRITE
from legato_ingest.auth.tokens import load as load_tokens
from legato_ingest.dashboards import files as dashboard_files
from legato_ingest.errors import LegatoError, SettingsError
from legato_ingest.http_protocol import HttpProtocol
from legato_ingest.jobs import admin_app
from legato_ingest.jobs.supervisor import Workers
from legato_ingest.logs import written_in_background
from legato_ingest.metrics import Metrics
from legato_ingest.objectives import load as load_objectives
from legato_ingest.periodic import PeriodicTask
from legato_ingest.query import app as read_endpoint
from legato_ingest.query.reads import Reads
from legato_ingest.replies import REPLY_BYTES_MAX, BoundedReplies
from legato_ingest.rollups.followed import followed_until_ms
from legato_ingest.settings import Settings, deprecations
from legato_ingest.shares import Shares
from legato_ingest.storage import ProcessStore, Store, StoreProcess, backup, migrate, objective_rows, open_store
from legato_ingest.storage.lock import StoreLock, admin_socket_path
from legato_ingest.storage.retention import set_retention
from legato_ingest.storage.wal import WriteAheadLog, folder_of
from legato_ingest.trace_export import endpoint
from legato_ingest.web import app as web_page
from legato_ingest.web.panel_queries import Boards
from legato_ingest.write import app as otlp_endpoint
from legato_ingest.write.body_converter import BodyConverter
from legato_ingest.write.committer import Committer
from legato_ingest.write.conversion_process import ConversionProcesses
from legato_ingest.write.grpc_server import GrpcServer
from legato_ingest.write.http2_refusal import protocol_class
from legato_ingest.write.receiver import Receiver
from legato_ingest.write.recovery import recover, trying_aside

__all__ = ["serve"]

_log = logging.getLogger("legato")
_App = tuple[ASGIApp, socket.socket]
_LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))
_PASSWORD_CHARACTERS_MIN = 12
_GRACE_S = 10
# A query that the engine does not end at its limit is ended with the process of the store so much later.
_QUERY_GRACE_S = 1.5
# A response that two instances inserted at the same moment counts twice for so long. It is longer than the time after which one instance
# knows of the foreign emitters of another (``write.sender_counts``).
_LOOK_AGAIN_S = 15.0


# The date in the headers of replies changes so often.
_TICK_S = 1.0
# The files of the certificate are compared with the one in use so often.
_RENEWED_EVERY_S = 60.0
# Python's 5 ms are too long: a thread that converts a request releases the interpreter for each of some hundred column operations, and
# waits for so long each time while another thread computes.
_SWITCH_S = 0.0005


class _Server(uvicorn.Server):
    """A server without signal handlers: several servers share the process, and ``_run`` handles the signals. It ends with ``ending``."""

    def __init__(self, config: uvicorn.Config, ending: asyncio.Event) -> None:
        super().__init__(config)
        self._ending = ending

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        # As uvicorn's, which looks ten times a second whether to end: four servers took a twentieth of the processor time at rest.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._ending.wait()


@dataclass(frozen=True, slots=True)
class _Listeners:
    """The open listeners, None for those that are off. ``grpc`` is an address: gRPC's own code opens the listener.

    ``certificate`` is that of all but the admin socket; None without TLS.
    """

    otlp: socket.socket
    read: socket.socket
    web: socket.socket | None
    admin: socket.socket | None
    grpc: tuple[str, int] | None
    certificate: tls.Certificate | None


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises ``LegatoError`` when it cannot start."""
    # For connections of senders, and the engine's files. Some systems do not allow it.
    with contextlib.suppress(OSError, ValueError):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for line in deprecations():
        _log.warning("%s", line)
    _check_endpoints(settings)
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(StoreLock(settings.store_path)) if settings.server is None else None
        otlp = stack.enter_context(_listen(settings.host, settings.otlp_port, "LEGATO_OTLP_PORT"))
        read = stack.enter_context(_listen(settings.read_host, settings.read_port, "LEGATO_READ_PORT"))
        web = _optional_listener(settings, settings.read_host, "web_port", "no web page")
        if web is not None:
            stack.enter_context(web)
        admin = stack.enter_context(admin_app.listen(settings.store_path)) if settings.server is None else None
        metrics = Metrics()
        stack.enter_context(written_in_background(lambda reason: metrics.log_left_out.labels(reason).inc()))
        certificate = tls.Certificate.of(settings, metrics)
        if certificate is not None:
            renewal = stack.enter_context(contextlib.closing(PeriodicTask("certificate", certificate.renew, _RENEWED_EVERY_S, metrics)))
            renewal.start()
        with contextlib.closing(_open_store(settings, metrics, lock)) as store:
            _serve_store(settings, metrics, store, _Listeners(otlp, read, web, admin, _grpc_address(settings), certificate))
        if admin is not None:
            admin_socket_path(settings.store_path).unlink(missing_ok=True)


def _check_endpoints(settings: Settings) -> None:
    """Check that endpoints beyond loopback need credentials. Raises ``SettingsError``."""
    tokens = load_tokens(settings.tokens_file) if settings.tokens_file else ()
    if settings.host not in _LOOPBACK and not any(token.may == WRITE for token in tokens):
        raise SettingsError(
            f"LEGATO_HOST is {settings.host}, which other hosts can reach, and no token may write: add one (`legato token add NAME "
            "--tenant TENANT --write`) and set LEGATO_TOKENS_FILE, or use loopback (127.0.0.1, ::1)"
        )
    password = settings.read_password.get_secret_value()
    if any(token.sha256 == hashlib.sha256(password.encode()).hexdigest() for token in tokens):
        raise SettingsError(
            "LEGATO_READ_PASSWORD is also a token, and as a password it would read the rows of all tenants: unset it for `legato serve`"
        )
    is_weak = len(password) < _PASSWORD_CHARACTERS_MIN
    if settings.read_host not in _LOOPBACK and is_weak and (password or not any(token.may == READ for token in tokens)):
        raise SettingsError(
            f"LEGATO_READ_HOST is {settings.read_host}, which other hosts can reach: add a token that may read (`legato token add`), or "
            f"set LEGATO_READ_PASSWORD to {_PASSWORD_CHARACTERS_MIN} characters or more (readers send it with the user "
            f"{settings.read_user}), or use loopback"
        )
    tls.check(settings.tls_cert_file, settings.tls_key_file)
    endpoint.check(settings)


def _open_store(settings: Settings, metrics: Metrics, lock: StoreLock | None) -> Store:
    limits = _read_limits(settings)
    if lock is None:
        return open_store(settings, limits)
    process = StoreProcess(
        settings.store_path,
        limits,
        read_seconds_max=settings.query_seconds_max + _QUERY_GRACE_S,
        read_bytes_max=settings.query_memory_bytes_max,
        inherited=lock.descriptors,
        ended=partial(_note_store_restart, metrics),
    )
    return ProcessStore(process)


def _note_store_restart(metrics: Metrics, reason: str) -> None:
    metrics.store_restarts.labels(reason).inc()
    what = {"memory": "queries took more memory than their limit", "time": "a query did not end at its limit"}.get(reason, "it crashed")
    _log.error("the process of the store was ended and is started again: %s; no acknowledged request is lost", what)


def _serve_store(settings: Settings, metrics: Metrics, store: Store, listeners: _Listeners) -> None:
    objectives = load_objectives(settings)
    if settings.server is None:
        backup.drop_unfinished(store)
    migrations = migrate.load(settings.schema_dir)
    migrate.apply(store, migrations)
    set_retention(store, settings.retention_days, settings.retention_timelines_days, settings.retention_rollups_days)
    earlier = objective_rows.applied(store)
    if objective_rows.apply(store, objectives) and earlier:
        _log.warning("the objectives changed: `legato objectives apply` counts the streams of earlier minutes by them")
    log = WriteAheadLog(folder_of(settings.store_path)) if settings.server is None else None
    committer = Committer(
        store,
        metrics,
        queue_bytes_max=settings.queue_bytes_max,
        chunks_max=settings.insert_chunks_max,
        after_ms=followed_until_ms(store),
        objectives=objectives,
        look_again_s=None if settings.server is None else _LOOK_AGAIN_S,
        log=log,
        is_always_read=bool(settings.traces_export_endpoint),
    )
    workers = Workers(settings, store, committer, metrics)
    workers.start()
    reads, stopping = Reads(settings, store, metrics, committer.begin_settling), threading.Event()
    conversions = ConversionProcesses(BodyConverter.of(settings))
    receiver = Receiver(settings, committer, metrics, conversions.rows)
    aside = recover(log, committer, receiver, metrics, stopping) if log is not None else iter(())
    # A separate handle: a health check waits for no insert, and no insert for a health check.
    probe = store.clone()
    unread = Shares(REPLY_BYTES_MAX)
    apps: list[_App] = [
        (
            otlp_endpoint.create_app(settings, committer, metrics, partial(_is_ready, probe, migrations, committer), receiver),
            listeners.otlp,
        ),
        (BoundedReplies(read_endpoint.create_app(settings, reads, metrics), unread), listeners.read),
    ]
    if listeners.web is not None:
        boards = Boards(dashboard_files.load(settings.dashboards_dir))
        apps.append((BoundedReplies(web_page.create_app(settings, reads, metrics, boards, stopping.is_set), unread), listeners.web))
    if listeners.admin is not None:
        apps.append((admin_app.create_app(settings, store, workers.attribution, workers.rollups, committer.settle), listeners.admin))
    # Objects of the start-up live as long as the process.
    gc.freeze()
    sys.setswitchinterval(_SWITCH_S)
    with workers.closing(committer), trying_aside(aside, stopping), contextlib.closing(probe), contextlib.closing(conversions):
        uvloop.run(_run(apps, listeners, receiver, conversions, store, settings, stopping, workers.stop))


def _is_ready(probe: Store, migrations: Sequence[migrate.Migration], committer: Committer) -> bool:
    """Return whether requests are acknowledged and the store answers with the current schema. Raises ``LegatoError``."""
    committer.expect_accepting()
    return migrate.is_current(probe, migrations)


def _read_limits(settings: Settings) -> dict[str, int | str]:
    """The limits and settings of every query of a reader."""
    return {
        "max_execution_time": settings.query_seconds_max,
        "max_memory_usage": settings.query_memory_bytes_max,
        "max_result_rows": settings.query_rows_max,
        "max_result_bytes": settings.query_memory_bytes_max // 8,
        "result_overflow_mode": "throw",
        # Half of the cores, so that queries do not delay acknowledgements.
        "max_threads": max(1, len(os.sched_getaffinity(0)) // 2 if hasattr(os, "sched_getaffinity") else 1),
    }


def _announce(settings: Settings, listeners: _Listeners) -> None:
    scheme = "https" if settings.tls_cert_file else "http"
    opened = [each for each in (listeners.otlp, listeners.read, listeners.web) if each is not None]
    otlp, reading, *web = (f"{scheme}://{each.getsockname()[0]}:{each.getsockname()[1]}" for each in opened)
    print(f"legato: store {settings.server or settings.store_path}")
    print(f"  OTLP  {otlp}/v1/traces, /v1/metrics, /v1/logs  (health {otlp}/readyz, metrics {otlp}/metrics)")
    if listeners.grpc is not None:
        print(f"  gRPC  {scheme}://{listeners.grpc[0]}:{listeners.grpc[1]}  (OTLP)")
    print(f"  read  {reading}  (ClickHouse HTTP, read-only; try: legato report)", flush=not web)
    for url in web:
        print(f"  web   {url}  (dashboards and streams in a browser)", flush=True)


async def _run(
    apps: list[_App],
    listeners: _Listeners,
    receiver: Receiver,
    conversions: ConversionProcesses,
    store: Store,
    settings: Settings,
    stopping: threading.Event,
    stop_workers: Callable[[], None],
) -> None:
    grpc = _grpc_server(settings, receiver, listeners.certificate, listeners.grpc) if listeners.grpc else None
    if grpc is None:
        listeners = replace(listeners, grpc=None)
    ending = asyncio.Event()
    servers = [(_Server(_config(each, listener, listeners, settings), ending), listener) for each, listener in apps]
    _announce(settings, listeners)

    def stop() -> None:
        stopping.set()
        # Now: the listeners may take ten seconds to end.
        stop_workers()
        for server, _ in servers:
            server.should_exit = True
        ending.set()
        # A query may run for another 30 s, and its client is disconnected.
        loop.run_in_executor(None, store.end_reads)
        # Requests are cancelled then, but each waits for the conversion of its body.
        loop.call_later(_GRACE_S, conversions.close)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if grpc is not None:
        await grpc.start()
    await asyncio.gather(*(server.serve(sockets=[listener]) for server, listener in servers), *([_stopped(grpc, ending)] if grpc else ()))


def _grpc_server(
    settings: Settings, receiver: Receiver, certificate: tls.Certificate | None, address: tuple[str, int]
) -> GrpcServer | None:
    """The server of gRPC; None if another process has taken the default port since this one looked."""
    try:
        return GrpcServer(settings, receiver, certificate, *address)
    except LegatoError as error:
        if "otlp_grpc_port" in settings.model_fields_set:
            raise
        _log.warning("no OTLP over gRPC: %s", error)
        return None


async def _stopped(grpc: GrpcServer, ending: asyncio.Event) -> None:
    """Stop the server when the process stops, with the same grace as the other servers."""
    await ending.wait()
    await grpc.stop(_GRACE_S)


def _config(app: ASGIApp, listener: socket.socket, listeners: _Listeners, settings: Settings) -> uvicorn.Config:
    # Without a configuration, uvicorn's log is written with ours, in the background.
    # No endpoint has WebSockets: their connections would have no bounds.
    config = uvicorn.Config(
        app, ws="none", log_config=None, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=_GRACE_S
    )
    is_otlp = listener is listeners.otlp
    config.http = protocol_class(listeners.grpc[1] if listeners.grpc else 0) if is_otlp else HttpProtocol
    if listener.family != socket.AF_UNIX and settings.tls_cert_file and settings.tls_key_file:
        config.ssl_certfile, config.ssl_keyfile = settings.tls_cert_file, settings.tls_key_file
        config.load()
        if config.ssl is not None and listeners.certificate is not None:
            config.ssl.sni_callback = listeners.certificate.choose
    return config


def _optional_listener(settings: Settings, host: str, field: str, consequence: str) -> socket.socket | None:
    """A listener on the port of a setting: None for port 0, and if another process has the default port, as recording matters more."""
    port = getattr(settings, field)
    if not port:
        return None
    try:
        return _listen(host, port, f"LEGATO_{field.upper()}")
    except LegatoError as error:
        if field in settings.model_fields_set:
            raise
        _log.warning("%s: %s", consequence, error)
        return None


def _grpc_address(settings: Settings) -> tuple[str, int] | None:
    """The address for gRPC; None without gRPC. A listener is opened for a moment, so that a taken port is found before the store opens."""
    listener = _optional_listener(settings, settings.host, "otlp_grpc_port", "no OTLP over gRPC")
    if listener is None:
        return None
    with listener:
        host, port = listener.getsockname()[:2]
        return host, port


def _listen(host: str, port: int, setting: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets that name their protocol. Without it, the second reply on a connection waits 40 ms for the
    # client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it: one of a host that is gone ends after some time.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise LegatoError(
            f"cannot listen on {host}:{port} ({error.strerror}): stop the process that listens there, or set {setting}"
        ) from None
    listener.listen(1024)
    return listener
