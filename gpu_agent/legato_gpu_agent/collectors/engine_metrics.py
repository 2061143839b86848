"""The page of metrics of one engine, in the one vocabulary.

One idea: whose page it is, the page says; what its names mean is in `engines/`. An engine that is not up yet is asked until it is. Prompts
are on no page, and no label but those of the rules is kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from legato_gpu_agent.collectors.exposition import BadPage, Page
from legato_gpu_agent.collectors.http_fetch import Fetcher, FetchError, patience_s
from legato_gpu_agent.collectors.measurement import Found, Reading, booted
from legato_gpu_agent.engines import Engine
from legato_gpu_agent.engines.registry import ENGINES, engine_of_page
from legato_gpu_agent.plugin.identity import engine_id_of

__all__ = ["EnginePage"]

_PATHS = ("/metrics", "/prometheus/metrics")


class EnginePage:
    """Reads the page at ``url``; ``kind`` where it is known beforehand, of ``ENGINES``. ``boot_id``: of the host whose clock this is."""

    def __init__(self, url: str, engine_id: str = "", kind: str = "", every_s: float = 1.0, boot_id: str = "") -> None:
        self.engine_id = engine_id or engine_id_of(url)
        self.name, self.every_s = f"page {self.engine_id}", every_s
        self.engine: Engine | None = ENGINES[kind] if kind else None
        self._url, self._kind, self._boot = url, kind, booted(boot_id)
        self._fetcher = Fetcher(url, timeout_s=patience_s(every_s))
        self._page: Page | None = None
        self._path = self.engine.path if self.engine else ""

    def _forget(self) -> None:
        """Another engine may have come to this address: the next page says whose it is."""
        self._page = None
        if not self._kind:
            self.engine, self._path = None, ""

    def collect(self, now_ns: int) -> Iterator[Found]:
        """What the page tells. Raises ``BadPage``, ``FetchError`` and what a connection may."""
        text = self._text()
        is_first = self._page is None
        if self._page is None:
            self._page = Page(self._named(text), self.engine_id)
        try:
            found = self._page.read(text, now_ns)
        except BadPage:
            self._forget()
            raise
        assert self.engine is not None
        whose = (*self._boot, ("legato.engine.id", self.engine_id), ("legato.engine.kind", self.engine.kind))
        # The first reading tells no histogram: whoever asks what came since the one before must see that there was none.
        first = (("legato.engine.page", "first"),) if is_first else ()
        yield Reading("legato.engine.up", "1", 1.0, (*whose, *first))
        yield from found

    def _text(self) -> bytes:
        if not self._path:
            return self._first()
        try:
            return self._fetcher.get(self._path)
        except FetchError:
            # It answers, but not with this page: another engine may have come, whose page is elsewhere.
            if not self._kind:
                self._path = ""
            raise

    def _first(self) -> bytes:
        """The page, wherever this engine has it."""
        said = []
        for path in _PATHS:
            try:
                text = self._fetcher.get(path)
            except (FetchError, TimeoutError) as error:
                # TensorRT-LLM's JSON at the first path keeps who asks waiting for seconds while nothing runs: its page is at the second.
                said.append(str(error))
                continue
            engine = engine_of_page(text)
            if engine is not None:
                if engine is not self.engine:
                    self._forget()
                self._path = path
                return text
            said.append(f"{path} is no engine's that is known")
        raise BadPage(f"{self._url}: {'; '.join(said)}")

    def _named(self, text: bytes) -> Engine:
        engine = self.engine or engine_of_page(text)
        if engine is None:
            raise BadPage(f"{self._url}{self._path} is no engine's that is known: expected families of {', '.join(ENGINES)}")
        self.engine = engine
        return engine
