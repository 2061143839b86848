"""The web page over a store, on a free port."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from helpers.repo.repository import ROOT
from helpers.servers.serving import served
from legato_ingest.dashboards.files import load as load_boards
from legato_ingest.metrics import Metrics
from legato_ingest.query.reads import Reads
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.web.app import create_app
from legato_ingest.web.panel_queries import Boards

__all__ = ["BOARDS", "web_page"]

BOARDS = load_boards(ROOT / "dashboards")


@contextlib.contextmanager
def web_page(store: Store, **settings: Any) -> Iterator[str]:
    """Serve the web page over a store and yield its URL."""
    chosen, metrics = load(**settings), Metrics()
    with served(create_app(chosen, Reads(chosen, store, metrics), metrics, Boards(BOARDS))) as url:
        yield url
