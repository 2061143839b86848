"""The admin socket: how commands change a store that `legato serve` holds.

A Unix socket next to the store that only the store's owner can open (mode 0600): the users who may change the store are those who may read
its files. The client is ``cli.admin_client``. The socket serves no queries.
"""

from __future__ import annotations

import os
import pathlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.errors import LegatoError
from legato_ingest.jobs.admin_commands import apply_objectives, apply_schema, back_up, schema_state
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import Settings
from legato_ingest.storage import Store
from legato_ingest.storage.lock import admin_socket_path

__all__ = ["create_app", "listen"]


def listen(store_path: pathlib.Path) -> socket.socket:
    """Return a listening socket that only this user can open. Replaces the socket of a dead process; the caller holds the store's lock."""
    path = admin_socket_path(store_path)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # Bound through the folder's descriptor: the path of a socket is limited to 107 bytes, the path of a store is not.
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
        os.umask(before)
    listener.listen()
    return listener


def create_app(
    settings: Settings, store: Store, worker: AttributionWorker, rollups: RollupWorker, settle: Callable[[], None] = lambda: None
) -> FastAPI:
    """Return the app that serves the admin socket. ``settle`` waits until the rows of all acknowledged requests are in the store."""
    app = FastAPI(title="Legato admin", docs_url=None, redoc_url=None, openapi_url=None)
    backing_up = threading.Lock()

    def guarded(work: Callable[[], Any]) -> Any:
        try:
            settle()
            return work()
        except LegatoError as error:
            return JSONResponse({"error": str(error)}, 409)

    @app.post("/schema/apply")
    def apply() -> Any:
        return guarded(lambda: apply_schema(settings, store))

    @app.get("/schema/status")
    def status() -> Any:
        return guarded(lambda: schema_state(settings, store))

    @app.post("/attribute")
    def attribute(since_s: int) -> Any:
        return guarded(lambda: worker.again(since_s))

    @app.post("/backup")
    def backup(name: str = "") -> Any:
        # One at a time: two backups would be verified in the same folder.
        with backing_up:
            return guarded(lambda: _back_up(settings, store, name))

    @app.post("/rollup")
    def rollup(since_s: int) -> Any:
        return guarded(lambda: rollups.again(since_s, samples=True))

    @app.post("/objectives/apply")
    def objectives() -> Any:
        return guarded(lambda: apply_objectives(settings, store, rollups))

    return app


def _back_up(settings: Settings, store: Store, name: str) -> dict[str, Any]:
    """Back up through separate connections, so that no acknowledgement waits for the backup."""
    separate = store.clone()
    try:
        return back_up(settings, separate, name)
    finally:
        separate.close()
