"""Finds the engines of this node whose pages can be read: those that were named, and those that listen where engines do.

One idea: a port that somebody listens on is asked once for its page, and again only when it is another socket or minutes later; nothing but
GET of a page is sent, to loopback, or where a socket listens at one address of this host alone, to that.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator, Sequence

from legato_gpu_agent.collectors import Absent, Collector
from legato_gpu_agent.collectors.addresses import own_addresses
from legato_gpu_agent.collectors.engine_metrics import EnginePage
from legato_gpu_agent.collectors.engine_registry import Neighbours
from legato_gpu_agent.collectors.http_fetch import Fetcher, FetchError
from legato_gpu_agent.collectors.measurement import Found, Reading
from legato_gpu_agent.collectors.procfs import Listener, Proc
from legato_gpu_agent.engines.registry import ENGINES, engine_of_page
from legato_gpu_agent.plugin.identity import LOOPBACK, client_host, place_of

__all__ = ["EngineFinder"]

PORTS = frozenset(port for engine in ENGINES.values() for port in engine.ports)
_ASK_AGAIN_S = 300.0
_PROBE_TIMEOUT_S = 2.0


class EngineFinder:
    """``named``: pairs of id (or '') and URL. With ``proc``, listening ports are looked at too, but for those of the URLs that are
    ``taken``: what is read there is gone for others. ``add`` is given each page's collector.
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
        self._taken, self._claimed = list(taken), dict[int, set[str]]()
        self._asked: dict[int, tuple[int, float]] = {}

    def collect(self, now_ns: int) -> Iterator[Found]:
        """How many pages are read. Raises ``Absent`` where there is none."""
        # Names are looked up here, where nobody waits for it, until they are known.
        self._taken = [url for url in self._taken if self._claim(url) is None]
        self._named = [each for each in self._named if self._take(*each) is None]
        if self._proc is not None:
            for port, listener in self._proc.listeners().items():
                if port not in PORTS or self._is_claimed(listener, port):
                    continue
                url = _url_of(listener, port)
                if self._is_engine(url, port, listener.inode):
                    self._take("", url)
        if not self._known:
            raise Absent("no engine's page was found: set LEGATO_ENGINES to where an engine serves /metrics")
        yield Reading("legato.agent.engines", "{engine}", float(len(self._known)))

    def _take(self, engine_id: str, url: str) -> bool | None:
        """Have its page read, once; whether it is on this host (``None``: nobody knows now)."""
        here, page = self._claim(url), EnginePage(url, engine_id, every_s=self._page_every_s, boot_id=self._boot_id)
        self._neighbours.tell(page.engine_id, f"http://{LOOPBACK}:{place_of(url)[1]}" if here else url)
        if page.engine_id not in self._known:
            self._known.add(page.engine_id)
            self._add(page)
        return here

    def _claim(self, url: str) -> bool | None:
        """Whether this URL is on this host; what listens there is asked by nobody else then. ``None``: nobody knows its name now."""
        host, port = place_of(url)
        try:
            own = own_addresses(host)
        except OSError:
            return None
        self._claimed.setdefault(port, set()).update(own)
        return bool(own)

    def _is_claimed(self, listener: Listener, port: int) -> bool:
        """Whether what listens here is read already: by its address, or by any where it listens at all; or may be what is ``taken``, by a
        name that nobody knows now.
        """
        if port in {place_of(url)[1] for url in self._taken}:
            return True
        claimed = self._claimed.get(port, set())
        return client_host(listener.address) in claimed if listener.address else bool(claimed)

    def _is_engine(self, url: str, port: int, inode: int) -> bool:
        """Whether an engine's page is there; asked of each socket now and then."""
        asked, now_s = self._asked.get(port), self._clock()
        if asked is not None and asked[0] == inode and now_s - asked[1] < _ASK_AGAIN_S:
            return False
        self._asked[port] = (inode, now_s)
        fetcher = Fetcher(url, _PROBE_TIMEOUT_S)
        for path in ("/metrics", "/prometheus/metrics"):
            try:
                if engine_of_page(fetcher.get(path)) is not None:
                    return True
            except (FetchError, OSError, http.client.HTTPException):
                continue
            finally:
                fetcher.close()
        return False


def _url_of(listener: Listener, port: int) -> str:
    host = listener.address or LOOPBACK
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
