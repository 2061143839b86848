"""The server-sent events of the page Now: what runs and what is stalled, once a second.

One query a second and tenant serves all browsers that watch. A stream of events ends when its credentials stop working, when the server
stops, and when the browser leaves. Format: WHATWG HTML, "Server-sent events". This module judges nothing.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from legato_ingest.errors import BadRequest, Denied, StoreError
from legato_ingest.query.reads import Reads, Run
from legato_ingest.reports import live

__all__ = ["NowFeed"]

_EVERY_S = 1.0
# A comment keeps proxies from closing a silent connection, and shows that the browser has left.
_SILENCE_S_MAX = 15.0
_WATCHERS_MAX = 64
_STALLED_MAX = 200


class NowFeed:
    """The events of all tenants. ``is_stopping``: whether the server stops."""

    def __init__(self, reads: Reads, is_stopping: Callable[[], bool]) -> None:
        self._reads, self._is_stopping = reads, is_stopping
        self._newest: dict[str, tuple[float, bytes]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._watchers: Counter[str] = Counter()

    def events(self, tenant_of: Callable[[], str]) -> AsyncIterator[bytes]:
        """Return the events of one browser. ``tenant_of`` checks the credentials and raises ``Denied``. Raises ``BadRequest`` (503)."""
        tenant = tenant_of()
        if self._watchers[tenant] >= _WATCHERS_MAX:
            raise BadRequest(f"{_WATCHERS_MAX} browsers watch this page already: close one", 503)
        return self._follow(tenant_of, tenant)

    async def _follow(self, tenant_of: Callable[[], str], counted_as: str) -> AsyncIterator[bytes]:
        self._watchers[counted_as] += 1
        sent, sent_at = b"", time.monotonic()
        try:
            while not self._is_stopping():
                event = await self._event(tenant_of)
                if event != sent or time.monotonic() - sent_at > _SILENCE_S_MAX:
                    yield event if event != sent else b": nothing changed\n\n"
                    sent, sent_at = event, time.monotonic()
                if event.startswith(b"event: denied"):
                    return
                await asyncio.sleep(_EVERY_S)
        finally:
            self._watchers[counted_as] -= 1

    async def _event(self, tenant_of: Callable[[], str]) -> bytes:
        try:
            return await self._current(tenant_of())
        except Denied as error:
            return _event("denied", {"error": str(error)})

    async def _current(self, tenant: str) -> bytes:
        """The event of the tenant; it is at most a second old. All browsers share a failure, too."""
        async with self._locks.setdefault(tenant, asyncio.Lock()):
            read_at, event = self._newest.get(tenant, (0.0, b""))
            if not event or time.monotonic() - read_at >= _EVERY_S * 0.9:
                try:
                    event = _event("now", await self._reads.view(_now, tenant))
                except (BadRequest, StoreError) as error:
                    event = _event("failed", {"error": str(error)})
                self._newest[tenant] = time.monotonic(), event
            return event


def _now(run: Run) -> dict[str, Any]:
    found = live.as_json(live.fetch(run, live.LiveQuery(), _STALLED_MAX))
    stalled = found["stalled"]
    # All are counted only where not all are listed.
    streams = live.count_stalled(run) if len(stalled) == _STALLED_MAX else live.count_listed(stalled)
    return {**found, "stalled": stalled, "stalled_streams": streams}


def _event(name: str, content: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(content, separators=(',', ':'))}\n\n".encode()
