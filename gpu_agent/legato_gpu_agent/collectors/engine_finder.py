"""Finds the engines of this node whose pages can be read: those that were named, and those that listen where engines do.

One idea: a port that somebody listens on is asked once for its page, and again only when it is another socket or minutes later; nothing but
GET /metrics on loopback is sent to anyone.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator, Sequence

from legato_gpu_agent.collectors import Absent, Collector
from legato_gpu_agent.collectors.engine_page import EnginePage, engine_id_of
from legato_gpu_agent.engines.all import ENGINES, engine_of_page
from legato_gpu_agent.fetch import Fetcher, FetchError
from legato_gpu_agent.neighbours import Neighbours
from legato_gpu_agent.proc import Proc
from legato_gpu_agent.readings import Found, Reading

__all__ = ["EngineFinder"]

PORTS = frozenset(port for engine in ENGINES.values() for port in engine.ports)
_ASK_AGAIN_S = 300.0
_PROBE_TIMEOUT_S = 2.0


class EngineFinder:
    """``named``: pairs of id (or '') and URL. With ``proc``, listening ports are looked at too, but for those that are ``taken``: what is
    read there is gone for others. ``add`` is given each page's collector.
    """

    name, every_s = "engines", 15.0

    def __init__(
        self,
        named: Sequence[tuple[str, str]],
        proc: Proc | None,
        neighbours: Neighbours,
        add: Callable[[Collector], None],
        page_every_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        boot_id: str = "",
        taken: Sequence[str] = (),
    ) -> None:
        self._named, self._proc, self._neighbours, self._add = list(named), proc, neighbours, add
        self._page_every_s, self._boot_id, self._clock = page_every_s, boot_id, clock
        self._known: set[str] = set()
        self._addresses = set(taken)
        self._asked: dict[int, tuple[int, float]] = {}

    def collect(self, now_ns: int) -> Iterator[Found]:
        """How many pages are read. Raises ``Absent`` where there is none."""
        for engine_id, url in self._named:
            self._take(EnginePage(url, engine_id, every_s=self._page_every_s, boot_id=self._boot_id), url)
        self._named.clear()
        if self._proc is not None:
            for port, inode in self._proc.listening().items():
                if port in PORTS and self._is_engine(port, inode):
                    url = f"http://127.0.0.1:{port}"
                    self._take(EnginePage(url, every_s=self._page_every_s, boot_id=self._boot_id), url)
        if not self._known:
            raise Absent("no engine's page was found: set LEGATO_ENGINES to where an engine serves /metrics")
        yield Reading("legato.agent.engines", "{engine}", float(len(self._known)))

    def _take(self, page: EnginePage, url: str) -> None:
        self._addresses.add(engine_id_of(url))
        if page.engine_id not in self._known:
            self._known.add(page.engine_id)
            self._neighbours.tell(page.engine_id, url)
            self._add(page)

    def _is_engine(self, port: int, inode: int) -> bool:
        """Whether an engine's page is there; asked of each socket now and then."""
        if f"127.0.0.1:{port}" in self._addresses:
            return False
        asked, now_s = self._asked.get(port), self._clock()
        if asked is not None and asked[0] == inode and now_s - asked[1] < _ASK_AGAIN_S:
            return False
        self._asked[port] = (inode, now_s)
        fetcher = Fetcher(f"http://127.0.0.1:{port}", _PROBE_TIMEOUT_S)
        for path in ("/metrics", "/prometheus/metrics"):
            try:
                if engine_of_page(fetcher.get(path)) is not None:
                    return True
            except (FetchError, OSError, http.client.HTTPException):
                continue
            finally:
                fetcher.close()
        return False
