"""Run an administration command on the store: here when nothing holds the store's lock, else through the holder's admin socket.

The lock decides, never a flag. A ClickHouse server's store has neither lock nor socket and is always opened here. Only ``schema_apply``
creates an embedded store; the other commands need one.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import httpx

from legato_ingest.cli.store_choice import expect_store
from legato_ingest.errors import LegatoError, Locked
from legato_ingest.settings import Settings

if TYPE_CHECKING:
    from legato_ingest.storage import Store

__all__ = ["attribute", "backup", "objectives_apply", "rollup", "schema_apply", "schema_status"]


def schema_apply(settings: Settings) -> list[str]:
    """Apply the missing migrations and return the names of their files. Raises ``LegatoError``."""
    from legato_ingest.jobs.admin_commands import apply_schema

    return list(_run(settings, "POST", "/schema/apply", partial(apply_schema, settings), creates=True)["applied"])


def schema_status(settings: Settings) -> dict[str, Any]:
    """Return which migrations are applied and which are missing. Raises ``LegatoError``."""
    from legato_ingest.jobs.admin_commands import schema_state

    return _run(settings, "GET", "/schema/status", partial(schema_state, settings))


def attribute(settings: Settings, since_s: int) -> dict[str, Any]:
    """Judge again the streams that started in the last ``since_s`` seconds (0: all). Raises ``LegatoError``."""
    from legato_ingest.jobs.admin_commands import attribute_again

    return _run(settings, "POST", f"/attribute?since_s={since_s}", partial(attribute_again, settings, since_s=since_s))


def rollup(settings: Settings, since_s: int) -> dict[str, Any]:
    """Compute the rollups of the last ``since_s`` seconds (0: all) again. Raises ``LegatoError``."""
    from legato_ingest.jobs.admin_commands import roll_up_again

    return _run(settings, "POST", f"/rollup?since_s={since_s}", partial(roll_up_again, settings, since_s=since_s))


def objectives_apply(settings: Settings) -> dict[str, Any]:
    """Apply the objectives and compute all rollups again. Raises ``LegatoError``."""
    from legato_ingest.jobs.admin_commands import apply_objectives

    return _run(settings, "POST", "/objectives/apply", partial(apply_objectives, settings))


def backup(settings: Settings, name: str) -> dict[str, Any]:
    """Back up the embedded store. Raises ``LegatoError``."""
    if settings.server is not None:
        raise LegatoError("`legato backup` works on an embedded store; for a ClickHouse server use its BACKUP statement")
    return _run(settings, "POST", f"/backup?{urlencode({'name': name})}", partial(_back_up_here, settings, name))


def _back_up_here(settings: Settings, name: str, store: Store) -> dict[str, Any]:
    from legato_ingest.jobs.admin_commands import back_up
    from legato_ingest.storage.wal import expect_all_stored

    expect_all_stored(settings.store_path)
    return back_up(settings, store, name)


def _run(settings: Settings, method: str, path: str, work: Callable[[Store], dict[str, Any]], *, creates: bool = False) -> dict[str, Any]:
    """Run ``work`` on the store when nothing holds its lock, else send the request to the holder's admin socket."""
    from legato_ingest.storage.lock import StoreLock, admin_socket_path

    if settings.server is not None:
        return _run_here(settings, work)
    if not creates:
        expect_store(settings)
    try:
        lock = StoreLock(settings.store_path).acquire()
    except Locked as locked:
        return _request(admin_socket_path(settings.store_path), method, path, locked)
    try:
        return _run_here(settings, work)
    finally:
        lock.release()


def _run_here(settings: Settings, work: Callable[[Store], dict[str, Any]]) -> dict[str, Any]:
    from legato_ingest.storage import open_store

    store = open_store(settings)
    try:
        return work(store)
    finally:
        store.close()


def _request(admin_socket: pathlib.Path, method: str, path: str, locked: Locked) -> dict[str, Any]:
    # Through the folder's descriptor: a socket's path is limited to 107 bytes, a store's is not.
    folder = os.open(admin_socket.parent, os.O_RDONLY)
    try:
        transport = httpx.HTTPTransport(uds=f"/proc/self/fd/{folder}/{admin_socket.name}")
        with httpx.Client(transport=transport, timeout=httpx.Timeout(10, read=None)) as client:
            reply = client.request(method, f"http://legato{path}")
    except httpx.TransportError as error:
        raise Locked(f"{locked}; and its admin socket {admin_socket} does not answer ({error})") from None
    finally:
        os.close(folder)
    answer: dict[str, Any] = reply.json()
    if reply.status_code != 200:
        raise LegatoError(str(answer.get("error", reply.text)))
    return answer
