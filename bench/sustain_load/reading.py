"""Viewers of dashboards: each has one dashboard open, which refreshes as often as its JSON says, with six connections as a browser.

All viewers begin at the same moment. A query is timed from its send to its reply, a page from its refresh to the reply of its last panel.
The module draws nothing; `bench/page.py` measures the browser.
"""

from __future__ import annotations

import http.client
import pathlib
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from bench.common.ranges import until_now
from legato_ingest.dashboards.files import load, queries
from legato_ingest.dashboards.macros import with_macros

__all__ = ["Answered", "Reading"]

_CONNECTIONS = 6
# The units of a dashboard's range and refresh.
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(slots=True)
class Answered:
    """``query_s``, ``page_s``: a value each; ``refused``: replies with 503; ``failed``: other statuses but 200."""

    query_s: list[float] = field(default_factory=list)
    page_s: list[float] = field(default_factory=list)
    refused: int = 0
    failed: int = 0


class Reading:
    """So many viewers, over the dashboards in turn, from ``start`` to ``stop``."""

    def __init__(self, read: str, folder: pathlib.Path, viewers: int) -> None:
        parts = urlsplit(read)
        self._address = parts.hostname or "127.0.0.1", parts.port or 80
        boards = [board for board in load(folder) if board.get("refresh")]
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self.answered = Answered()
        self._threads = [
            threading.Thread(target=self._view, args=(boards[number % len(boards)],), daemon=True) for number in range(viewers)
        ]

    def start(self) -> None:
        """Begin."""
        for each in self._threads:
            each.start()

    def stop(self) -> Answered:
        """End after the pages that are being read, and return what was answered."""
        self._ended.set()
        for each in self._threads:
            each.join()
        return self.answered

    def _view(self, board: Mapping[str, Any]) -> None:
        panels = [question.target["rawSql"] for question in queries(dict(board)) if question.kind == "panel"]
        length_s, every_s = _seconds(board["time"]["from"].removeprefix("now-")), _seconds(board["refresh"])
        waiting, done = queue.SimpleQueue[str | None](), queue.SimpleQueue[None]()
        connections = [threading.Thread(target=self._ask, args=(waiting, done), daemon=True) for _ in range(_CONNECTIONS)]
        for each in connections:
            each.start()
        pause_s = 0.0
        while not self._ended.wait(pause_s):
            began_s = time.monotonic()
            span = until_now(length_s)
            for sql in panels:
                waiting.put(with_macros(sql, span))
            for _ in panels:
                done.get()
            took_s = time.monotonic() - began_s
            with self._lock:
                self.answered.page_s.append(took_s)
            pause_s = max(0.0, every_s - took_s)
        for _ in connections:
            waiting.put(None)
        for each in connections:
            each.join()

    def _ask(self, waiting: queue.SimpleQueue[str | None], done: queue.SimpleQueue[None]) -> None:
        connection = http.client.HTTPConnection(*self._address, timeout=120)
        while (sql := waiting.get()) is not None:
            began_s = time.monotonic()
            try:
                connection.request("POST", "/?default_format=Native", sql.encode())
                reply = connection.getresponse()
                reply.read()
                status = reply.status
            except (OSError, http.client.HTTPException):
                status = 0
            if status == 0 or self._ended.is_set() or waiting.empty():
                # The server closes idle connections.
                connection.close()
            with self._lock:
                self.answered.query_s.append(time.monotonic() - began_s)
                self.answered.refused += status == 503
                self.answered.failed += status not in (200, 503)
            done.put(None)
        connection.close()


def _seconds(text: str) -> int:
    return int(text[:-1]) * _UNITS_S[text[-1]]
