"""Scrapes the metrics endpoint of one engine and translates its families into the signal catalogue.

The text itself identifies the engine; the meaning of its families is in `engines/`. An engine that is not up yet is retried. A metrics
endpoint holds no prompts, and no labels are kept except those of the rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from legato_gpu_agent.collectors.exposition import BadExposition, ExpositionReader
from legato_gpu_agent.collectors.http_fetch import Fetcher, FetchError, fetch_timeout_s
from legato_gpu_agent.collectors.measurement import Measured, Measurement, boot_attributes
from legato_gpu_agent.engines.engine import EngineKind
from legato_gpu_agent.engines.registry import ENGINES, detect_engine
from legato_gpu_agent.plugin.identity import engine_id_from_url

__all__ = ["METRICS_PATHS", "EngineMetrics"]

# TensorRT-LLM has its exposition text at the first one, and a GET of the other takes iterations from the one who polls them.
METRICS_PATHS = ("/prometheus/metrics", "/metrics")


class EngineMetrics:
    """Scrapes the engine at ``url``. ``kind``: a key of ``ENGINES`` if known beforehand. ``boot_id``: the boot of this host."""

    def __init__(self, url: str, engine_id: str = "", kind: str = "", every_s: float = 1.0, boot_id: str = "") -> None:
        self.engine_id = engine_id or engine_id_from_url(url)
        self.name, self.every_s = f"page {self.engine_id}", every_s
        self.engine: EngineKind | None = ENGINES[kind] if kind else None
        self._url, self._kind, self._boot = url, kind, boot_attributes(boot_id)
        self._fetcher = Fetcher(url, timeout_s=fetch_timeout_s(every_s))
        self._reader: ExpositionReader | None = None
        self._path = self.engine.path if self.engine else ""

    def collect(self, now_ns: int) -> Iterator[Measured]:
        """Yield the signals of the engine. Raises ``BadExposition``, ``FetchError``, ``OSError`` and ``http.client.HTTPException``."""
        text = self._text()
        is_first = self._reader is None
        if self._reader is None:
            self._reader = ExpositionReader(self._identify(text), self.engine_id)
        try:
            found = self._reader.read(text, now_ns)
        except BadExposition:
            self._reset()
            raise
        assert self.engine is not None
        owner = (*self._boot, ("legato.engine.id", self.engine_id), ("legato.engine.kind", self.engine.kind))
        # The first scrape yields no histogram. The attribute lets a query see that the observations before it are unknown.
        first = (("legato.engine.page", "first"),) if is_first else ()
        yield Measurement("legato.engine.up", "1", 1.0, (*owner, *first))
        yield from found

    def _reset(self) -> None:
        """Detect the engine again at the next scrape: another engine may now serve this address."""
        self._reader = None
        if not self._kind:
            self.engine, self._path = None, ""

    def _text(self) -> bytes:
        if not self._path:
            return self._find_path()
        try:
            return self._fetcher.get(self._path)
        except FetchError:
            # The server answers without this path: it may be another engine, with another path.
            if not self._kind:
                self._path = ""
            raise

    def _find_path(self) -> bytes:
        """Return the exposition text at the first path that serves a known engine's."""
        errors = []
        for path in METRICS_PATHS:
            try:
                text = self._fetcher.get(path)
            except (FetchError, TimeoutError) as error:
                errors.append(str(error))
                continue
            engine = detect_engine(text)
            if engine is not None:
                if engine is not self.engine:
                    self._reset()
                self._path = path
                return text
            errors.append(f"{path} has no family of a known engine")
        raise BadExposition(f"{self._url}: {'; '.join(errors)}")

    def _identify(self, text: bytes) -> EngineKind:
        engine = self.engine or detect_engine(text)
        if engine is None:
            raise BadExposition(f"{self._url}{self._path} has no family of a known engine: expected families of {', '.join(ENGINES)}")
        self.engine = engine
        return engine
