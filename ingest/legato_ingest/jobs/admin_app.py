"""The admin door: how commands change a store that `legato serve` holds.

One idea: a Unix socket beside the store that only its owner can open (mode 0600), so who may change the store is who may read its
files. The store's lock decides whether a command goes through this door or opens the store itself. It answers no queries.
"""

from __future__ import annotations

import os
import pathlib
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlencode

import httpx
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from legato_ingest.attribution.worker import Worker
from legato_ingest.errors import LegatoError, Locked
from legato_ingest.metrics import Metrics
from legato_ingest.rollups.worker import Roller
from legato_ingest.settings import Settings
from legato_ingest.storage import backup as backups
from legato_ingest.storage import migrate
from legato_ingest.storage.chdb import Store, backups_of
from legato_ingest.storage.lock import StoreLock
from legato_ingest.storage.opening import open_store

__all__ = ["attribute", "backup", "create_app", "listen", "rollup", "schema_apply", "schema_status"]


_BACKING_UP = threading.Lock()


def socket_path(store_path: pathlib.Path) -> pathlib.Path:
    """Where the door of this store is."""
    return store_path.with_name(store_path.name + ".admin")


def listen(store_path: pathlib.Path) -> socket.socket:
    """A listening socket that only this user can open. Replaces one that a dead process left: the caller holds the store's lock."""
    path = socket_path(store_path)
    path.unlink(missing_ok=True)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # Through the folder's descriptor: a socket's path may have 107 bytes, a store's any number.
        door.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
        os.umask(before)
    door.listen()
    return door


def create_app(settings: Settings, store: Store, worker: Worker, roller: Roller) -> FastAPI:
    """The app behind the door."""
    app = FastAPI(title="Legato admin", docs_url=None, redoc_url=None, openapi_url=None)

    @app.post("/schema/apply")
    def apply() -> Any:
        return _guarded(lambda: _apply(settings, store))

    @app.get("/schema/status")
    def status() -> Any:
        return _guarded(lambda: _status(settings, store))

    @app.post("/attribute")
    def again(since_s: int) -> Any:
        return _guarded(lambda: worker.again(since_s))

    @app.post("/backup")
    def back_up(name: str = "") -> Any:
        return _guarded(lambda: _backed_up(settings, name))

    @app.post("/rollup")
    def roll_again(since_s: int) -> Any:
        return _guarded(lambda: roller.again(since_s))

    return app


def _guarded(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except LegatoError as error:
        return JSONResponse({"error": str(error)}, 409)


def schema_apply(settings: Settings) -> list[str]:
    """Apply what is missing, by whoever holds the store; the names of the files applied. Raises ``LegatoError``."""
    return list(_through(settings, "POST", "/schema/apply", lambda store: _apply(settings, store))["applied"])


def schema_status(settings: Settings) -> dict[str, Any]:
    """What is applied and what is missing, by whoever holds the store. Raises ``LegatoError``."""
    return dict(_through(settings, "GET", "/schema/status", lambda store: _status(settings, store)))


def attribute(settings: Settings, since_s: int) -> dict[str, Any]:
    """Judge again what started in the last ``since_s`` seconds (0: ever), by whoever holds the store. Raises ``LegatoError``."""

    def here(store: Store) -> dict[str, Any]:
        migrate.apply(store, migrate.load(settings.schema_dir))
        done = dict(Worker(store, settings, Metrics()).again(since_s))
        if settings.server is not None:
            # Whoever rolls up there follows its own verdicts, not these.
            Roller(store, settings, Metrics()).again(since_s)
        return done

    return dict(_through(settings, "POST", f"/attribute?since_s={since_s}", here))


def rollup(settings: Settings, since_s: int) -> dict[str, Any]:
    """Compute the minutes of the last ``since_s`` seconds (0: ever) anew, by whoever holds the store. Raises ``LegatoError``."""

    def here(store: Store) -> dict[str, Any]:
        migrate.apply(store, migrate.load(settings.schema_dir))
        return dict(Roller(store, settings, Metrics()).again(since_s))

    return dict(_through(settings, "POST", f"/rollup?since_s={since_s}", here))


def backup(settings: Settings, name: str) -> dict[str, Any]:
    """Back up the embedded store, by whoever holds it. Raises ``LegatoError``."""
    if settings.server is not None:
        raise LegatoError("this is for an embedded store: a ClickHouse server has a BACKUP of its own")
    here = partial(backups.backup, folder=backups_of(settings.store_path), name=name)
    return dict(_through(settings, "POST", f"/backup?{urlencode({'name': name})}", here))


def _backed_up(settings: Settings, name: str) -> dict[str, Any]:
    # A handle of its own: nobody's acknowledgement waits for it. One at a time: they restore to the same place.
    with _BACKING_UP:
        return _done_by(open_store(settings), partial(backups.backup, folder=backups_of(settings.store_path), name=name))


def _apply(settings: Settings, store: Store) -> dict[str, Any]:
    done = migrate.apply(store, migrate.load(settings.schema_dir))
    return {"applied": [f"{migration.number:04}_{migration.name}" for migration in done]}


def _status(settings: Settings, store: Store) -> dict[str, Any]:
    known = migrate.applied(store)
    return {
        "files": [
            {
                "number": migration.number,
                "name": migration.name,
                "applied": migration.number in known,
                "changed": migration.number in known and known[migration.number] != migration.sha256,
            }
            for migration in migrate.load(settings.schema_dir)
        ],
        "newest_applied": max(known, default=0),
    }


def _through(settings: Settings, method: str, path: str, work: Callable[[Store], dict[str, Any]]) -> dict[str, Any]:
    """Do it here when nobody holds the lock, else ask the holder through its door. A server's store has neither."""
    if settings.server is not None:
        return _done_by(open_store(settings), work)
    store_path = settings.store_path
    try:
        lock = StoreLock(store_path).acquire()
    except Locked as locked:
        return _ask(socket_path(store_path), method, path, locked)
    try:
        return _done_by(open_store(settings), work)
    finally:
        lock.release()


def _done_by(store: Store, work: Callable[[Store], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work(store)
    finally:
        store.close()


def _ask(door: pathlib.Path, method: str, path: str, locked: Locked) -> dict[str, Any]:
    folder = os.open(door.parent, os.O_RDONLY)
    try:
        transport = httpx.HTTPTransport(uds=f"/proc/self/fd/{folder}/{door.name}")
        with httpx.Client(transport=transport, timeout=httpx.Timeout(10, read=None)) as client:
            reply = client.request(method, f"http://legato{path}")
    except httpx.TransportError as error:
        raise Locked(f"{locked}; and its admin door {door} does not answer ({error})") from None
    finally:
        os.close(folder)
    answer: dict[str, Any] = reply.json()
    if reply.status_code != 200:
        raise LegatoError(str(answer.get("error", reply.text)))
    return answer
